// The finaliser of SplitMix64: turns consecutive numbers into pseudorandom numbers.
#pragma once

#include <cstdint>

namespace cairn {

constexpr std::uint64_t mixed_number(std::uint64_t number) {
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9;
  number = (number ^ (number >> 27)) * 0x94d049bb133111eb;
  return number ^ (number >> 31);
}

}  // namespace cairn
