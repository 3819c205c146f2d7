#include "commit/meeting/save_marks.h"

#include <cerrno>
#include <span>
#include <utility>

#include "core/whole_number.h"
#include "format/manifest/outcome.h"
#include "format/manifest/varint.h"

namespace cairn::commit {
namespace {

using manifest::CodedReader;

constexpr std::string_view kFailurePrefix = "failed-";
constexpr std::string_view kFailureHint = "failure";
constexpr std::string_view kReportPrefix = "files-";
// The key of an object has at most 1,024 bytes, and the directory's prefix is a part of the key.
constexpr std::size_t kReportNameBytesMax = 400;
constexpr int kHintTriesMax = 4;
constexpr std::uint64_t kMarkBytesMax = std::uint64_t{1} << 28;

std::string failure_name(std::uint32_t rank) { return std::string(kFailurePrefix) + std::to_string(rank); }

// A mark's text follows its length: some file systems show a new file before the file is complete.
std::string whole_mark(std::string_view text) {
  std::string mark;
  manifest::append_text(mark, text);
  return mark;
}

// The inverse of whole_mark(); nullopt if the mark is missing or not complete.
std::optional<std::string> read_mark(const storage::Storage& storage, const std::string& path) {
  const Result<std::string> mark = storage::read_small(storage, path, kMarkBytesMax);
  if (!mark) return std::nullopt;
  CodedReader reader(*mark);
  const Result<std::string_view> text = reader.counted_text();
  return text && reader.left() == 0 ? std::optional<std::string>(*text) : std::nullopt;
}

}  // namespace

std::optional<std::uint32_t> SaveMarks::rank_of_failure(std::string_view name) {
  if (!name.starts_with(kFailurePrefix)) return std::nullopt;
  return whole_number<std::uint32_t>(name.substr(kFailurePrefix.size()));
}

Result<void> SaveMarks::write_failure(std::uint32_t rank, const Error& reason) {
  // Before the mark: a coordinator that sees the hint lists the folder until it finds the mark.
  (void)storage_.create_whole(path_of(kFailureHint), "", Durability::kBuffered);
  const std::string name = path_of(failure_name(rank));
  Result<void> left = storage_.create_whole(name, whole_mark(manifest::encode_outcome(reason)), Durability::kBuffered);
  const bool is_reported = left || left.error().error_number() == EEXIST;  // the rank has reported a failure already
  if (!is_reported && !storage_.replace(path_of(rank_lease_name(rank)), name)) return left;
  return {};
}

Result<void> SaveMarks::write_decision(const Decision& decision) {
  std::string text(1, decision.files_stay ? 1 : 0);
  if (decision.failure) {
    text += manifest::encode_outcome(*decision.failure);
  } else {
    manifest::append_texts(text, decision.warnings);
  }
  const std::string_view name = decision.failure ? kFailed : kCommitted;
  return storage_.create_whole(path_of(name), whole_mark(text), Durability::kBuffered);
}

Result<void> SaveMarks::write_files(std::uint32_t rank, const std::vector<manifest::CommitRecord::File>& files) {
  std::string text;
  for (const manifest::CommitRecord::File& file : files) {
    text += "-" + std::to_string(file.size) + "." + std::to_string(file.trailer_checksum);
  }
  const bool fits = text.size() <= kReportNameBytesMax;
  std::string name = std::string(kReportPrefix) + std::to_string(rank) + (fits ? text : "");
  Result<void> left = storage_.create_whole(path_of(name), whole_mark(text), Durability::kBuffered);
  return !left && left.error().error_number() == EEXIST ? Result<void>() : left;
}

std::optional<std::uint32_t> SaveMarks::rank_of_report(std::string_view name) {
  if (!name.starts_with(kReportPrefix)) return std::nullopt;
  name.remove_prefix(kReportPrefix.size());
  return whole_number<std::uint32_t>(name.substr(0, name.find('-')));
}

std::optional<std::vector<manifest::CommitRecord::File>> SaveMarks::files_of_report(std::string_view name) const {
  const std::size_t dash = name.find('-', kReportPrefix.size());
  std::optional<std::string> text(dash == std::string_view::npos ? "" : name.substr(dash));
  if (text->empty()) text = read_mark(storage_, path_of(name));
  if (!text) return std::nullopt;
  std::vector<manifest::CommitRecord::File> files;
  std::string_view rest = *text;
  while (!rest.empty()) {
    rest.remove_prefix(1);  // '-'
    const std::string_view entry = rest.substr(0, rest.find('-'));
    rest.remove_prefix(entry.size());
    const std::size_t point = entry.find('.');
    if (point == std::string_view::npos) return std::nullopt;
    const auto size = whole_number<std::uint64_t>(entry.substr(0, point));
    const auto checksum = whole_number<std::uint32_t>(entry.substr(point + 1));
    if (!size || !checksum) return std::nullopt;
    files.push_back({"", *size, *checksum});
  }
  return files;
}

void SaveMarks::hint_at_decision() {
  const std::string name = path_of(kLeaseName);
  if (storage_.has_rename()) {
    (void)storage_.touch(name);
    return;
  }
  // A heartbeat may come in between.
  for (int tries = 0; tries < kHintTriesMax; ++tries) {
    const Result<storage::TaggedContent> lease = storage_.read_tagged(name, kLeaseBytesMax);
    const std::optional<LeaseHolder> holder = lease ? decode_lease(lease->bytes) : std::nullopt;
    if (!holder || holder->is_closed || holder->is_decided) return;
    const auto outcome =
        storage_.write_if(name, lease->bytes + std::string(kDecidedLine), storage::WriteCondition::of_tag(lease->tag));
    if (!outcome || outcome->kind == storage::WriteOutcome::Kind::kWritten) return;
  }
}

Result<SaveMarks::Seen> SaveMarks::look() const {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> files, storage_.list(folder_));
  Seen seen;
  for (const storage::ListedFile& file : files) {
    if (file.name == kLeaseName) seen.coordinator = true;
    if (const auto rank = rank_of_lease(file.name)) seen.leases.insert(*rank);
    if (const auto rank = rank_of_failure(file.name)) {
      bool without_reason = false;
      if (std::optional<Error> failure = read_failure(*rank, without_reason)) {
        seen.failures.emplace(*rank, *std::move(failure));
        if (without_reason) seen.without_reason.insert(*rank);
      }
    }
    // `committed` is always right, and takes precedence over a `failed` concluded by a rank.
    const bool spoken = seen.decision && !seen.decision->failure;
    if (!spoken && (file.name == kCommitted || file.name == kFailed)) seen.decision = read_decision(file.name);
  }
  return seen;
}

