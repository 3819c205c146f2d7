#include "examples.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cairn::cli {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 20> kExamples{{
    {"ls",
     "  cairn ls run                        the checkpoints of a folder, with the newest\n"
     "  cairn ls run/step-9                 the keys of a checkpoint\n"
     "  cairn ls model.safetensors --json   for programs"},
    {"inspect",
     "  cairn inspect run/step-9                            all keys\n"
     "  cairn inspect run/step-9 'model.layers.[0-3]'       four layers; quotes hide the pattern from the shell\n"
     "  cairn inspect run/step-9 --depth 2                  two levels of the tree"},
    {"verify",
     "  cairn verify run/step-9\n"
     "  cairn verify run/step-* || echo damaged             several checkpoints, with a summary"},
    {"diff",
     "  cairn diff run/step-9 run/step-10                   bit by bit\n"
     "  cairn diff run/step-9 model.safetensors --keys 'model.*' --ignore-dtype --tolerance 0.004"},
    {"cat",
     "  cairn cat run/step-9 step                           a value\n"
     "  cairn cat run/step-9 model.head.weight --npy head.npy"},
    {"status", "  cairn status run                    of all checkpoints in the folder"},
    {"watch",
     "  cairn watch run\n"
     "  cairn watch run --until-idle && cairn ls run    when the saves in flight have ended"},
    {"clean",
     "  cairn clean run --dry-run           what would be removed\n"
     "  cairn clean run"},
    {"repair",
     "  cairn repair run/step-9 --dry-run   what is lost, and what would be done\n"
     "  cairn repair run/step-9\n"
     "  cairn repair run/step-9 --partial   although data files are missing"},
    {"prune",
     "  cairn prune run --keep-last 3 --keep-every 10000 --dry-run     what would be removed\n"
     "  cairn prune run --keep-last 3 --keep-every 10000\n"
     "  cairn prune run --keep-every-time 1d --newer-than 7d --adopt   checkpoints of stock torch too"},
    {"rm", "  cairn rm run/step-1 run/step-2"},
    {"pin", "  cairn pin run/step-9 --note 'baseline of the paper'"},
    {"unpin", "  cairn unpin run/step-9"},
    {"doctor", "  cairn doctor run                    on the host of the job, for the directory of its checkpoints"},
    {"bench", "  cairn bench run --bytes 4GB"},
    {"trace",
     "  CAIRN_TRACE=/tmp/trace torchrun train.py\n"
     "  cairn trace /tmp/trace --output trace.json          then open trace.json in ui.perfetto.dev"},
    {"convert",
     "  cairn convert run/step-9 model.pt                   for torch.load\n"
     "  cairn convert run/step-9 model --to safetensors --keys model --rename model= --dtype bf16\n"
     "  cairn convert model.safetensors run/step-0 --to dcp"},
    {"reshard", "  cairn reshard run/step-9 run/step-9-of-64 --files 64"},
    {"completion", "  eval \"$(cairn completion bash)\"     in ~/.bashrc"},
    {"help",
     "  cairn help verify\n"
     "  cairn help --man | man -l -         the manual page"},
}};

}  // namespace

std::string_view examples_of(std::string_view command) {
  const auto* const found = std::find_if(kExamples.begin(), kExamples.end(),
                                         [command](const auto& example) { return example.first == command; });
  return found == kExamples.end() ? std::string_view() : found->second;
}

}  // namespace cairn::cli
