#include "convert/tied_tensors.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "checkpoint/stored_window.h"
#include "core/conversion.h"
#include "core/seeded_hash.h"

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

// The tensors that are keys of the plan.
Result<RangesByRecord> ranges_of_keys(const ConvertPlan& plan, const ConvertSource& source) {
  RangesByRecord ranges;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const CatalogTensor* const tensor = plan.keys[i].tensor;
    if (tensor == nullptr || tensor->chunk_count() != 1 || plan.keys[i].bytes() == 0) continue;
    if (is_quantized(tensor->dtype)) continue;  // its storage is copied whole, with its pickle
    CAIRN_TRY_ASSIGN(const ConvertSource::Stored stored, source.stored(*tensor, 0));
    add_range(stored.tensor, {i, 0, 0, false, tensor_object_of(plan, i, source)}, ranges);
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

std::uint64_t object_of(const ConvertPlan& plan, std::size_t key, const ConvertSource& source) {
  const CatalogTensor* const tensor = plan.keys[key].tensor;
  const torch_file::StateFile* const file = source.torch_file();
  if (file == nullptr || tensor == nullptr || plan.keys[key].dtype != tensor->dtype) return 0;
  const torch_file::StateFile::Entry* const entry = file->find(tensor->fqn);
  const bool lacks_attributes = file->attributes_of(*entry).is_set() && !plan.attributes.contains(key);
  return lacks_attributes ? 0 : torch_file::StateFile::object_of(*entry);
}

std::uint64_t tensor_object_of(const ConvertPlan& plan, std::size_t key, const ConvertSource& source) {
  if (object_of(plan, key, source) == 0) return 0;
  const torch_file::StateFile& file = *source.torch_file();
  return file.tensor_object_of(*file.find(plan.keys[key].tensor->fqn));
}

Result<void> note_inner_tensors(const ConvertSource& source, const ConvertOptions& options, ConvertPlan& plan) {
  CAIRN_TRY_ASSIGN(const std::vector<torch_file::StateFile::InnerTensor> inner, source.inner_tensors());
  if (inner.empty()) return {};
  std::unordered_map<std::string_view, std::size_t, SeededHash> holders;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const bool holds_tensors = plan.keys[i].value != nullptr || plan.attributes.contains(i);
    if (holds_tensors) holders.emplace(plan.keys[i].source_fqn(), i);
  }
  CAIRN_TRY_ASSIGN(RangesByRecord by_record, ranges_of_keys(plan, source));
  std::vector<bool> keeps_dtype(plan.keys.size(), false);
  for (const torch_file::StateFile::InnerTensor& part : inner) {
    const auto found = holders.find(part.fqn);
    if (found == holders.end()) continue;
    const DType dtype = part.tensor.dtype;
    const bool is_other = options.dtype && dtype != *options.dtype && is_floating_point(dtype);
    if (is_other) keeps_dtype[found->second] = true;
    if (element_count(part.tensor.sizes).value() == 0) continue;
    const bool keeps_objects = options.to == CheckpointFormat::kTorchSave;
    add_range(part.tensor, {found->second, 0, 0, true, keeps_objects ? part.object : 0}, by_record);
  }
  for (auto& [offset, ranges] : by_record) {
    for (const std::vector<ByteRange>& group : overlapping(std::move(ranges))) {
      if (std::ranges::none_of(group, &ByteRange::is_inside)) continue;
      std::vector<ConvertPlan::Part>& parts = plan.shared_inside.emplace_back();
      for (const ByteRange& range : group) parts.push_back({range.key, range.is_inside, range.object});
    }
  }
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    if (keeps_dtype[i]) plan.unconverted_inside.push_back(plan.keys[i].source_fqn());
  }
  return {};
}

}  // namespace cairn::checkpointer
