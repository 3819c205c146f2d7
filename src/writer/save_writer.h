// SaveWriter: carries out saves whose bytes are staged in an arena: in threads of this process (thread_writer.h), or in
// a process of its own that outlives it (process_writer.h). Whoever stages sees no difference.
//
// Thread-safe; calls for one save come one after another.
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/commit_plan.h"
#include "commit/rank_save.h"
#include "format/manifest/trailer.h"
#include "staging/arena.h"

namespace cairn::writer {

// What the coordinator asks for before it plans.
struct ClaimRequest {
  std::string directory;  // is made if it is not there
  commit::SaveIdentity identity;
  std::uint32_t rank = 0;  // the coordinator's
  commit::ClaimOptions options = {};
  // The trainer goes on to begin() within `progress`: one that is stopped in between keeps others waiting.
  SaveDeadlines deadlines = {};
  mode_t umask = 022;  // the trainer's, for what is created
};

// Where the files of a rank lie in an arena: as they will lie on disk, one behind another. Immutable; of an unchanged
// state one layout serves save after save, and a writer process is sent it once.
struct StagedLayout {
  struct File {
    std::uint64_t arena_offset = 0;  // a multiple of 4096; there is room for the file rounded up to pages
    // Says where every payload lies. Frames and trailer are rendered by the writer in their places. Its save id says
    // nothing: that of the ticket counts.
    manifest::TrailerIndex index;
  };
  std::uint64_t id = 0;           // never used twice in a process
  std::uint64_t arena_bytes = 0;  // that it takes
  std::vector<File> files;
  std::shared_ptr<const commit::CommitPlan> commit_plan;  // the coordinator's, owned by its plans too; else null
};

// What is to be saved, and by whom.
struct SaveRequest {
  std::string directory;
  commit::SaveTicket ticket;
  commit::RankPlace place;
  std::shared_ptr<staging::Arena> arena;  // nobody else's until the save has ended
  std::shared_ptr<const StagedLayout> layout;
  std::vector<std::string> names;  // the final ones, of the layout's files
  std::string checkpoint_id;       // in `.metadata`: the coordinator's
  Durability durability = Durability::kDurable;
  std::size_t thread_count = 4;
  bool direct_io = true;
  bool trainer_waits = true;  // until the bytes are staged: only then does whoever writes them stand back
  SaveDeadlines deadlines = {};
  mode_t umask = 022;  // the trainer's, for what is created
};

// One save on its way. Dropped before staged(), it is abandoned; dropped later, it goes on.
class WriterSave {
 public:
  virtual ~WriterSave() = default;
  // Step 1 of commit/rank_save.cc; the coordinator's alone. The calling thread runs `meanwhile`, if there is one,
  // while the writer claims the directory; a request that could not be sent may skip it.
  virtual Result<commit::SaveTicket> claim(const ClaimRequest& request, const std::function<void()>& meanwhile) = 0;
  // Step 2. Does not wait for the writer, who takes its place among the ranks' writers and begins to write what is
  // staged; what it can't do ends the save.
  virtual Result<void> begin(const SaveRequest& request) = 0;
  // The bytes are there: the save now completes by itself. An error if it is not under way, or not any more: how it
  // ended, `ended` says.
  virtual Result<void> staged() = 0;
  // They will never be: all ranks fail with the reason. At any time before staged(), and more than once.
  virtual void abandon(const Error& reason) = 0;
  virtual commit::ProgressReport progress() const = 0;
};

class SaveWriter {
 public:
  virtual ~SaveWriter() = default;
  // Called once, on a thread of the writer's, when the save has ended in whatever way, also if it never began. The
  // arena is free by then.
  using Ended = std::function<void(Result<commit::RankSaveReport>)>;
  virtual Result<std::unique_ptr<WriterSave>> start(Ended ended) = 0;
  // Gets ready for saves out of this arena, so that the first of them is as quick as any.
  virtual Result<void> prepare(const std::shared_ptr<staging::Arena>& arena) {
    (void)arena;
    return {};
  }
};

}  // namespace cairn::writer
