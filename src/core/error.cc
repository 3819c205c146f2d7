#include <cairn/result.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

namespace cairn {

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "kInvalidArgument";
    case ErrorCode::kMissingKey: return "kMissingKey";
    case ErrorCode::kNotFound: return "kNotFound";
    case ErrorCode::kCorrupt: return "kCorrupt";
    case ErrorCode::kUnsafe: return "kUnsafe";
    case ErrorCode::kUnsupported: return "kUnsupported";
    case ErrorCode::kUnavailable: return "kUnavailable";
    case ErrorCode::kNoSpace: return "kNoSpace";
    case ErrorCode::kSuperseded: return "kSuperseded";
    case ErrorCode::kReplaced: return "kReplaced";
    case ErrorCode::kCancelled: return "kCancelled";
    case ErrorCode::kInternal: return "kInternal";
  }
  return "unknown";
}

struct Error::Detail {
  ErrorCode code = ErrorCode::kInternal;
  int error_number = 0;
  std::string message;
  std::string doing;
  std::optional<std::string> key;
  std::optional<std::int64_t> rank;
  std::optional<std::string> file;
  std::optional<std::uint64_t> offset;
  std::optional<std::string> expected;
  std::optional<std::string> actual;
  std::shared_ptr<const ExceptionRecord> exception;  // shared by copies of the error
  std::string earlier_save;
  std::vector<Error> causes;
  std::string text;  // the text returned by what()

  void compose() {
    text = message;
    if (key) text += "; key '" + *key + "'";
    if (rank) text += "; rank " + std::to_string(*rank);
    if (file) text += "; file '" + *file + "'";
    if (offset) text += "; offset " + std::to_string(*offset);
    if (expected) text += "; expected " + *expected;
    if (actual) text += "; found " + *actual;
    if (!doing.empty()) text += " (while " + doing + ")";
    if (causes.size() < 2) return;
    text += "; " + std::to_string(causes.size()) + " ranks failed:";
    for (const Error& cause : causes) text += std::string("\n  ") + cause.what();
  }
};

Error::Error(ErrorCode code, std::string message) : detail_(std::make_shared<Detail>()) {
  detail_->code = code;
  detail_->message = std::move(message);
  detail_->compose();
}

Error Error::from_errno(int error_number, std::string message) {
  ErrorCode code = ErrorCode::kUnavailable;
  // ESTALE: on a network file system, the file or its folder was removed or replaced after the open.
  if (error_number == ENOENT || error_number == ESTALE) code = ErrorCode::kNotFound;
  if (error_number == ENOSPC || error_number == EDQUOT || error_number == EFBIG) code = ErrorCode::kNoSpace;
  message += std::string(": ") + std::strerror(error_number);
  if (error_number == EROFS) {
    code = ErrorCode::kInvalidArgument;
    message += "; choose a directory of a file system that is mounted for writing";
  }
  Error error(code, std::move(message));
  error.edit().error_number = error_number;
  return error;
}

Error Error::of_ranks(std::vector<Error> failures) {
  assert(!failures.empty());
  Error error = failures.front();
  Detail& detail = error.edit();
  detail.causes = std::move(failures);
  detail.compose();
  return error;
}

Error::Detail& Error::edit() {
  if (detail_.use_count() != 1) detail_ = std::make_shared<Detail>(*detail_);
  return *detail_;
}

namespace {

// Fields already set are kept: the innermost caller has the most exact value.
template <typename T, typename U>
void set_once(std::optional<T>& field, U&& value) {
  if (!field) field = T(std::forward<U>(value));
}

}  // namespace

Error&& Error::key(std::string_view key) && {
  Detail& detail = edit();
  set_once(detail.key, key);
  detail.compose();
  return std::move(*this);
}

Error&& Error::rank(std::int64_t rank) && {
  Detail& detail = edit();
  set_once(detail.rank, rank);
  detail.compose();
  return std::move(*this);
}

Error&& Error::file(std::string_view file) && {
  Detail& detail = edit();
  set_once(detail.file, file);
  detail.compose();
  return std::move(*this);
}

Error&& Error::offset(std::uint64_t offset) && {
  Detail& detail = edit();
  set_once(detail.offset, offset);
  detail.compose();
  return std::move(*this);
}

Error&& Error::expected(std::string_view text) && {
  Detail& detail = edit();
  set_once(detail.expected, text);
  detail.compose();
  return std::move(*this);
}

Error&& Error::actual(std::string_view text) && {
  Detail& detail = edit();
  set_once(detail.actual, text);
  detail.compose();
  return std::move(*this);
}

Error&& Error::while_doing(std::string_view action) && {
  Detail& detail = edit();
  if (!detail.doing.empty()) detail.doing += ", while ";
  detail.doing += action;
  detail.compose();
  return std::move(*this);
}

Error&& Error::error_number(int number) && {
  edit().error_number = number;
  return std::move(*this);
}

Error&& Error::exception(ExceptionRecord record) && {
  edit().exception = std::make_shared<const ExceptionRecord>(std::move(record));
  return std::move(*this);
}

Error&& Error::earlier_save(std::string_view identity) && {
  edit().earlier_save = identity;
  return std::move(*this);
}

ErrorCode Error::code() const noexcept { return detail_->code; }
int Error::error_number() const noexcept { return detail_->error_number; }
const std::string& Error::message() const noexcept { return detail_->message; }
const std::optional<std::string>& Error::key() const noexcept { return detail_->key; }
const std::optional<std::int64_t>& Error::rank() const noexcept { return detail_->rank; }
const std::optional<std::string>& Error::file() const noexcept { return detail_->file; }
const std::optional<std::uint64_t>& Error::offset() const noexcept { return detail_->offset; }
const std::optional<std::string>& Error::expected() const noexcept { return detail_->expected; }
const std::optional<std::string>& Error::actual() const noexcept { return detail_->actual; }
const std::string& Error::doing() const noexcept { return detail_->doing; }
const ExceptionRecord* Error::exception() const noexcept { return detail_->exception.get(); }
const std::string& Error::earlier_save() const noexcept { return detail_->earlier_save; }
const std::vector<Error>& Error::causes() const noexcept { return detail_->causes; }
const char* Error::what() const noexcept { return detail_->text.c_str(); }

}  // namespace cairn
