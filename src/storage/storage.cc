#include "storage/storage.h"

#include <algorithm>
#include <utility>

namespace cairn::storage {
namespace {

Error no_conditions(std::string_view name) {
  return Error(ErrorCode::kUnsupported, "the storage has no conditional writes").file(name);
}

}  // namespace

Result<TaggedContent> Storage::read_tagged(std::string_view name, std::uint64_t /*bytes_max*/) const {
  return no_conditions(name);
}
Result<WriteOutcome> Storage::write_if(std::string_view name, std::string_view /*bytes*/,
                                       const WriteCondition& /*condition*/) {
  return no_conditions(name);
}
Result<WriteOutcome> Storage::remove_if(std::string_view name, const std::string& /*tag*/) {
  return no_conditions(name);
}

Result<double> Storage::now() const { return Error(ErrorCode::kUnsupported, "the storage has no clock of its own"); }
std::vector<Error> Storage::remove_all(std::span<const std::string> names) {
  std::vector<Error> failures;
  for (const std::string& name : names) {
    if (Result<void> removed = remove(name); !removed) failures.push_back(std::move(removed).error());
  }
  return failures;
}

Result<std::string> read_small(const Storage& storage, std::string_view name, std::uint64_t bytes_max,
                               bool follow_links) {
  if (!storage.has_rename()) {  // one request
    CAIRN_TRY_ASSIGN(TaggedContent content, storage.read_tagged(name, bytes_max));
    return std::move(content.bytes);
  }
  CAIRN_TRY_ASSIGN(const std::unique_ptr<ReadableFile> file, storage.open(name, follow_links));
  if (file->size() > bytes_max) {
    return Error(ErrorCode::kCorrupt, "the file is larger than allowed")
        .file(name)
        .expected("at most " + std::to_string(bytes_max) + " bytes")
        .actual(std::to_string(file->size()));
  }
  std::string bytes(file->size(), '\0');
  CAIRN_TRY(file->read_at(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<void> check_name(std::string_view name) {
  const auto refuse = [&](std::string_view why) -> Result<void> {
    return Error(ErrorCode::kUnsafe, "a file name that " + std::string(why)).file(name);
  };
  if (name.empty()) return refuse("is empty");
  if (name.find('\0') != std::string_view::npos) return refuse("holds a zero byte");
  if (name.front() == '/') return refuse("is absolute");
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    if (name.substr(begin, end - begin) == "..") return refuse("leaves the checkpoint's directory");
    begin = end + 1;
  }
  return {};
}

}  // namespace cairn::storage
