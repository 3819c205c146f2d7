// Storage: the named files of one checkpoint directory: create, write at, publish, read, list, remove.
//
// A storage and its files are thread-safe, except where a function says otherwise. Names are relative to the directory,
// with '/' between folders. The caller states the durability of each file; a storage never guesses the durability from
// a name.
#pragma once

#include <cairn/options.h>
#include <cairn/result.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_source.h"
#include "os/parallel.h"
#include "storage/conditional_write.h"

namespace cairn::storage {

// A file open for reading. May outlive its storage.
//
// A storage may close the descriptor of an idle file and later reopen the file by its name: thousands of files can be
// open at a time. While the descriptor is open, reads work even if the name is removed or given to a new file. After
// the descriptor was closed, a read fails with kNotFound if the name is gone, and with kUnavailable if the name belongs
// to a different file or the file was changed. A read never returns the bytes of a different file.
class ReadableFile : public ByteSource {
 public:
  // The alignment of memory address, file offset and length for reads past the page cache, as powers of two; nullopt if
  // the file system can't read past the cache.
  struct DirectAlignment {
    std::size_t memory;
    std::size_t offset;
  };
  virtual std::optional<DirectAlignment> direct_alignment() const = 0;
  // As read_at, past the page cache. Address, offset and length must be aligned; the range may end in the file's last
  // block.
  virtual Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const = 0;
  // Whether most of the range is in the page cache. If so, read_at is faster than read_direct_at.
  virtual bool is_cached(std::uint64_t offset, std::uint64_t length) const = 0;
  // Hints, which change only speed and may do nothing. prefetch() starts to bring the range into the page cache;
  // drop_cached() removes the range's whole pages from the page cache.
  virtual void prefetch(std::uint64_t /*offset*/, std::uint64_t /*length*/) const {}
  virtual void drop_cached(std::uint64_t /*offset*/, std::uint64_t /*length*/) const {}
  // Of a file behind a network, where each request waits: the requests that a read of many ranges has in flight. 0: no
  // more than the threads of the caller.
  virtual std::size_t requests_in_flight() const { return 0; }
  // The tag of the version that is open, for conditions. Empty for a storage with a rename.
  virtual std::string tag() const { return {}; }
};

// A new file being written. Destruction without finish() abandons the file.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Offsets, lengths and addresses passed to write_at must be multiples of the returned number of bytes.
  virtual std::size_t write_alignment() const = 0;
  // Writes all of `data` or fails; continues after a short write. Several threads may write ranges that do not overlap.
  virtual Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) = 0;
  // Cuts the file to `size` bytes. If durable, syncs the file once, on the descriptor of the writes. A failure is
  // final.
  virtual Result<void> finish(std::uint64_t size, Durability durability) = 0;
};

struct CreateOptions {
  std::uint64_t size = 0;  // reserved at creation: a full disk is reported before the first write
  bool direct_io = false;  // write past the page cache if the file system can
  // Start the write-back of each range right after its write. The final sync then has little left to write.
  bool write_back = false;
  // The first bytes of the file that are written a second time, when all else is written.
  std::uint64_t rewritten_bytes = 0;
};

struct ListedFile {
  std::string name;
  bool is_folder = false;
  bool is_regular = false;  // not a folder, link, pipe or device
  // Of a regular file, as touched_at(). 0 for a storage with a rename, which would ask once more for each file.
  double touched_at = 0;
};

// The name of the lock file. The file exists only while a save commits or cleans up, or after a process was killed
// while committing or cleaning up.
inline constexpr std::string_view kLockName = ".cairn-lock";

// The names of the empty folders by which can_exchange_folders() finds its answer. A process that was killed meanwhile
// leaves them.
inline constexpr std::array<std::string_view, 2> kExchangeTrialNames{".cairn-one", ".cairn-two"};

// The begin of the name of the file by which keeps_conditions() finds its answer. A process that was killed meanwhile
// leaves the file.
inline constexpr std::string_view kConditionTrialPrefix = ".cairn-trial-";

// Releases the lock on destruction.
class StorageLock {
 public:
  virtual ~StorageLock() = default;
  // Whether the lock still excludes all processes and threads. False if a file server gave the lock to a second client
  // while the first client was unreachable, and false if the file system does not answer.
  virtual bool is_held() const = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // The exclusive lock of the directory, on the file kLockName; null if the file system has no locks. kUnavailable if
  // another process or thread holds the lock and the directory has not changed for some minutes, or if a single holder
  // keeps the lock for an hour.
  virtual Result<std::unique_ptr<StorageLock>> lock() = 0;
  // From now on lock() fails with kCancelled if it waits for another holder while `stop` is set.
  virtual void set_stop(std::shared_ptr<const os::StopFlag> stop) = 0;

  // Makes a new folder with access for the current user only, and holds the folder. All later operations on names in
  // the folder reach the held folder, even if another user puts a different folder in its place. After a replacement,
  // list, publish, replace, sync and remove_folder fail with kUnsafe; if the name is gone, they fail with kNotFound.
  virtual Result<void> make_folder(std::string_view name) = 0;
  // Holds a folder made by another process of the current user: kNotFound if the folder is missing, kUnsafe if the
  // folder belongs to a different user.
  virtual Result<void> join_folder(std::string_view name) = 0;
  virtual Result<void> remove_folder(std::string_view name) = 0;  // must be empty

