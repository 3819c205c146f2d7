// read_value: a value of a checkpoint in one call.
//
//     const std::int64_t step = cairn::read_value<std::int64_t>("checkpoints/step-1000", "step").value();
//
// Thread-safe, and for a process alone.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>
#include <cairn/value.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace cairn {

// A type that a Value can hold: bool, std::int64_t, double, std::string, Bytes, List, Dict...; or Value.
template <typename T>
concept ValueType = std::same_as<T, Value> || requires(const Value& value) {
  { value.get_if<T>() } -> std::same_as<const T*>;
};

// The value under `fqn` in the checkpoint in `directory`; directory and errors as in open() and
// Checkpoint::read_value(). A value of another type than T is kInvalidArgument, with the key; but a double may be an
// integer in the checkpoint. T = Value takes every value.
template <ValueType T = Value>
Result<T> read_value(const std::filesystem::path& directory, std::string_view fqn, const LoadOptions& options = {}) {
  CAIRN_TRY_ASSIGN(const Checkpoint checkpoint, open_to_inspect(directory));
  CAIRN_TRY_ASSIGN(Value value, checkpoint.read_value(fqn, options));
  if constexpr (std::same_as<T, Value>) {
    return value;
  } else {
    if (const T* const found = std::as_const(value).template get_if<T>()) return *found;
    if constexpr (std::same_as<T, double>) {
      if (const auto* const whole = std::as_const(value).template get_if<std::int64_t>()) {
        return static_cast<double>(*whole);
      }
    }
    return Error(ErrorCode::kInvalidArgument, "the value has another type than the caller asked for")
        .key(fqn)
        .actual(to_string(value));
  }
}

}  // namespace cairn
