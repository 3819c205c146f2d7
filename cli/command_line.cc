#include "command_line.h"

#include <cairn/version.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <string_view>

#include "examples.h"
#include "manual.h"
#include "nearest_word.h"
#include "printable.h"

namespace cairn::cli {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 ok, 1 the check failed or no key matches, 2 usage, 3 no checkpoint there, or it can't be read.";
constexpr const char* kExitCodesOfConversion =
    "Exit codes: 0 ok, 1 damage in SRC or no key matches, 2 usage or DST exists, 3 SRC can't be read or DST can't be "
    "written. SIGINT and SIGTERM end the tool by the signal and leave no trace of DST.";

std::string hint_at(const std::optional<std::string>& nearest) {
  return nearest ? fmt::format("; did you mean '{}'?", *nearest) : std::string();
}

// The option's name, "--depth" for "--depth=3"; empty if the word is not an option. "-3" is a number.
std::string option_in(const std::string& word) {
  if (word.size() < 2 || word[0] != '-' || word == "--") return {};
  if (word[1] != '-' && std::isalpha(static_cast<unsigned char>(word[1])) == 0) return {};
  return word.substr(0, word.find('='));
}

std::string footer_of(std::string_view command, std::string_view exit_codes) {
  return fmt::format("Examples:\n{}\n\n{}", examples_of(command), exit_codes);
}

}  // namespace

