#include "format/compact_catalog/run_column.h"

#include <algorithm>
#include <limits>

#include "core/checked.h"

namespace cairn::compact_catalog {
namespace {

__extension__ using Int128 = __int128;

constexpr std::int64_t kIntegerMax = std::numeric_limits<std::int64_t>::max();

bool is_in_range(Int128 value) { return value >= 0 && value <= kIntegerMax; }

// first + (first + step) + ... of `count` values, each in range.
Int128 sum_of(std::int64_t first, std::int64_t step, std::uint64_t count) {
  const Int128 last = static_cast<Int128>(first) + static_cast<Int128>(step) * (static_cast<Int128>(count) - 1);
  // At most 2^64 * 2^63: in range of 128 bits.
  return count == 0 ? 0 : (first + last) * static_cast<Int128>(count) / 2;
}

}  // namespace

void append_signed(std::string& out, std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  manifest::append_varint(out, (bits << 1) ^ (value < 0 ? ~std::uint64_t{0} : 0));
}

Result<std::int64_t> read_signed(manifest::CodedReader& reader) {
  CAIRN_TRY_ASSIGN(const std::uint64_t coded, reader.varint());
  return static_cast<std::int64_t>((coded >> 1) ^ ((coded & 1) != 0 ? ~std::uint64_t{0} : 0));
}

void RunColumn::append(std::string& out, std::span<const std::int64_t> values, std::int64_t expected) {
  for (std::size_t begin = 0; begin < values.size();) {
    const std::int64_t step = begin + 1 < values.size() ? values[begin + 1] - values[begin] : 0;
    std::size_t end = begin + 1;
    while (end < values.size() && values[end] - values[end - 1] == step) ++end;
    manifest::append_varint(out, end - begin);
    append_signed(out, values[begin] - expected);
    if (end - begin > 1) append_signed(out, step);
    expected = values[end - 1];
    begin = end;
  }
}

Result<RunColumn> RunColumn::read(manifest::CodedReader& reader, std::uint64_t count, std::int64_t expected) {
  RunColumn column;
  while (column.count_ < count) {
    CAIRN_TRY_ASSIGN(const std::uint64_t length, reader.varint());
    if (length == 0 || length > count - column.count_) return reader.damaged("a run of a length that cannot be");
    CAIRN_TRY_ASSIGN(const std::int64_t difference, read_signed(reader));
    const Int128 first = static_cast<Int128>(expected) + difference;
    Run run;
    run.begin = column.count_;
    if (length > 1) {
      CAIRN_TRY_ASSIGN(run.step, read_signed(reader));
    }
    const Int128 last = first + static_cast<Int128>(run.step) * (static_cast<Int128>(length) - 1);
    if (!is_in_range(first) || !is_in_range(last)) return reader.damaged("a number that cannot be");
    run.first = static_cast<std::int64_t>(first);
    expected = static_cast<std::int64_t>(last);
    column.runs_.push_back(run);
    column.count_ += length;
  }
  return column;
}

std::uint64_t RunColumn::end_of(const Run& run) const {
  const auto next = static_cast<std::size_t>(&run - runs_.data()) + 1;
  return next < runs_.size() ? runs_[next].begin : count_;
}

const RunColumn::Run& RunColumn::run_of(std::uint64_t index) const {
  const auto after = std::upper_bound(runs_.begin(), runs_.end(), index,
                                      [](std::uint64_t value, const Run& run) { return value < run.begin; });
  return *(after - 1);
}

std::int64_t RunColumn::operator[](std::uint64_t index) const {
  const Run& run = run_of(index);
  return run.first + run.step * static_cast<std::int64_t>(index - run.begin);
}

std::int64_t RunColumn::smallest() const {
  std::int64_t smallest = runs_.empty() ? 0 : kIntegerMax;
  for (const Run& run : runs_) {
    const auto steps = static_cast<std::int64_t>(end_of(run) - run.begin - 1);
    smallest = std::min({smallest, run.first, run.first + run.step * steps});
  }
  return smallest;
}

Result<std::int64_t> RunColumn::sum() {
  Int128 sum = 0;
  for (Run& run : runs_) {
    run.sum_before = static_cast<std::int64_t>(sum);
    sum += sum_of(run.first, run.step, end_of(run) - run.begin);
    if (!is_in_range(sum)) return Error(ErrorCode::kCorrupt, "sizes with a sum that cannot be");
  }
  return static_cast<std::int64_t>(sum);
}

std::int64_t RunColumn::sum_before(std::uint64_t index) const {
  if (runs_.empty()) return 0;
  const Run& run = index == count_ ? runs_.back() : run_of(index);
  return run.sum_before + static_cast<std::int64_t>(sum_of(run.first, run.step, index - run.begin));
}

}  // namespace cairn::compact_catalog
