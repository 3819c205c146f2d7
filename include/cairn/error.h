// Error: a failure with its code, message, place, and the operation that failed. The only error type of the library.
//
// Immutable once thrown or returned; copying is cheap and does not throw.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
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
  kReplaced,         // a save replaced the checkpoint during a read: open the directory again
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

}  // namespace cairn
