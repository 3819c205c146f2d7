// SaveOrder: the entry "cairn_save_order" of a header's metadata: the place of the save that wrote a file in the order
// of all saves.
//
// The saves of a job are ordered by their numbers, and the jobs by their starts, as in the commit record of a DCP
// checkpoint (docs/format.md). Pure; the texts are untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::safetensors {

inline constexpr std::string_view kSaveOrderName = "cairn_save_order";

struct SaveOrder {
  std::string job_id;             // 32 hexadecimal digits
  std::uint64_t job_start = 0;    // nanoseconds since 1970
  std::uint64_t save_number = 0;  // counts the saves of the job

  friend bool operator==(const SaveOrder&, const SaveOrder&) = default;
};

// "save 3 of job 0123456789abcdef0123456789abcdef since 1700000000000000000"
std::string render_save_order(const SaveOrder& order);
// Nullopt for any text that render_save_order() does not return.
std::optional<SaveOrder> read_save_order(std::string_view text);

}  // namespace cairn::safetensors
