// The cost of the steps of a save by many ranks, on one machine: real code, and the messages in memory.
//
//   bench_scale RANKS SHARDS own|shared|common
//
// `shared`: SHARDS tensors, of which every rank has a part of one dimension. `own`: every rank has SHARDS tensors of
// its own. `common`: as `shared`, but one item in a hundred is a value that all ranks have; the coordinator's steps of
// a save with few common items come first. Prints a JSON list: for each step its name, the processor time (user and
// system, in seconds), the peak of resident memory in MiB, and the bytes that the step made, 0 if none.
#include <cairn/cairn.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "os/freed_memory.h"
#include "plan/chunk_validation.h"
#include "save/plan_confirmation.h"
#include "save/plan_terms.h"
#include "save/save_items.h"
#include "save/save_layout.h"
#include "save/vote.h"
#include "save_plan/local_plans.h"
#include "save_plan/shared_items.h"

namespace {

using namespace cairn;
using namespace cairn::checkpointer;

constexpr std::int64_t kElements = 4096;  // of a shard
float elements[kElements];                // of all shards: no step reads them

struct Job {
  std::int64_t ranks;
  int shards;
  bool own;
  bool common;
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::strtod(line.c_str() + 6, nullptr) / 1024;
  }
  return 0;
}

class Steps {
 public:
  Steps() { begin(); }
  // Not measured: what came since the last step.
  void begin() {
    std::ofstream("/proc/self/clear_refs") << "5";  // VmHWM becomes the memory of now
    getrusage(RUSAGE_SELF, &begun_);
  }
  void end(const char* name, std::uint64_t bytes = 0) {
    rusage now{};
    getrusage(RUSAGE_SELF, &now);
    const double user = seconds_of(now.ru_utime) - seconds_of(begun_.ru_utime);
    const double system = seconds_of(now.ru_stime) - seconds_of(begun_.ru_stime);
    std::printf("%s{\"step\": \"%s\", \"user\": %.6f, \"system\": %.6f, \"mib\": %.1f, \"bytes\": %llu}",
                is_first_ ? "[" : ",\n ", name, user, system, peak_mib(), static_cast<unsigned long long>(bytes));
    is_first_ = false;
    begin();
  }

 private:
  rusage begun_{};
  bool is_first_ = true;
};

template <typename T>
T checked(Result<T> result) {
  if (result) return std::move(result).value();
  std::fprintf(stderr, "bench_scale: %s\n", result.error().what());
  std::exit(1);
}

StateDict state_of(const Job& job, std::int64_t rank) {
  StateDict state;
  for (int i = 0; i < job.shards; ++i) {
    const auto view = TensorView::contiguous(elements, DType::kFloat32, {kElements});
    std::string name = "layers." + std::to_string(i / 10) + ".mlp.weight_" + std::to_string(i % 10);
    if (job.common && i % 100 == 99) {
      checked(state.add_value(Path{"optim", name + ".step"}, Value(i)));
      continue;
    }
    if (job.own) name += ".part" + std::to_string(rank);
    const Path path{"model", name};
    const auto added = job.own ? state.add_tensor(path, view)
                               : state.add_chunk(path, view, {kElements * job.ranks}, {kElements * rank});
    if (!added) {
      std::fprintf(stderr, "bench_scale: %s\n", added.error().what());
      std::exit(1);
    }
  }
  return state;
}

std::uint64_t bytes_of(const std::vector<std::string>& messages) {
  std::uint64_t bytes = 0;
  for (const std::string& message : messages) bytes += message.size();
  return bytes;
}

std::string message_of(const SaveItems& items) {
  const std::string local_plan = checked(save_plan::encode_local_plan(items.sources(), {}));
  return save_plan::encode_digested_plan(items.sources(), false, local_plan);
}

// What the coordinator of a save has found.
struct Found {
  std::vector<std::string> local_plans;
  save_plan::CommonItems common;
};

// The coordinator's step before all other steps.
Found look_for_common_items(std::vector<std::string> messages, Steps& steps) {
  const std::uint64_t gathered = bytes_of(messages);
  steps.begin();
  Found found;
  std::vector<save_plan::DigestedPlan> digested;
  for (const std::string& message : messages) {
    digested.push_back(checked(save_plan::read_digested_plan(message)));
    found.local_plans.emplace_back(digested.back().local_plan);
  }
  found.common = save_plan::find_common_items(digested);
  messages.clear();
  steps.end("coordinator: look for common items", gathered);
  return found;
}