  // Creates a regular file; fails if the name is taken, and follows no links.
  virtual Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) = 0;
  // Creates a small file. On file systems that allow it, the name appears only when all bytes are in the file.
  virtual Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) = 0;
  // Opens a regular file. With `follow_links` false, refuses a link in any part of the name. Never waits on a pipe.
  virtual Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const = 0;
  // Lists the folder by asking the file server, past the caches of the host. The list shows files created or removed by
  // other hosts before the call.
  virtual Result<std::vector<ListedFile>> list(std::string_view folder = "") const = 0;

  // Moves a file to its final name. Fails with kUnavailable and EEXIST if the final name is taken. On a file system
  // that can't move a name without overwriting, the old name may stay beside the new name. After any failure except
  // EEXIST the file may have either name.
  virtual Result<void> publish(std::string_view from, std::string_view to) = 0;
  // Moves a file over a name, with the mode of a regular file there. A reader finds the old file or the new file.
  virtual Result<void> replace(std::string_view from, std::string_view to) = 0;
  // Removes a regular file; a missing file is no error. A link, or a file that is not regular, fails with kUnsafe.
  virtual Result<void> remove(std::string_view name) = 0;

  // Makes creations, renames and removals in the folder survive a power cut. The empty name means the directory of the
  // storage; the sync then includes the directory's own entry in its parent.
  virtual Result<void> sync(std::string_view folder = "") = 0;

  // Overwrites the first bytes of an existing regular file, and sets its modification time to now. A concurrent reader
  // may see a mixture of old and new bytes. kNotFound if the file is missing.
  virtual Result<void> rewrite(std::string_view name, std::string_view bytes) = 0;
  // Sets the modification time of the file to now.
  virtual Result<void> touch(std::string_view name) = 0;
  // The modification time of a file or folder, in seconds since the epoch, by the clock of the storage; the empty name
  // means the directory of the storage. On a network file system the server's clock counts: compare the result only
  // with times from the same storage. Asks the file server, past the caches of the host: after the call for a folder,
  // open() finds the files that other hosts created in the folder before the call. A held folder with another folder at
  // its name: kUnsafe.
  virtual Result<double> touched_at(std::string_view name) const = 0;

  // The directory above, and a folder of this directory, as storages of their own, which may outlive this storage. No
  // link is followed to a folder: kUnsafe.
  virtual Result<std::unique_ptr<Storage>> open_parent() const = 0;
  virtual Result<std::unique_ptr<Storage>> open_folder(std::string_view name) const = 0;
  // Moves a folder to a name that is free or belongs to an empty folder; kUnavailable and EEXIST otherwise. A storage
  // of the folder stays usable. After any failure except EEXIST the folder may have either name.
  virtual Result<void> move_folder(std::string_view from, std::string_view to) = 0;
  // Exchanges the names of two folders in one step: a reader finds the old folder or the new folder. kUnsupported if
  // the file system can't. After any other failure the folders may have either name.
  virtual Result<void> exchange_folders(std::string_view one, std::string_view two) = 0;
  // Whether exchange_folders() works in this directory: exchanges two folders that it makes and removes.
  virtual Result<bool> can_exchange_folders() = 0;

  // Whether the storage has publish(), replace() and the moves of folders. Without: each file is created with its final
  // name, which appears with WritableFile::finish(); a save commits by write_if(); lock() returns null.
  virtual bool has_rename() const { return true; }
  // The bytes of a request that suits a new file of `file_bytes` bytes: a write of that length at a multiple of it is
  // not copied. 0: any length.
  virtual std::uint64_t preferred_write_bytes(std::uint64_t /*file_bytes*/) const { return 0; }
  // Only of a storage without has_rename(); kUnsupported otherwise. Reads a small file, replaces or creates a small
  // file if the condition holds, and removes a file of the tag. kNotFound: read_tagged() found no file.
  virtual Result<TaggedContent> read_tagged(std::string_view name, std::uint64_t bytes_max) const;
  virtual Result<WriteOutcome> write_if(std::string_view name, std::string_view bytes, const WriteCondition& condition);
  // After an error nothing was written or removed, and will not be: all doubt is kUnknown.
  virtual Result<WriteOutcome> remove_if(std::string_view name, const std::string& tag);
  // The time by the clock of touched_at(), in seconds since the epoch.
  virtual Result<double> now() const;
  // Whether write_if() keeps the conditions, according to trials once in a process. False for a store that ignores
  // them.
  virtual Result<bool> keeps_conditions() { return true; }
  // Ends the unfinished writes of those files for whose names `is_abandoned` returns true, of any process: their bytes
  // take room in the store, and no list shows them.
  virtual Result<void> abandon_writes(const std::function<bool(std::string_view name)>& /*is_abandoned*/) { return {}; }

  // Removes files as remove() does, in batches if the storage can. Returns an error for each file that is still there.
  virtual std::vector<Error> remove_all(std::span<const std::string> names);
};

// Reads a small file in one call; kCorrupt if the file is larger than `bytes_max`. Follows links only with
// `follow_links`.
Result<std::string> read_small(const Storage& storage, std::string_view name, std::uint64_t bytes_max,
                               bool follow_links = false);

// Refuses (kUnsafe) a name that is empty or absolute, or that leaves the directory through "..".
Result<void> check_name(std::string_view name);

}  // namespace cairn::storage
