#include "checkpoint/recorded_files.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "commit/directory/new_directory.h"
#include "format/manifest/commit_record.h"

namespace cairn::checkpointer {
namespace {

std::optional<Error> compare(const storage::Storage& storage, const manifest::CommitRecord::File& file) {
  const auto opened = storage.open(file.name, false);
  if (!opened && opened.error().code() != ErrorCode::kNotFound) return opened.error();
  if (!opened) return Error(ErrorCode::kCorrupt, "a file of the save is missing").file(file.name);
  if ((*opened)->size() == file.size) return std::nullopt;
  return Error(ErrorCode::kCorrupt, "the size of a file differs from the record of the save")
      .file(file.name)
      .expected(std::to_string(file.size) + " bytes")
      .actual(std::to_string((*opened)->size()) + " bytes");
}

}  // namespace

std::vector<Error> compare_recorded_files(const storage::Storage& storage) {
  std::vector<Error> problems;
  const std::string name(commit::kDirectoryRecordName);
  const auto opened = storage.open(name, false);
  if (!opened) {
    if (opened.error().code() != ErrorCode::kNotFound) problems.push_back(opened.error());
    return problems;
  }
  const auto record = manifest::read_only_commit_record(**opened);
  if (!record || !*record) {
    problems.push_back((record ? Error(ErrorCode::kCorrupt, "the file holds no record of a save") : record.error()));
    problems.back() = std::move(problems.back()).file(name);
    return problems;
  }
  for (const manifest::CommitRecord::File& file : (*record)->files) {
    if (std::optional<Error> problem = compare(storage, file)) problems.push_back(*std::move(problem));
  }
  return problems;
}

}  // namespace cairn::checkpointer
