#include "convert/replaceable_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "commit/dcp_names.h"
#include "core/little_endian.h"
#include "format/safetensors/header.h"
#include "format/safetensors/index.h"
#include "format/torch_file/state_file.h"
#include "storage/storage.h"

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
constexpr std::size_t kFirstBytes = std::max(StateFile::kFirstBytes, kLengthBytes + 1);

// The length of the header, and the header's first character.
bool begins_safetensors(std::span<const std::byte> first) {
  if (first.size() <= kLengthBytes || first[kLengthBytes] != std::byte{'{'}) return false;
  const auto length = load_little_endian<std::uint64_t>(first.data());
  return length >= 2 && length <= safetensors::kHeaderBytesMax;
}

}  // namespace

Result<void> check_replaceable(const OpenDirectory& open_directory, const std::filesystem::path& target) {
  const std::string name = target.filename().string();
  if (commit::is_dcp_file_name(name) || name == safetensors::kIndexName) return {};  // the claim refuses these names
  const std::filesystem::path parent = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  const auto is_missing = [](const Error& error) { return error.error_number() == ENOENT; };
  const Result<std::unique_ptr<storage::Storage>> storage = open_directory(parent);
  if (!storage) return is_missing(storage.error()) ? Result<void>() : Result<void>(storage.error());
  const auto file = (*storage)->open(name, true);
  if (!file) return is_missing(file.error()) ? Result<void>() : Result<void>(file.error());
  std::array<std::byte, kFirstBytes> buffer{};
  const std::span<std::byte> first = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), (*file)->size()));
  CAIRN_TRY((*file)->read_at(0, first));
  if (first.empty() || StateFile::is_begun_by(first) || begins_safetensors(first)) return {};
  return Error(
             ErrorCode::kInvalidArgument,
             "the target is a file that is no checkpoint, and is not replaced: choose another name, or remove the file")
      .file(target.string())
      .expected("an empty file, or a file of torch.save or safetensors");
}

}  // namespace cairn::checkpointer
