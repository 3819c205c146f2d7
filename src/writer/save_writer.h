// SaveWriter: carries out saves whose bytes are staged in an arena: in threads of this process (thread_writer.h), or in
// a separate process with a longer life (process_writer.h). Callers see no difference.
//
// Thread-safe; calls for one save must not overlap.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commit/meeting/commit_plan.h"
#include "commit/meeting/rank_save.h"
#include "data_file/plain_file.h"
#include "events/operation.h"
#include "format/manifest/trailer.h"
#include "staging/arena.h"

namespace cairn::writer {

// The coordinator's request before planning.
struct ClaimRequest {
  // Made if missing. Of a save of a whole directory: its new directory (commit/directory/new_directory.h).
  std::string directory;
  commit::SaveIdentity identity;
  std::uint32_t rank = 0;  // of the coordinator
  commit::ClaimOptions options = {};
  // After the claim, the trainer calls begin() within `progress`: a trainer that is stopped in between would block
  // other saves.
  SaveDeadlines deadlines = {};
  mode_t umask = 022;  // of the trainer, for new files and directories
};

// The places of a rank's files in an arena: each file in its on-disk form, one file behind another. Immutable. An
// unchanged state uses one layout for all saves, and a writer process receives the layout once.
struct StagedLayout {
  struct File {
    std::uint64_t arena_offset = 0;  // a multiple of 4096; the arena has space for the file rounded up to pages
    // Holds the place of every payload. The writer renders frames and trailer in their places. The save id in the index
    // is ignored: the ticket's save id counts.
    manifest::TrailerIndex index;
    std::optional<data_file::PlainFile> plain = {};  // set for a file without a trailer; `index` is then unused
  };
  std::uint64_t id = 0;           // unique within a process
  std::uint64_t arena_bytes = 0;  // bytes of the arena that the layout takes
  std::vector<File> files;
  // Set for the coordinator, which shares ownership; otherwise null.
  std::shared_ptr<const commit::CommitPlan> commit_plan;
  // Set instead for the coordinator of a save of a whole directory: the files, by rank.
  struct NamedFile {
    std::string name;
    std::uint64_t bytes = 0;
    friend bool operator==(const NamedFile&, const NamedFile&) = default;
  };
  std::optional<std::vector<std::vector<NamedFile>>> directory_files = {};

  bool is_of_coordinator() const { return commit_plan != nullptr || directory_files; }
};

// The state to save, and the rank that saves.
struct SaveRequest {
  std::string directory;
  commit::SaveTicket ticket;
  commit::RankPlace place;
  std::shared_ptr<staging::Arena> arena;  // used by no other save until this save has ended
  std::shared_ptr<const StagedLayout> layout;
  std::vector<std::string> names;  // final names, of the layout's files
  std::string checkpoint_id;       // in `.metadata`; set by the coordinator
  std::string notes;               // as `checkpoint_id`; checked
  Durability durability = Durability::kDurable;
  std::size_t thread_count = 4;
  bool direct_io = true;
  bool trainer_waits = true;  // true: the writer lowers its priority only when the bytes are staged; false: at once
  SaveDeadlines deadlines = {};
  mode_t umask = 022;  // of the trainer, for new files and directories
};

// A save in flight. Dropping the object before staged() abandons the save; dropping the object later does not affect
// the save.
class WriterSave {
 public:
  virtual ~WriterSave() = default;
  // Step 1 of commit/meeting/rank_save.cc, for the coordinator only. The calling thread runs `meanwhile`, if set, while
  // the writer claims the directory; `meanwhile` may not run if the request could not be sent.
  virtual Result<commit::SaveTicket> claim(const ClaimRequest& request, const std::function<void()>& meanwhile) = 0;
  // Step 2. Does not wait for the writer. The writer joins the other ranks' writers and begins to write staged bytes; a
  // failure ends the save.
  virtual Result<void> begin(const SaveRequest& request) = 0;
  // All bytes are staged: the save completes without more calls. Fails if the save has not begun or has ended;
  // `ended` reports the outcome.
  virtual Result<void> staged() = 0;
  // The bytes will never be staged: all ranks fail with `reason`. May be called at any time before staged(), and
  // repeatedly.
  virtual void abandon(const Error& reason) = 0;
  virtual commit::ProgressReport progress() const = 0;
};

// This rank's files have their final names.
struct WrittenFiles {
  std::uint64_t bytes = 0;
  events::StepTime time;
  std::int64_t process_id = 0;  // of the writer
};

class SaveWriter {
 public:
  virtual ~SaveWriter() = default;
  // Called once, on a thread of the writer, when the save has ended, with or without success, also if the save never
  // began. The arena is free by then.
  using Ended = std::function<void(Result<commit::RankSaveReport>)>;
  // Called once before that, on a thread of the writer, unless the save fails earlier. Empty: not reported.
  using Written = std::function<void(const WrittenFiles&)>;
  virtual Result<std::unique_ptr<WriterSave>> start(Ended ended, Written written = {}) = 0;
  // Prepares for saves from `arena`: the first save is then as fast as later saves.
  virtual Result<void> prepare(const std::shared_ptr<staging::Arena>& arena) {
    (void)arena;
    return {};
  }
};

}  // namespace cairn::writer
