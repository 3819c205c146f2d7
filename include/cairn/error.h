// Error: what went wrong, while doing what, and where. The one error type of the library.
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

// A code exists because a caller reacts differently to it; this is the whole list.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // fix the call: a shape, a dtype or an option does not fit
  kMissingKey,       // the checkpoint lacks a key that was asked for: allow a partial load, or fix the state dict
  kNotFound,         // no checkpoint, or a file of it is gone: pick another checkpoint
  kCorrupt,          // bytes are not what was saved: never retry, fall back to another checkpoint
  kUnsafe,           // reading on would run code, leave the directory, or take memory or time out of proportion to
                     // the input: opt in, or distrust the checkpoint
  kUnsupported,      // well-formed, but not something that this version reads or writes
  kUnavailable,      // the system refused an operation (I/O error, permission): repair, then retry
  kNoSpace,          // the device or the quota is full: free space, then retry
  kSuperseded,       // another save committed first: this one withdrew its files
  kReplaced,         // the checkpoint was replaced while it was being read: open it again
  kCancelled,        // the caller asked to stop
  kInternal,         // our bug: report it
};

// "kCorrupt" and so on.
std::string_view name_of(ErrorCode code);

// An exception of another language, as plain data: the bindings make one of a Python exception. It travels with an
// Error to the other ranks, where the bindings make an exception of it again without running any of its code.
struct ExceptionRecord {
  struct Frame {
    std::string file;
    std::uint64_t line = 0;
    std::string function;
    std::string text;  // the line's source
  };
  std::string class_name;     // with the module: "builtins.OSError"
  std::string text;           // the exception's message
  std::vector<Frame> frames;  // where it was raised, the outermost call first
};

class [[nodiscard]] Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  // From an errno of a failed system call: ENOENT becomes kNotFound, ENOSPC and EDQUOT kNoSpace, the rest kUnavailable.
  static Error from_errno(int error_number, std::string message);
  // What several ranks did together and some of them failed at: the first failure, with all of them as causes(). Each
  // has its rank; there is at least one.
  static Error of_ranks(std::vector<Error> failures);

  // Where it happened. Each fills in one field and returns *this, so that they chain; the innermost caller wins: a
  // field that is already set is left alone.
  Error&& key(std::string_view key) &&;
  Error&& rank(std::int64_t rank) &&;
  Error&& file(std::string_view file) &&;
  Error&& offset(std::uint64_t offset) &&;  // bytes, in `file`
  Error&& expected(std::string_view text) &&;
  Error&& actual(std::string_view text) &&;
  // Adds what was being done, outermost last.
  Error&& while_doing(std::string_view action) &&;
  Error&& error_number(int number) &&;
  // The exception of the caller's language for which this error stands.
  Error&& exception(ExceptionRecord record) &&;

  ErrorCode code() const noexcept;
  int error_number() const noexcept;  // errno, or 0
  const std::string& message() const noexcept;
  const std::optional<std::string>& key() const noexcept;
  const std::optional<std::int64_t>& rank() const noexcept;
  const std::optional<std::string>& file() const noexcept;
  const std::optional<std::uint64_t>& offset() const noexcept;
  const std::optional<std::string>& expected() const noexcept;
  const std::optional<std::string>& actual() const noexcept;
  const std::string& doing() const noexcept;          // empty if nobody said
  const ExceptionRecord* exception() const noexcept;  // null if there is none; valid while this error lives unchanged
  const std::vector<Error>& causes() const noexcept;  // of of_ranks(); empty otherwise

  // The whole story in one line: message, key, file, offset, expected, actual, and what was being done. Of of_ranks():
  // one line for each failure.
  const char* what() const noexcept override;

 private:
  struct Detail;
  Detail& edit();                   // a private copy if it is shared
  std::shared_ptr<Detail> detail_;  // shared by copies of one error only; never null
};

}  // namespace cairn
