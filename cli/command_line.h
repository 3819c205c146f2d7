// CommandLine: the commands of the tool, their options, and the user's arguments.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "conversion.h"
#include "outcome.h"
#include "pruning.h"
#include "repairing.h"

namespace cairn::cli {

struct Arguments {
  std::filesystem::path directory;
  std::vector<std::filesystem::path> directories = {};  // of `verify`, `rm`, `pin` and `unpin`
  bool dry_run = false;                                 // of `clean`, `repair`, `prune` and `rm`
  bool json = false;
  bool quiet = false;  // without progress
  bool follow_links = false;
  std::filesystem::path other = {};   // the second checkpoint of `diff`
  std::string key = {};               // of `cat`
  std::filesystem::path npy = {};     // the file that `cat` writes
  std::filesystem::path output = {};  // the file that `trace` writes; empty: stdout
  bool overwrite = false;             // whether `cat` or `trace` replaces the file
  std::optional<double> tolerance = {};
  bool ignore_dtype = false;
  std::vector<std::string> patterns = {};
  std::optional<std::size_t> depth = {};
  std::string shell = {};
  std::string topic = {};             // of `help`: a command; empty: the tool
  bool manual = false;                // whether `help` prints the manual page
  std::string bytes = {};             // of the state of `bench`, as the user writes sizes; empty: the default
  std::filesystem::path target = {};  // of `convert` and `reshard`
  ConversionOptions conversion = {};
  PruningOptions pruning = {};
  RepairingOptions repairing = {};
  std::string note = {};        // of `pin`
  double interval_seconds = 1;  // of `watch`
  bool until_idle = false;
};

// One thread at a time. Not movable: CLI11 keeps pointers to the arguments.
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // `words` begins with the name of the program. Fills command() and arguments(). Returns an outcome if no command is
  // to run: kUsage, or the answer to --help, --version and `help`.
  std::optional<Outcome> parse(const std::vector<std::string>& words);

  const std::string& command() const { return command_; }
  const Arguments& arguments() const { return arguments_; }
  const CLI::App& tool() const { return tool_; }

 private:
  CLI::App* add_command(const char* name, const char* description);
  void add_verify();
  void add_repair();
  void add_prune();
  void add_watch();
  void add_rm_and_pins();
  void add_cat();
  void add_diff();
  CLI::App* add_command_on_directory(const char* name, const char* description, const char* directory);
  CLI::App* add_command_on_directories(const char* name, const char* description, const char* directories);
  void add_trace();
  void add_convert();
  void add_reshard();
  void add_allow_pickle(CLI::App& command);
  void add_quiet();
  void add_completion_and_help();
  Outcome answer_help() const;
  // The complaint about a wrong word or option, with a hint.
  std::string complaint_about(const std::vector<std::string>& words, const CLI::ParseError& error) const;

  CLI::App tool_;
  Arguments arguments_;
  std::string command_;
};

// The names of the commands, in the order of --help.
std::vector<std::string> command_names(const CLI::App& tool);
// The options of a command, or of the tool itself, with their dashes: "--json".
std::vector<std::string> option_names(const CLI::App& command);

}  // namespace cairn::cli
