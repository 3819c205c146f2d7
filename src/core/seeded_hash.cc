#include "core/seeded_hash.h"

#include <random>

#include "core/sip_hash.h"

namespace cairn {
namespace {

SipKey draw_seed() {
  std::random_device device;
  const auto draw = [&device] { return std::uint64_t{device()} << 32 | device(); };
  const std::uint64_t low = draw();
  return {low, draw()};
}

// Drawn while the library is loaded: a child made by fork cannot finish the first use of a thread that it lacks.
const SipKey seed = draw_seed();

}  // namespace

std::size_t SeededHash::operator()(std::string_view text) const noexcept {
  SipHash hash(seed);
  hash.add(text);
  return hash.finish();
}

std::size_t SeededHash::operator()(std::uint64_t number) const noexcept {
  SipHash hash(seed);
  hash.add(number);
  return hash.finish();
}

}  // namespace cairn