std::vector<std::string> command_names(const CLI::App& tool) {
  std::vector<std::string> names;
  for (const CLI::App* command : tool.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

CommandLine::CommandLine() : tool_("Looks at checkpoints of Cairn and of torch.distributed.checkpoint.", "cairn") {
  tool_.footer(kExitCodes);
  tool_.set_version_flag("--version", "cairn " + std::string(kVersion), "Print the version and exit");
  tool_.require_subcommand(1);
  constexpr const char* kForPrograms = "print JSON for programs";
  CLI::App* ls = add_command_on_directory(
      "ls", "A line per key; of a folder of checkpoints, a line per checkpoint: time, size, contents, the newest",
      "the checkpoint, or the folder of checkpoints");
  ls->add_flag("--json", arguments_.json, kForPrograms);
  CLI::App* inspect = add_command_on_directory(
      "inspect", "Tree of keys with dtype, shape, bytes, chunks, files; short values", "the checkpoint");
  inspect->add_option("keys", arguments_.patterns, "keys or patterns (*, ?, [a-z]); shows matches and all keys below")
      ->type_name("KEY");
  CLI::Option* json = inspect->add_flag("--json", arguments_.json, "print all of the metadata as JSON, for programs");
  inspect->add_option("--depth", arguments_.depth, "levels of the tree to show; deeper keys are counted")
      ->type_name("N")
      ->check(CLI::NonNegativeNumber)
      ->excludes(json);
  add_verify();
  add_diff();
  add_cat();
  CLI::App* status =
      add_command_on_directory("status", "Saves in flight and dead saves: rank, progress, last heartbeat",
                               "the checkpoint, or the folder of checkpoints");
  status->add_flag("--json", arguments_.json, kForPrograms);
  add_watch();
  CLI::App* clean = add_command_on_directory("clean", "Removes the files of dead saves, and nothing else",
                                             "the checkpoint, or the folder of checkpoints");
  clean->get_option("directory")->type_name("ROOT");
  clean->add_flag("--dry-run", arguments_.dry_run, "change nothing, and print what would be removed");
  clean->add_flag("--json", arguments_.json, kForPrograms);
  add_repair();
  add_prune();
  add_rm_and_pins();
  CLI::App* doctor = add_command_on_directory(
      "doctor", "What the machine and a directory offer, and what Cairn uses; writes at most 256 MiB and removes them",
      "the directory for checkpoints");
  doctor->add_flag("--json", arguments_.json, kForPrograms);
  CLI::App* bench = add_command_on_directory(
      "bench", "Save and load of a synthetic state beside the raw device; removes the files that it writes",
      "the directory to measure");
  bench->add_option("--bytes", arguments_.bytes, "the size of the state (500MiB, 4GB); 1GiB by default")
      ->type_name("SIZE");
  bench->add_flag("--json", arguments_.json, kForPrograms);
  add_trace();
  add_convert();
  add_reshard();
  add_quiet();
  add_completion_and_help();
}

void CommandLine::add_verify() {
  CLI::App* verify =
      add_command_on_directories("verify", "Every byte against its checksum, every chunk against its tensor",
                                 "the checkpoint; several are checked one after the other");
  verify->add_flag("--json", arguments_.json, "print JSON for programs");
  verify->add_flag("--follow-links", arguments_.follow_links, "data files may be symbolic links");
}

void CommandLine::add_watch() {
  constexpr double kSecondsMin = 0.1, kSecondsMax = 86400;
  CLI::Range seconds(kSecondsMin, kSecondsMax);
  seconds.description("");
  CLI::App* watch = add_command_on_directory(
      "watch", "A live line for each save in flight: phase, bytes, rate, longest call; until Ctrl-C",
      "the checkpoint, or the folder of checkpoints");
  watch->get_option("directory")->type_name("ROOT");
  watch->add_option("--interval", arguments_.interval_seconds, "seconds between two looks; 1 by default")
      ->type_name("SECONDS")
      ->check(seconds);
  watch->add_flag("--until-idle", arguments_.until_idle,
                  "end when no process works on a save; exit code 1 if one ended without its checkpoint");
  watch->add_flag("--json", arguments_.json, "print a line of JSON for each look, for programs");
}

void CommandLine::add_repair() {
  RepairingOptions& given = arguments_.repairing;
  CLI::App* repair = add_command_on_directory(
      "repair", "Rebuilds lost or broken metadata from the data files, and removes the files of dead saves",
      "the checkpoint");
  repair->footer(
      footer_of("repair",
                "Exit codes: 0 the checkpoint is good, or was repaired without loss, 1 data are lost, or the "
                "metadata was not rebuilt, 2 usage, 3 no checkpoint there, or the system prevents the repair."));
  repair->add_flag("--partial", given.partial, "also write metadata for what is left, if data files are missing");
  repair->add_option("--save", given.save, "the save to make the checkpoint, if the files of several are there")
      ->type_name("ID");
  repair->add_option("--rank", given.rank, "repair the metadata of a rank that saved alone")->type_name("R");
  repair->add_flag("--dry-run", arguments_.dry_run, "change nothing, and print what would be done");
  repair->add_flag("--json", arguments_.json, "print JSON for programs");
}

void CommandLine::add_prune() {
  PruningOptions& given = arguments_.pruning;
  CLI::Range count(std::int64_t{1}, std::numeric_limits<std::int64_t>::max());
  count.description("");  // the help has the range as a part of the type otherwise
  CLI::App* prune = add_command_on_directory(
      "prune", "Removes the checkpoints of a run that no --keep option and no pin keeps; never the newest good one",
      "the folder of checkpoints");
  prune->get_option("directory")->type_name("ROOT");
  prune->add_option("--keep-last", given.keep_last, "keep the newest N that are good")->type_name("N")->check(count);
  prune->add_option("--keep-every", given.keep_every, "keep each whose step is a multiple of STEPS")
      ->type_name("STEPS")
      ->check(count);
  prune
      ->add_option("--keep-every-time", given.keep_every_time,
                   "from the oldest on, keep each that is at least DURATION (90s, 30m, 12h, 7d, 2w) later than the one "
                   "kept before it")
      ->type_name("DURATION");
  prune
      ->add_option("--keep-best", given.keep_best,
                   "METRIC:min, METRIC:max or METRIC:min:N: keep the N (1 by default) with the best values; may be "
                   "repeated")
      ->type_name("METRIC:ORDER[:N]")
      ->allow_extra_args(false);
  prune->add_option("--newer-than", given.newer_than, "keep each that is at most DURATION old")->type_name("DURATION");
  prune->add_flag("--adopt", given.adopt, "also remove checkpoints of stock torch, and copies by convert");
  prune->add_flag("--dry-run", arguments_.dry_run, "change nothing, and print what would be removed");
  prune->add_flag("--json", arguments_.json, "print JSON for programs");
}

void CommandLine::add_rm_and_pins() {
  constexpr const char* kDirectories = "the checkpoint; may be repeated";
  CLI::App* rm =
      add_command_on_directories("rm", "Removes checkpoints, even the only one; a pin protects", kDirectories);
  rm->add_flag("--dry-run", arguments_.dry_run, "change nothing, and print what would be removed");
  CLI::App* pin = add_command_on_directories("pin", "Protects checkpoints from prune and rm", kDirectories);
  pin->add_option("--note", arguments_.note, "for people: who needs the checkpoint, and why")->type_name("TEXT");
  CLI::App* unpin = add_command_on_directories("unpin", "Removes the pins of checkpoints", kDirectories);
  for (CLI::App* command : {rm, pin, unpin}) command->add_flag("--json", arguments_.json, "print JSON for programs");
}

void CommandLine::add_completion_and_help() {
  CLI::App* completion = add_command("completion", "Prints a completion script for bash, zsh or fish");
  completion->add_option("shell", arguments_.shell, "bash, zsh or fish")
      ->required()
      ->type_name("SHELL")
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  CLI::App* help = add_command("help", "Prints the help of the tool or of a command, or the manual page");
  CLI::Option* topic = help->add_option("command", arguments_.topic, "the command")->type_name("COMMAND");
  help->add_flag("--man", arguments_.manual, "print the manual page of all commands, for man(1)")->excludes(topic);
}

void CommandLine::add_cat() {
  CLI::App* cat = add_command_on_directory(
      "cat", "A value, or a tensor's shape, dtype, min, max, mean, NaN and infinities", "the checkpoint");
  cat->add_option("key", arguments_.key, "the key")->required()->type_name("KEY");
  CLI::Option* npy =
      cat->add_option("--npy", arguments_.npy,
                      "write the tensor to FILE for numpy.load instead; bfloat16 and float8 as float32, which is exact")
          ->type_name("FILE");
  cat->add_flag("--overwrite", arguments_.overwrite, "replace an existing FILE")->needs(npy);
  cat->add_flag("--json", arguments_.json, "print JSON for programs");
  cat->add_flag("--follow-links", arguments_.follow_links, "data files may be symbolic links");
}

void CommandLine::add_diff() {
  CLI::App* diff = add_command_on_directory("diff", "Keys, shapes, dtypes, elements and values of two checkpoints",
                                            "checkpoint A, of any format");
  diff->footer(
      footer_of("diff", "Exit codes, as diff's: 0 equal, 1 different, 2 wrong usage, or a checkpoint can't be read."));
  diff->get_option("directory")->type_name("A");
  diff->add_option("other", arguments_.other, "checkpoint B, of any format")->required()->type_name("B");
  diff->add_option(
          "--tolerance", arguments_.tolerance,
          "floats agree if their absolute or relative difference is at most T (below 1); without it, bits count")
      ->type_name("T")
      ->check(CLI::NonNegativeNumber);
  diff->add_flag("--ignore-dtype", arguments_.ignore_dtype,
                 "tensors of two floating-point dtypes are equal if all numbers agree");
  diff->add_option("--keys", arguments_.patterns, "only keys that match GLOB (*, ?, [a-z]), and all keys below")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  diff->add_flag("--json", arguments_.json, "print JSON for programs");
  diff->add_flag("--follow-links", arguments_.follow_links, "data files may be symbolic links");
}

void CommandLine::add_trace() {
  CLI::App* trace = add_command_on_directory(
      "trace", "One trace, for ui.perfetto.dev, of the files of all processes of a job with CAIRN_TRACE=DIR",
      "the folder of CAIRN_TRACE");
  CLI::Option* output = trace->add_option("-o,--output", arguments_.output, "write FILE instead of stdout");
  output->type_name("FILE");
  trace->add_flag("--overwrite", arguments_.overwrite, "replace an existing FILE")->needs(output);
}

void CommandLine::add_convert() {
  ConversionOptions& given = arguments_.conversion;
  CLI::App* convert =
      add_command_on_directory("convert", "Copies a checkpoint into another format, checked and streamed",
                               "the source: a checkpoint of any format");
  convert->footer(footer_of("convert", kExitCodesOfConversion));
  convert->get_option("directory")->type_name("SRC");
  convert->add_option("target", arguments_.target, "the target: a directory, or a .pt or .safetensors file")
      ->required()
      ->type_name("DST");
  convert->add_option("--to", given.to, "dcp, torch or safetensors; by default as the target's name says")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"dcp", "torch", "safetensors"}));
  convert->add_option("--keys", given.keys, "only keys that match GLOB (*, ?, [a-z]), and all keys below")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  convert->add_option("--exclude", given.exclude, "without the keys that match GLOB, and all keys below")
      ->type_name("GLOB")
      ->allow_extra_args(false);
  convert
      ->add_option("--rename", given.renames,
                   "OLD=NEW: a prefix, or a pattern whose stars stand for the stars of NEW; the first that matches; "
                   "write \\= for a = in a key")
      ->type_name("OLD=NEW")
      ->allow_extra_args(false);
  convert
      ->add_option("--dtype", given.dtypes,
                   "the dtype of all floating-point tensors, or of those that match GLOB: bf16, fp16, fp32, ...")
      ->type_name("[GLOB=]DTYPE")
      ->allow_extra_args(false);
  convert->add_option("--max-shard-size", given.max_shard_size, "safetensors files of at most SIZE (5GB), with index")
      ->type_name("SIZE");
  convert->add_flag("--overwrite", given.overwrite, "replace an existing target");
  convert->add_flag("--plain", given.plain,
                    "no metadata of Cairn's own: reproducible bytes, without checksums; DST is one file");
  add_allow_pickle(*convert);
  convert->add_flag("--follow-links", given.follow_links, "data files may be symbolic links");
  convert->add_flag("--json", given.json, "print JSON for programs");
}

