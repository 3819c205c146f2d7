// Result<T>: a value, or an Error. Error: a failure with its code, message, place, and the operation that failed.
//
// Error is the only error type of the library. Immutable once thrown or returned; copying is cheap and does not throw.
//
// Member names of Result are a subset of std::expected's: std::expected can replace Result later. value() on a failure
// throws the Error.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

// A code exists because a caller reacts differently to the code. The list is complete.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // fix the call: a shape, a dtype or an option does not fit
  kMissingKey,       // the checkpoint lacks a requested key: allow a partial load, or fix the state dict
  kNotFound,         // no checkpoint, or a file of the checkpoint is gone: choose a different checkpoint
  kCorrupt,          // bytes differ from the saved bytes: never retry, use an older checkpoint
  kUnsafe,           // reading more would run code, leave the directory, or take memory or time out of proportion
                     // to the input: opt in, or distrust the checkpoint
  kUnsupported,      // well-formed, but not read or written by this version
  kUnavailable,      // the system refused an operation (I/O error, permission): repair, then retry
  kNoSpace,          // the device or the quota is full: free space, then retry
  kSuperseded,       // a second save committed first: this save withdrew its files
  kReplaced,         // the checkpoint was replaced or removed during a read: open the directory again
  kCancelled,        // the caller asked to stop
  kInternal,         // a bug of Cairn: report the bug
};

// "kCorrupt" and so on.
std::string_view name_of(ErrorCode code);

// An exception of a foreign language, as plain data. The bindings make a record of a Python exception. The record
// travels with an Error to the remaining ranks. There the bindings make an exception of the record, without running any
// code of the exception's class.
struct ExceptionRecord {
  struct Frame {
    std::string file;
    std::uint64_t line = 0;
    std::string function;
    std::string text;  // the line's source
  };
  std::string class_name;     // with the module: "builtins.OSError"
  std::string text;           // the exception's message
  std::vector<Frame> frames;  // the place of the raise, the outermost call first
};

class [[nodiscard]] Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  // From an errno of a failed system call: ENOENT becomes kNotFound, ENOSPC and EDQUOT kNoSpace, EROFS
  // kInvalidArgument, the rest kUnavailable.
  static Error from_errno(int error_number, std::string message);
  // The error of a common operation of several ranks: the first of `failures`, with all failures as causes(). Each
  // failure has its rank; `failures` is not empty.
  static Error of_ranks(std::vector<Error> failures);

  // Setters of the place. Each sets a field and returns *this, for chains. The innermost caller wins: a field that is
  // already set stays.
  Error&& key(std::string_view key) &&;
  Error&& rank(std::int64_t rank) &&;
  Error&& file(std::string_view file) &&;
  Error&& offset(std::uint64_t offset) &&;  // bytes, in `file`
  Error&& expected(std::string_view text) &&;
  Error&& actual(std::string_view text) &&;
  // Adds the operation that failed, outermost last.
  Error&& while_doing(std::string_view action) &&;
  Error&& error_number(int number) &&;
  // The exception of the caller's language for which this error stands.
  Error&& exception(ExceptionRecord record) &&;
  // The identity of an earlier save whose failure this error reports, as a text that the caller chose. The text travels
  // with the error to the remaining ranks, which know the save by the same identity.
  Error&& earlier_save(std::string_view identity) &&;

  ErrorCode code() const noexcept;
  int error_number() const noexcept;  // errno, or 0
  const std::string& message() const noexcept;
  const std::optional<std::string>& key() const noexcept;
  const std::optional<std::int64_t>& rank() const noexcept;
  const std::optional<std::string>& file() const noexcept;
  const std::optional<std::uint64_t>& offset() const noexcept;
  const std::optional<std::string>& expected() const noexcept;
  const std::optional<std::string>& actual() const noexcept;
  const std::string& doing() const noexcept;          // empty if no caller set the operation
  const ExceptionRecord* exception() const noexcept;  // may be null; valid while this error lives unchanged
  const std::string& earlier_save() const noexcept;   // empty if this error reports no earlier save
  const std::vector<Error>& causes() const noexcept;  // of of_ranks(); empty otherwise

  // A message names an option of a call as "(option allow_pickle)": the tool and the Python package replace this text
  // by their own name of the option.
  //
  // All fields in a line: message, key, file, offset, expected, actual, and the operation. For an error of of_ranks():
  // a line for each failure.
  const char* what() const noexcept override;

 private:
  struct Detail;
  Detail& edit();                   // a private copy if the detail is shared
  std::shared_ptr<Detail> detail_;  // owned by the copies of a single error; never null
};

template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;

  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & { return throw_if_error(), std::get<0>(state_); }
  const T& value() const& { return throw_if_error(), std::get<0>(state_); }
  // By value: a loop over a part of a temporary Result must not outlive the Result.
  T value() && { return throw_if_error(), std::get<0>(std::move(state_)); }

  // Without a check: the caller has checked has_value().
  T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  T* operator->() noexcept { return std::get_if<0>(&state_); }
  const T* operator->() const noexcept { return std::get_if<0>(&state_); }

  const Error& error() const& noexcept { return *std::get_if<1>(&state_); }
  Error&& error() && noexcept { return std::move(*std::get_if<1>(&state_)); }

 private:
  void throw_if_error() const {
    if (!has_value()) throw Error(error());
  }
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }
  void value() const {
    if (error_) throw Error(*error_);
  }
  const Error& error() const& noexcept { return *error_; }
  Error&& error() && noexcept { return std::move(*error_); }

 private:
  std::optional<Error> error_;
};

}  // namespace cairn

// Returns the error of `expression` from the function, if `expression` failed. Cairn has only these two macros.
#define CAIRN_TRY(expression)                                                           \
  do {                                                                                  \
    if (auto cairn_try = (expression); !cairn_try) return std::move(cairn_try).error(); \
  } while (false)

// Declares or assigns `target` from the value of `expression`, or returns the error of `expression` from the function.
#define CAIRN_TRY_ASSIGN(target, expression) CAIRN_TRY_ASSIGN_AT(target, expression, __LINE__)
#define CAIRN_TRY_ASSIGN_AT(target, expression, line) \
  CAIRN_TRY_ASSIGN_AS(target, expression, CAIRN_TRY_JOIN(cairn_try_, line))
#define CAIRN_TRY_ASSIGN_AS(target, expression, name) \
  auto name = (expression);                           \
  if (!name) return std::move(name).error();          \
  target = std::move(name).value()
#define CAIRN_TRY_JOIN(a, b) CAIRN_TRY_JOIN_TEXT(a, b)
#define CAIRN_TRY_JOIN_TEXT(a, b) a##b