// The steps of the coordinator's trainer for few common items, and a rank's answer.
void plan_common_items(const Job& job, Found& found, Steps& steps) {
  std::vector<std::string> requests;
  for (const auto& indices : found.common.ranks) requests.push_back(save_plan::encode_indices(indices));
  steps.end("coordinator: ask for the common items", bytes_of(requests));
  std::vector<std::string> answers;
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const StateDict state = state_of(job, rank);
    const SaveItems items = checked(SaveItems::make(state));
    steps.begin();
    const auto& common = found.common.ranks[static_cast<std::size_t>(rank)];
    std::vector<data_file::ItemSource> sources;
    for (const std::uint32_t index : common) sources.push_back(items.sources()[index]);
    answers.push_back(save_plan::encode_common_plan(save_plan::own_items(items.sources(), common),
                                                    checked(save_plan::encode_local_plan(sources, {}))));
    if (rank + 1 == job.ranks) steps.end("rank: plan of the common items", answers.back().size());
  }
  const std::uint64_t gathered = bytes_of(answers);
  steps.begin();
  std::vector<save_plan::CommonPlan> plans;
  for (std::string& answer : answers) plans.push_back(checked(save_plan::decode_common_plan(answer)));
  const save_plan::PlannedSave planned = checked(save_plan::plan_common(std::move(plans), false));
  steps.end("coordinator: plan the common items", gathered);
  std::vector<save_plan::CommonShare> shares;
  for (std::size_t rank = 0; rank < found.common.ranks.size(); ++rank) {
    save_plan::CommonShare& share = shares.emplace_back();
    share.common = std::move(found.common.ranks[rank]);
    for (const plan::WriteItem& write : planned.global.ranks[rank]) {
      share.written.push_back({share.common[write.item], nullptr});
    }
  }
  steps.end("coordinator: shares of the common items");
  const save_plan::JointLayout layout = checked(save_plan::lay_out_shared({found.local_plans, std::move(shares)}, ""));
  steps.end("writer: lay out all items", layout.catalog.files.size());
}

void run(const Job& job) {
  std::vector<std::string> messages;
  for (std::int64_t rank = 0; rank + 1 < job.ranks; ++rank) {
    const StateDict state = state_of(job, rank);
    const SaveItems items = checked(SaveItems::make(state));
    messages.push_back(message_of(items));
  }
  const StateDict last = state_of(job, job.ranks - 1);
  Steps steps;
  SaveItems items = checked(SaveItems::make(last));
  const std::string local_plan = checked(save_plan::encode_local_plan(items.sources(), {}));
  steps.end("rank: local plan", local_plan.size());
  messages.push_back(save_plan::encode_digested_plan(items.sources(), false, local_plan));
  steps.end("rank: digests of the items", messages.back().size() - local_plan.size());
  Found found = look_for_common_items(std::move(messages), steps);
  if (found.common.count == save_plan::CommonItems::Count::kFew) plan_common_items(job, found, steps);
  messages = std::move(found.local_plans);
  const std::uint64_t gathered = bytes_of(messages);
  steps.begin();
  const auto fingerprints = recorded_ranks(messages, {});
  steps.end("coordinator: fingerprints", fingerprints.size() * sizeof(Fingerprint));
  save_plan::PlannedSave planned = checked(save_plan::plan_together(std::move(messages), false));
  steps.end("coordinator: decode and plan", gathered);
  const commit::SaveTicket ticket{{{1, 2}, {3, 4}, 1, 1}, true};
  SaveLayout layout = checked(lay_out_save(std::move(planned), ticket, 0, "checkpoint", ""));
  steps.end("coordinator: lay out");
  std::vector<std::string> assignments;
  for (SaveAssignment& assignment : layout.assignments) {
    assignments.push_back(encode_assignment(assignment));
    assignment = SaveAssignment();
  }
  const std::uint64_t scattered = bytes_of(assignments);
  steps.end("coordinator: assignments", scattered);
  const SaveAssignment mine = checked(decode_assignment(assignments.back()));
  checked(items.take(mine.items));
  steps.end("rank: assignment", assignments.back().size());
  std::optional metadata = checked(dcp::MetadataTemplate::make(layout.catalog));
  steps.end("coordinator: metadata");
  const std::string save_id = *layout.catalog.save_id;
  const std::vector<std::string> files = std::move(layout.catalog.files);
  const std::string front = metadata->render(save_id, "checkpoint", files);
  steps.end("writer: render", front.size());
  metadata.reset();
  layout = SaveLayout();
  os::return_freed_memory();
  steps.begin();
  dcp::DecodedMetadata decoded = checked(dcp::decode_metadata(std::as_bytes(std::span(front))));
  checked(dcp::MetadataTemplate::make(decoded.catalog));
  steps.end("coordinator: resume");
  for (const CatalogTensor& tensor : decoded.catalog.tensors) {
    const auto valid = plan::validate_chunks({tensor.fqn, tensor.shape, tensor.boxes, {}}, plan::Coverage::kWhole);
    if (!valid) std::exit(1);
  }
  const ResumedMetadata resumed{std::move(decoded.catalog), std::vector<std::uint32_t>(fingerprints.size(), 1)};
  sums_by_rank(resumed, {1, 2});
  steps.end("coordinator: confirm", 2 * fingerprints.size() * sizeof(std::uint64_t));
  const std::vector<std::int64_t> votes = numbers_of(Vote{7, ticket});
  checked(count_votes(votes));
  steps.end("rank: vote of a later save", votes.size() * sizeof(votes[0]));
  std::printf("]\n");
}

}  // namespace

int main(int count, char** arguments) {
  const std::string_view shape = count == 4 ? arguments[3] : "";
  if (shape != "own" && shape != "shared" && shape != "common") {
    std::fprintf(stderr, "usage: bench_scale RANKS SHARDS own|shared|common\n");
    return 2;
  }
  run({std::atoll(arguments[1]), std::atoi(arguments[2]), shape == "own", shape == "common"});
  return 0;
}