void CommandLine::add_reshard() {
  ConversionOptions& given = arguments_.conversion;
  CLI::App* reshard = add_command_on_directory("reshard", "Copies a checkpoint into a DCP checkpoint of N data files",
                                               "the source: a checkpoint of any format");
  reshard->footer(footer_of("reshard", kExitCodesOfConversion));
  reshard->get_option("directory")->type_name("SRC");
  reshard->add_option("target", arguments_.target, "the directory of the target")->required()->type_name("DST");
  reshard->add_option("--files", given.file_count, "the number of data files, of nearly equal sizes")
      ->required()
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  reshard->add_flag("--overwrite", given.overwrite, "replace an existing target");
  add_allow_pickle(*reshard);
  reshard->add_flag("--follow-links", given.follow_links, "data files may be symbolic links");
  reshard->add_flag("--json", given.json, "print JSON for programs");
}

// To the commands that may take long.
void CommandLine::add_quiet() {
  for (const char* name :
       {"verify", "diff", "cat", "clean", "repair", "prune", "rm", "doctor", "bench", "trace", "convert", "reshard"}) {
    tool_.get_subcommand(name)->add_flag("--quiet", arguments_.quiet, "print no progress on stderr");
  }
}

void CommandLine::add_allow_pickle(CLI::App& command) {
  command.add_flag("--allow-pickle", arguments_.conversion.allow_pickle,
                   "copy values whose pickles name code, too; the copy runs none, but a load of DST does");
}

