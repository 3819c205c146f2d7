#include "format/torch_file/torch_opening.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "format/json/utf8.h"
#include "format/torch_file/archive_reader.h"

namespace cairn::torch_file {
namespace {

// torch refuses other versions of the archive.
constexpr std::int64_t kVersionMin = 1;
constexpr std::int64_t kVersionMax = 10;

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const bool is_ascii = static_cast<unsigned char>(text.front()) < 0x80;
    const std::size_t length = is_ascii ? 1 : json::utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

Result<std::string> record_text(const ArchiveReader& archive, std::string_view name) {
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> bytes, archive.read(name));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

bool is_space(char character) { return std::isspace(static_cast<unsigned char>(character)) != 0; }

// The number at the begin of `text`, after white space; removed from `text`. 0 without a number.
std::int64_t take_number(std::string_view& text) {
  text.remove_prefix(static_cast<std::size_t>(std::find_if_not(text.begin(), text.end(), is_space) - text.begin()));
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return 0;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

Result<void> check_version(const ArchiveReader& archive) {
  const bool has_old_name = archive.directory().find(".data/version") != nullptr;
  const std::string_view name = has_old_name ? ".data/version" : "version";
  CAIRN_TRY_ASSIGN(const std::string text, record_text(archive, name));
  std::string_view rest = text;
  const std::int64_t version = take_number(rest);
  if (version >= kVersionMin && version <= kVersionMax) return {};
  return Error(ErrorCode::kCorrupt, "torch.load refuses the version of the archive")
      .expected("1 to 10 in the record '" + std::string(name) + "'")
      .actual("'" + text.substr(0, 20) + "'");
}

Result<void> check_alignment(const ArchiveReader& archive) {
  constexpr std::string_view kName = ".storage_alignment";
  if (archive.directory().find(kName) == nullptr) return {};
  CAIRN_TRY_ASSIGN(const std::string text, record_text(archive, kName));
  std::string_view rest = text;
  take_number(rest);
  const bool is_number = rest.size() != text.size() && std::all_of(rest.begin(), rest.end(), is_space);
  if (is_number && std::any_of(text.begin(), text.end(), [](char it) { return !is_space(it); })) return {};
  return Error(ErrorCode::kCorrupt, "torch.load refuses the alignment of the archive's storages")
      .expected("a number in the record '.storage_alignment'")
      .actual("'" + text.substr(0, 20) + "'");
}

}  // namespace

Result<void> check_torch_opens(const ByteSource& source) {
  const Result<ArchiveReader> archive = ArchiveReader::open(source);
  if (!archive && archive.error().code() == ErrorCode::kUnsupported) return {};
  if (!archive) return archive.error();
  const zip::Directory& directory = archive->directory();
  if (directory.torch_refusal) return *directory.torch_refusal;
  for (const zip::DirectoryEntry& entry : directory.entries) {
    if (is_utf8(entry.name) && is_utf8(directory.prefix)) continue;
    return Error(ErrorCode::kCorrupt, "torch.load refuses a zip record whose name is not UTF-8")
        .offset(entry.local_header_offset);
  }
  CAIRN_TRY(check_version(*archive));
  CAIRN_TRY(archive->big_endian());
  return check_alignment(*archive);
}

}  // namespace cairn::torch_file
