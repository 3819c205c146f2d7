// A pass over a tensor as a watched call, which the ProgressWatches list.
#pragma once

#include <cairn/options.h>
#include <cairn/progress.h>
#include <cairn/result.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "events/work.h"
#include "storage/watched_call.h"

namespace cairn::checkpointer {

// Returns `pass(watch, copied)`. `pass` runs on the working thread, which calls no function of the caller: `copied` has
// none. kCancelled if options.interrupted() is true; `activity`: for that error.
template <typename Pass>
auto watched_pass(WorkKind kind, const std::filesystem::path& directory, std::string_view activity,
                  const TensorPassOptions& options, Pass pass) {
  TensorPassOptions copied = options;
  copied.interrupted = {};
  copied.progress = {};
  const events::Work work = events::Work::begin(kind, directory.native());
  auto result = storage::watched_call(
      {options.interrupted, work.setter(options.progress),
       Error(ErrorCode::kCancelled, "interrupted while " + std::string(activity)), options.deadlines},
      [pass = std::move(pass), copied = std::move(copied)](storage::Watch& watch) { return pass(watch, copied); });
  work.end(result.has_value());
  return result;
}

}  // namespace cairn::checkpointer