CLI::App* CommandLine::add_command(const char* name, const char* description) {
  CLI::App* command = tool_.add_subcommand(name, description);
  command->footer(footer_of(name, kExitCodes));
  return command;
}

CLI::App* CommandLine::add_command_on_directory(const char* name, const char* description, const char* directory) {
  CLI::App* command = add_command(name, description);
  command->add_option("directory", arguments_.directory, directory)->required()->type_name("DIR");
  return command;
}

CLI::App* CommandLine::add_command_on_directories(const char* name, const char* description, const char* directories) {
  CLI::App* command = add_command(name, description);
  command->add_option("directory", arguments_.directories, directories)->required()->type_name("DIR");
  return command;
}

std::optional<Outcome> CommandLine::parse(const std::vector<std::string>& words) {
  std::vector<const char*> pointers;
  pointers.reserve(words.size());
  for (const std::string& word : words) pointers.push_back(word.c_str());
  try {
    tool_.parse(static_cast<int>(pointers.size()), pointers.data());
  } catch (const CLI::ParseError& error) {
    const auto commands = tool_.get_subcommands();
    if (error.get_exit_code() != 0) return Outcome{{}, complaint_about(words, error), ExitCode::kUsage};
    const bool is_version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    if (is_version) return Outcome{std::string(error.what()) + "\n", {}, ExitCode::kOk};
    return Outcome{commands.empty() ? tool_.help() : commands.front()->help(tool_.get_name()), {}, ExitCode::kOk};
  }
  command_ = tool_.get_subcommands().front()->get_name();
  if (command_ == "help") return answer_help();
  return std::nullopt;
}

