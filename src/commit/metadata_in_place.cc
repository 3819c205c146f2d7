#include "commit/metadata_in_place.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "core/checksum.h"

namespace cairn::commit {
namespace {

constexpr std::uint64_t kMetadataBytesMax = std::uint64_t{1} << 34;  // far above any real file
constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

// kNotFound if the server of a network file system has removed the file while the file was open.
Result<MetadataInPlace> read_opened(const storage::ReadableFile& file, WithoutRecord without_record) {
  MetadataInPlace now;
  now.present = true;
  now.size = file.size();
  now.tag = file.tag();
  if (now.size > kMetadataBytesMax) return now;
  // A damaged record must not prevent a save from replacing the checkpoint.
  Result<std::optional<manifest::CommitRecord>> record = manifest::read_only_commit_record(file);
  if (record && *record) {
    now.record = std::move(*record);
    return now;
  }
  if (!record && record.error().code() == ErrorCode::kNotFound) return record.error();
  if (without_record == WithoutRecord::kLeaveUnknown) return now;
  std::vector<std::byte> piece(std::min(now.size, kPieceBytes));
  for (std::uint64_t offset = 0; offset < now.size; offset += piece.size()) {
    piece.resize(std::min(now.size - offset, kPieceBytes));
    CAIRN_TRY(file.read_at(offset, piece));
    now.checksum = crc32(piece, now.checksum);
  }
  return now;
}

}  // namespace

bool MetadataInPlace::same_as(const MetadataInPlace& other) const {
  if (present != other.present) return false;
  if (record && other.record) return record->save_id == other.record->save_id;
  return record.has_value() == other.record.has_value() && size == other.size && checksum == other.checksum;
}

Result<MetadataInPlace> read_metadata_in_place(const storage::Storage& storage, const std::string& name,
                                               WithoutRecord without_record) {
  constexpr int kTriesMax = 16;
  for (int tries = 1;; ++tries) {
    // Stock readers follow a link, and Cairn counts the link's target as the checkpoint. The rename replaces the link,
    // not the target.
    const Result<std::unique_ptr<storage::ReadableFile>> file = storage.open(name, true);
    if (!file && file.error().error_number() != ESTALE) {
      if (file.error().code() == ErrorCode::kNotFound) return MetadataInPlace();
      return file.error();
    }
    Result<MetadataInPlace> read = file ? read_opened(**file, without_record) : file.error();
    // kNotFound after a successful open: the file was replaced meanwhile, and there is a newer file to read.
    if (read || read.error().code() != ErrorCode::kNotFound) return read;
    if (tries == kTriesMax) {
      return Error(ErrorCode::kUnavailable, "the file is replaced again and again while it is being read")
          .file(name)
          .actual(read.error().what());
    }
  }
}

}  // namespace cairn::commit
