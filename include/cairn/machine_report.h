// examine_machine: what a machine and a directory offer to saves and loads, and what Cairn uses of this.
#pragma once

#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

struct MachineFinding {
  enum class Unit : std::uint8_t { kBytes, kBytesPerSecond };

  std::string subject;                       // in snake_case: "direct_io"
  std::string found;                         // what is there
  std::string use;                           // what Cairn does in consequence
  std::string advice = {};                   // for the user; empty if nothing is weak
  std::optional<std::uint64_t> number = {};  // if the subject is a size or a rate
  Unit unit = Unit::kBytes;                  // of `number`
  bool is_obstacle = false;                  // durable saves into the directory fail because of this
};

struct MachineOptions {
  // The largest size of the file whose writing and reading is timed. A directory with less than four times the room
  // gets a smaller file, or none.
  std::uint64_t trial_bytes = std::uint64_t{256} << 20;
  // Neither the writing nor the reading goes on for longer; the rates are then of a part of the file.
  std::chrono::milliseconds trial_time{3000};
  // For the calls into the storage. A storage that exceeds a deadline is a finding.
  SaveDeadlines deadlines{std::chrono::seconds(30), std::chrono::minutes(1), std::chrono::seconds(30)};
  // Called every few milliseconds on the calling thread, while the directory is examined. True ends the call:
  // kCancelled.
  std::function<bool()> interrupted = {};
};

// Examines the directory by files in a new private folder `.cairn-doctor-*`, and removes the folder before the call
// returns, whatever the result; a storage that hangs has two seconds for the removal. The timed file has no name: a
// killed process leaves at most the folder with a few bytes. The names of the directory are neither listed nor changed.
// A directory that can't be written, or whose storage hangs, is a finding. Fails with kNotFound if the directory is
// missing, and with kInvalidArgument if the path is no directory.
Result<std::vector<MachineFinding>> examine_machine(const std::filesystem::path& directory,
                                                    const MachineOptions& options = {});

}  // namespace cairn
