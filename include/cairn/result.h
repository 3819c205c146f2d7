// Result<T>: a value, or an Error.
//
// Member names are a subset of std::expected's: std::expected can replace Result later. value() on a failure throws the
// Error.
#pragma once

#include <cairn/error.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace cairn {

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