Result<std::optional<Decision>> SaveMarks::find_decision() const {
  const Result<double> refreshed = storage_.has_rename() ? storage_.touched_at(folder_) : 0;
  std::optional<Decision> decision = read_decision(kCommitted);
  if (!decision) decision = read_decision(kFailed);
  if (!decision && !refreshed) return refreshed.error();
  return decision;
}

Result<bool> SaveMarks::has_failure() const {
  if (storage_.has_rename()) CAIRN_TRY(storage_.touched_at(folder_));
  return storage_.touched_at(path_of(kFailureHint)).has_value();
}

bool SaveMarks::has_failure_of(std::uint32_t rank) const {
  return storage_.touched_at(path_of(failure_name(rank))).has_value();
}

std::optional<Error> SaveMarks::read_failure(std::uint32_t rank, bool& without_reason) const {
  const std::string path = path_of(failure_name(rank));
  const std::optional<std::string> text = read_mark(storage_, path);
  if (text) {
    Result<std::string> outcome = manifest::decode_outcome(*text);
    if (!outcome) return std::move(outcome).error().rank(rank);
  }
  const auto lease = read_lease(storage_, path);
  if (!lease || !*lease) return std::nullopt;
  without_reason = true;
  return Error(ErrorCode::kUnavailable, "the rank failed; its failure mark lacks the reason, for want of space")
      .rank(rank);
}

std::optional<Decision> SaveMarks::read_decision(std::string_view name) const {
  const std::optional<std::string> text = read_mark(storage_, path_of(name));
  if (!text || text->empty()) return std::nullopt;
  Decision decision;
  decision.files_stay = text->front() != 0;
  const std::string_view rest = std::string_view(*text).substr(1);
  if (name == kFailed) {
    const Result<std::string> outcome = manifest::decode_outcome(rest);
    if (outcome) return std::nullopt;
    decision.failure = outcome.error();
  } else if (Result<std::vector<std::string>> warnings = CodedReader(rest).counted_texts()) {
    decision.warnings = std::move(*warnings);
  }
  return decision;
}

}  // namespace cairn::commit
