// RankWriter: one rank's part of a save: lays out the rank's files, writes the files, and renames the files to their
// final names (steps 2 and 3 of commit/save_transaction.cc).
//
// Threads: one at a time. The sources are views: the owners keep the memory until write() returns, or until the gate
// in the options of write() is closed.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commit/rank_files.h"
#include "data_file/file_image.h"
#include "data_file/image_writer.h"
#include "format/safetensors/file_set.h"
#include "save/device_payloads.h"
#include "save/save_messages.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// The rank, and the properties of the save that its files depend on.
struct RankPart {
  commit::SaveTicket ticket;
  std::uint32_t rank = 0;
  std::uint32_t file_count = 0;  // of the whole save; 0 if unknown
  bool file_per_item = false;
  bool publishes = true;      // false: the transaction renames the files to their final names (model_commit.cc, kAlone)
  bool owns_sources = false;  // true: `fill` of the images owns all that the images refer to; no gate is needed
};

// A file of a save that is not laid out by the RankWriter. `fill` as in ImageFile.
struct NamedImage {
  std::string name;  // final name
  std::unique_ptr<data_file::Image> image;
  std::function<Result<void>(std::span<const data_file::PayloadPart>)> fill = {};
};

class RankWriter {
 public:
  // Places each source in a file. Uses no storage. `devices` reads the sources in the memory of devices; null if there
  // are none.
  static Result<std::unique_ptr<RankWriter>> make(const RankPart& part, std::span<const data_file::ItemSource> sources,
                                                  std::shared_ptr<DevicePayloads> devices = {});
  // The files of a model, whose sources are all tensors: `files` take the sources in their order.
  static Result<std::unique_ptr<RankWriter>> make_model(const RankPart& part,
                                                        std::span<const data_file::ItemSource> sources,
                                                        std::span<const AssignedFile> files,
                                                        safetensors::FileSet::Kind kind,
                                                        std::shared_ptr<DevicePayloads> devices = {});

  // Without locations().
  static std::unique_ptr<RankWriter> of_images(const RankPart& part, std::vector<NamedImage> images);

  // Makes the private folder. `storage` outlives the RankWriter. After a failure the call may be repeated, with another
  // storage: nothing of the first storage is used then.
  Result<void> enter(storage::Storage& storage);
  // After enter() with the same storage. Returns size and trailer checksum of each file, in the order of names(). Call
  // write() once.
  Result<std::vector<WrittenFile>> write(storage::Storage& storage, const data_file::WriteOptions& options);

  // Of the files, before write().
  std::uint64_t file_bytes() const;
  // The final names of the files.
  const std::vector<std::string>& names() const { return names_; }
  // The location of each source; `file` is an index into names().
  const std::vector<ItemLocation>& locations() const { return locations_; }
  // After write(): the written files. The destructor withdraws the files unless RankFiles::hand_over() was called.
  commit::RankFiles& files() { return *files_; }

 private:
  explicit RankWriter(const RankPart& part) : part_(part) {}
  Result<void> lay_out(std::span<const data_file::ItemSource> sources);
  using FilePayloads = std::vector<DevicePayloads::Payload>;
  // Keeps the payloads of the next file if one of them is on a device.
  void add_device_payloads(FilePayloads payloads);
  Result<void> read_devices(std::size_t file, std::span<const data_file::PayloadPart> parts,
                            const data_file::WriteOptions& options);

  RankPart part_;
  std::vector<std::string> names_;
  std::vector<std::string> private_names_;  // after enter()
  std::vector<ItemLocation> locations_;
  std::vector<NamedImage> images_;  // empty after write()
  std::shared_ptr<DevicePayloads> devices_;
  std::vector<FilePayloads> device_payloads_;  // by file, empty for a file without payloads on devices
  std::optional<commit::RankFiles> files_;
};

}  // namespace cairn::checkpointer
