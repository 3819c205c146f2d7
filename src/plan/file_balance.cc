#include "plan/file_balance.h"

#include <algorithm>
#include <cmath>

namespace cairn::plan {
namespace {

constexpr std::uint64_t kCutBytesMin = 2 * 1024 * 1024;

}  // namespace

std::vector<std::vector<ItemPart>> balance_files(std::span<const BalancedItem> items, std::size_t file_count) {
  double total = 0;
  for (const BalancedItem& item : items) total += static_cast<double>(item.bytes);
  const double share = total / static_cast<double>(file_count);
  // The file in which a byte of the whole sequence lies.
  const auto file_at = [&](double byte) {
    const double file = share > 0 ? std::floor(byte / share) : 0;
    return std::min(static_cast<std::size_t>(std::max(file, 0.0)), file_count - 1);
  };
  std::vector<std::vector<ItemPart>> files;
  std::size_t last_file = file_count;  // of the part added last
  const auto add = [&](std::size_t file, const ItemPart& part) {
    if (file != last_file) files.emplace_back();
    last_file = file;
    files.back().push_back(part);
  };
  double begin = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const BalancedItem& item = items[i];
    const auto bytes = static_cast<double>(item.bytes);
    if (item.rows <= 1 || item.bytes < kCutBytesMin) {
      add(file_at(begin + bytes / 2), {i, 0, item.rows});
      begin += bytes;
      continue;
    }
    const double row_bytes = bytes / static_cast<double>(item.rows);
    for (std::int64_t row = 0; row < item.rows;) {
      const std::size_t file = file_at(begin + (static_cast<double>(row) + 0.5) * row_bytes);
      const double file_end = share * static_cast<double>(file + 1);
      auto end = static_cast<std::int64_t>(std::llround((file_end - begin) / row_bytes));
      end = file + 1 == file_count ? item.rows : std::clamp(end, row + 1, item.rows);
      add(file, {i, row, end});
      row = end;
    }
    begin += bytes;
  }
  return files;
}

}  // namespace cairn::plan
