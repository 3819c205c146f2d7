#include "checkpointer/tied_tensors.h"

#include <cairn/seeded_hash.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "checkpointer/stored_window.h"
#include "core/conversion.h"

namespace cairn::checkpointer {
namespace {

// The bytes of a record from a tensor's first element to its last.
struct ByteRange {
  std::size_t key;
  std::uint64_t begin;
  std::uint64_t end;
  bool is_inside = false;    // the tensor is a part of the value under the key
  std::uint64_t object = 0;  // equal for one object that stays one object in the target; 0: unknown
};
using RangesByRecord = std::map<std::uint64_t, std::vector<ByteRange>>;  // by the record's offset

std::vector<std::vector<ByteRange>> overlapping(std::vector<ByteRange> ranges) {
  std::vector<std::vector<ByteRange>> groups;
  std::sort(ranges.begin(), ranges.end(),
            [](const ByteRange& a, const ByteRange& b) { return std::tie(a.begin, a.key) < std::tie(b.begin, b.key); });
  for (std::size_t first = 0; first < ranges.size();) {
    std::vector<ByteRange> group;
    std::uint64_t end = ranges[first].end;
    for (; first < ranges.size() && (group.empty() || ranges[first].begin < end); ++first) {
      group.push_back(ranges[first]);
      end = std::max(end, ranges[first].end);
    }
    if (group.size() > 1) groups.push_back(std::move(group));
  }
  return groups;
}

void add_range(const StoredTensor& stored, const ByteRange& of, RangesByRecord& ranges) {
  const std::uint64_t item = item_bytes(stored.dtype);
  const StoredWindow window = window_of(stored);
  ByteRange range = of;
  range.begin = window.begin * item;
  range.end = window.end * item;
  ranges[stored.record_offset].push_back(range);
}

// The object of a tensor that the plan does not change; 0 otherwise.
std::uint64_t object_of(const ConvertKey& key, const ConvertSource& source) {
  return key.dtype == key.tensor->dtype ? source.object_of(*key.tensor) : 0;
}

bool is_one_object(const std::vector<ByteRange>& group) {
  const std::uint64_t object = group.front().object;
  return object != 0 && std::ranges::all_of(group, [&](const ByteRange& range) { return range.object == object; });
}

// The tensors that are keys of the plan.
Result<RangesByRecord> ranges_of_keys(const ConvertPlan& plan, const ConvertSource& source) {
  RangesByRecord ranges;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const CatalogTensor* const tensor = plan.keys[i].tensor;
    if (tensor == nullptr || tensor->chunk_count() != 1 || plan.keys[i].bytes() == 0) continue;
    if (is_quantized(tensor->dtype)) continue;  // its storage is copied whole, with its pickle
    CAIRN_TRY_ASSIGN(const ConvertSource::Stored stored, source.stored(*tensor, 0));
    add_range(stored.tensor, {i, 0, 0, false, object_of(plan.keys[i], source)}, ranges);
  }
  return ranges;
}

}  // namespace

Result<std::vector<std::vector<std::size_t>>> find_tied(const ConvertPlan& plan, const ConvertSource& source) {
  std::vector<std::vector<std::size_t>> groups;
  if (source.catalog().format != CheckpointFormat::kTorchSave) return groups;
  CAIRN_TRY_ASSIGN(RangesByRecord by_record, ranges_of_keys(plan, source));
  for (auto& [offset, ranges] : by_record) {
    for (const std::vector<ByteRange>& group : overlapping(std::move(ranges))) {
      std::vector<std::size_t>& keys = groups.emplace_back();
      for (const ByteRange& range : group) keys.push_back(range.key);
    }
  }
  return groups;
}

void note_attributes(const ConvertSource& source, ConvertPlan& plan) {
  const torch_file::StateFile* const file = source.torch_file();
  if (file == nullptr) return;
  for (const ConvertKey& key : plan.keys) {
    const torch_file::StateFile::Entry* const entry = key.tensor != nullptr ? file->find(key.tensor->fqn) : nullptr;
    if (entry != nullptr && file->has_attributes(*entry)) plan.with_attributes.push_back(key.source_fqn());
  }
}

Result<void> note_inner_tensors(const ConvertSource& source, const ConvertOptions& options, ConvertPlan& plan) {
  CAIRN_TRY_ASSIGN(const std::vector<torch_file::StateFile::InnerTensor> inner, source.inner_tensors());
  if (inner.empty()) return {};
  std::unordered_map<std::string_view, std::size_t, SeededHash> values;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    if (plan.keys[i].value != nullptr) values.emplace(plan.keys[i].value->fqn, i);
  }
  CAIRN_TRY_ASSIGN(RangesByRecord by_record, ranges_of_keys(plan, source));
  std::vector<bool> keeps_dtype(plan.keys.size(), false);
  for (const torch_file::StateFile::InnerTensor& part : inner) {
    const auto found = values.find(part.fqn);
    if (found == values.end()) continue;
    const DType dtype = part.tensor.dtype;
    const bool is_other = options.dtype && dtype != *options.dtype && is_floating_point(dtype);
    if (is_other) keeps_dtype[found->second] = true;
    if (element_count(part.tensor.sizes).value() == 0) continue;
    const bool keeps_objects = options.to == CheckpointFormat::kTorchSave;
    add_range(part.tensor, {found->second, 0, 0, true, keeps_objects ? part.object : 0}, by_record);
  }
  std::vector<bool> is_copied(plan.keys.size(), false);
  for (auto& [offset, ranges] : by_record) {
    for (const std::vector<ByteRange>& group : overlapping(std::move(ranges))) {
      if (is_one_object(group)) continue;
      for (const ByteRange& range : group) {
        if (range.is_inside) is_copied[range.key] = true;
      }
    }
  }
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    if (is_copied[i]) plan.copied_inside.push_back(plan.keys[i].source_fqn());
    if (keeps_dtype[i]) plan.unconverted_inside.push_back(plan.keys[i].source_fqn());
  }
  return {};
}

}  // namespace cairn::checkpointer