Outcome CommandLine::answer_help() const {
  if (arguments_.manual) return {manual_of(tool_), {}, ExitCode::kOk};
  const std::string& topic = arguments_.topic;
  // tool_.help() is the help of the command on the line, which is `help`.
  const auto mode = CLI::AppFormatMode::Normal;
  if (topic.empty()) return {tool_.get_formatter()->make_help(&tool_, tool_.get_name(), mode), {}, ExitCode::kOk};
  const std::vector<std::string> commands = command_names(tool_);
  if (std::find(commands.begin(), commands.end(), topic) != commands.end()) {
    return {tool_.get_subcommand(topic)->help(tool_.get_name()), {}, ExitCode::kOk};
  }
  const std::string hint = hint_at(nearest_word(topic, commands));
  return {{}, fmt::format("cairn: no command '{}'{}\nTry 'cairn --help'.\n", printable(topic), hint), ExitCode::kUsage};
}

std::string CommandLine::complaint_about(const std::vector<std::string>& words, const CLI::ParseError& error) const {
  const std::vector<std::string> commands = command_names(tool_);
  const CLI::App* scope = &tool_;
  std::string complaint;
  for (std::size_t i = 1; i < words.size() && complaint.empty() && words[i] != "--"; ++i) {
    const std::string option = option_in(words[i]);
    const bool is_command = option.empty() && scope == &tool_;
    if (is_command && std::find(commands.begin(), commands.end(), words[i]) != commands.end()) {
      scope = tool_.get_subcommand(words[i]);
    } else if (is_command) {
      complaint = fmt::format("no command '{}'{}", printable(words[i]), hint_at(nearest_word(words[i], commands)));
    } else if (!option.empty() && scope->get_option_no_throw(option) == nullptr) {
      complaint =
          fmt::format("no option '{}'{}", printable(option), hint_at(nearest_word(option, option_names(*scope))));
    }
  }
  if (complaint.empty() && scope == &tool_)
    complaint = fmt::format("a command is needed: {}", fmt::join(commands, ", "));
  if (complaint.empty()) complaint = printable(error.what());
  const std::string asked = scope == &tool_ ? "cairn" : "cairn " + scope->get_name();
  return fmt::format("cairn: {}\nTry '{} --help'.\n", complaint, asked);
}

}  // namespace cairn::cli
