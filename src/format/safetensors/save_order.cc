#include "format/safetensors/save_order.h"

#include <utility>

#include "core/whole_number.h"
#include "format/manifest/commit_record.h"

namespace cairn::safetensors {
namespace {

constexpr std::string_view kSave = "save ";
constexpr std::string_view kJob = " of job ";
constexpr std::string_view kStart = " since ";
constexpr std::size_t kIdDigits = 32;

// Removes `part` with all that precedes `part` from `text`, and returns the text that preceded. Nullopt if `text` lacks
// `part`.
std::optional<std::string_view> take_until(std::string_view& text, std::string_view part) {
  const std::size_t found = text.find(part);
  if (found == std::string_view::npos) return std::nullopt;
  const std::string_view before = text.substr(0, found);
  text.remove_prefix(found + part.size());
  return before;
}

}  // namespace

std::string render_save_order(const SaveOrder& order) {
  return std::string(kSave) + std::to_string(order.save_number) + std::string(kJob) + order.job_id +
         std::string(kStart) + std::to_string(order.job_start);
}

std::optional<SaveOrder> read_save_order(std::string_view text) {
  const std::string_view whole = text;
  if (!take_until(text, kSave)) return std::nullopt;
  const auto number = take_until(text, kJob);
  if (!number) return std::nullopt;
  const auto job = take_until(text, kStart);
  if (!job || job->size() != kIdDigits) return std::nullopt;
  const auto save_number = whole_number<std::uint64_t>(*number);
  const auto job_start = whole_number<std::uint64_t>(text);
  if (!save_number || !job_start || *job_start > manifest::kJobStartMax) return std::nullopt;
  const bool is_hexadecimal = job->find_first_not_of("0123456789abcdef") == std::string_view::npos;
  SaveOrder order{std::string(*job), *job_start, *save_number};
  return is_hexadecimal && render_save_order(order) == whole ? std::optional(std::move(order)) : std::nullopt;
}

}  // namespace cairn::safetensors
