// Storage: the named files of one checkpoint directory: create, write at, publish, read, list, remove.
//
// Thread-safe, as are the files that it gives out, but for what a function says. Names are relative to the directory,
// with '/' between folders. Durability is always asked for, never guessed from a name.
#pragma once

#include <cairn/durability.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/byte_source.h"

namespace cairn::storage {

// A file open for reading. It may outlive its storage.
//
// A storage may close a file that is not being read and open it again by its name, so that thousands can be open at a
// time. Until then it is read even if its name is gone or another file has it; afterwards reading fails: with kNotFound
// if the name is gone, with kUnavailable if the file is another one or was changed. Never are the bytes of another file
// given out.
class ReadableFile : public ByteSource {
 public:
  // What a read past the page cache asks of memory address, offset and length (powers of two); nullopt: not possible.
  struct DirectAlignment {
    std::size_t memory;
    std::size_t offset;
  };
  virtual std::optional<DirectAlignment> direct_alignment() const = 0;
  // As read_at, past the page cache. All three numbers must be aligned; the end may lie in the file's last block.
  virtual Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const = 0;
  // Whether most of the range is in the page cache, so that read_at is the fast way.
  virtual bool is_cached(std::uint64_t offset, std::uint64_t length) const = 0;
};

// A new file being written. Dropping it without finish() abandons it.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Offsets, lengths and addresses given to write_at must be multiples of this.
  virtual std::size_t write_alignment() const = 0;
  // Writes all of `data` or fails; a short write is continued inside. From several threads for ranges that do not
  // overlap.
  virtual Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) = 0;
  // Cuts the file to `size` and, if durable, syncs it: on this descriptor, once. A failure is final.
  virtual Result<void> finish(std::uint64_t size, Durability durability) = 0;
};

struct CreateOptions {
  std::uint64_t size = 0;  // reserved at once, so that a full disk is seen before anything is written
  bool direct_io = false;  // go past the page cache if the file system can
  // What stays in the page cache is written back as it comes, so that a later sync finds little to do.
  bool write_back = false;
};

struct ListedFile {
  std::string name;
  bool is_folder = false;
  bool is_regular = false;  // neither folder, link, pipe nor device
};

// The file that is locked. It is in the directory only while a save commits or cleans up, or after one was killed
// there.
inline constexpr std::string_view kLockName = ".cairn-lock";

// Held until destroyed.
class StorageLock {
 public:
  virtual ~StorageLock() = default;
  // Whether the lock still excludes others. A file server may have given it to another client while this one could not
  // be reached; false also if the file system does not answer.
  virtual bool is_held() const = 0;
};

class Storage {
 public:
  virtual ~Storage() = default;

  // The exclusive lock of the directory, on the file kLockName; null where the file system has none. kUnavailable if
  // others hold it, and nothing changes in the directory, for some minutes.
  virtual Result<std::unique_ptr<StorageLock>> lock() = 0;

  // A folder that must be new, and that only this user may enter. The storage holds it from then on: what is done to
  // names in it is done in this very folder, even if another one is put in its place. list, publish, replace, sync and
  // remove_folder notice that (kUnsafe); if the name is gone they say kNotFound.
  virtual Result<void> make_folder(std::string_view name) = 0;
  // Holds a folder that another process of this user made: kNotFound if it is not there, kUnsafe if it is not this
  // user's.
  virtual Result<void> join_folder(std::string_view name) = 0;
  virtual Result<void> remove_folder(std::string_view name) = 0;  // must be empty

  // A new regular file: never an existing one, never through a link.
  virtual Result<std::unique_ptr<WritableFile>> create(std::string_view name, const CreateOptions& options) = 0;
  // A new small file, complete: it appears under its name with all its bytes (where the file system can do that).
  virtual Result<void> create_whole(std::string_view name, std::string_view bytes, Durability durability) = 0;
  // A regular file; `follow_links` false refuses a link in any part of the name. Never waits on a pipe.
  virtual Result<std::unique_ptr<ReadableFile>> open(std::string_view name, bool follow_links) const = 0;
  // Asks a server anew, past what this host remembers of the folder: what others made or removed is seen from now on.
  virtual Result<std::vector<ListedFile>> list(std::string_view folder = "") const = 0;

  // Gives a file its final name, which must be free (kUnavailable with EEXIST otherwise). Where a name can't be moved,
  // only given, the old one may be left beside it. After another failure the file may have either name.
  virtual Result<void> publish(std::string_view from, std::string_view to) = 0;
  // Gives a file a name that may be taken: readers see the old file or the new one, never neither.
  virtual Result<void> replace(std::string_view from, std::string_view to) = 0;
  // Gone already is fine. Only regular files that are reached through no link are removed (kUnsafe otherwise).
  virtual Result<void> remove(std::string_view name) = 0;

  // Makes creations, renames and removals in the directory (or the folder) survive a power cut; with the empty name
  // also the creation of the directory itself.
  virtual Result<void> sync(std::string_view folder = "") = 0;

  // Writes over the first bytes of a regular file that is there, which so is changed now. A reader may find some of the
  // old bytes and some of the new. kNotFound if it is not there.
  virtual Result<void> rewrite(std::string_view name, std::string_view bytes) = 0;
  // Marks the file as changed now.
  virtual Result<void> touch(std::string_view name) = 0;
  // When a file or folder was last changed, in seconds since the epoch by the clock that the storage takes its times
  // from. On a network file system this is the server's clock: compare it with other times of the same storage only.
  virtual Result<double> touched_at(std::string_view name) const = 0;
};

// A small file in one call; kCorrupt if it is larger than `bytes_max`. Links are followed only when asked.
Result<std::string> read_small(const Storage& storage, std::string_view name, std::uint64_t bytes_max,
                               bool follow_links = false);

// Refuses (kUnsafe) a name that is empty, absolute, or leaves the directory through "..".
Result<void> check_name(std::string_view name);

}  // namespace cairn::storage
