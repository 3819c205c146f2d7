#include "core/place_text.h"

#include <cstdint>
#include <variant>

namespace cairn {

void append_step(std::string& place, const PathElement& step) {
  if (const auto* name = std::get_if<std::string>(&step)) {
    place += std::to_string(name->size()) + ':' + *name;
  } else {
    place += '#' + std::to_string(std::get<std::int64_t>(step)) + ':';
  }
}

std::string place_text(const Path& place) {
  std::string text;
  for (const PathElement& step : place) append_step(text, step);
  return text;
}

}  // namespace cairn
