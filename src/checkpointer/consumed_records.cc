#include "checkpointer/consumed_records.h"

#include <cairn/seeded_hash.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;
using torch_file::StorageWalk;
using torch_file::TensorNode;

// The runs of all tensors with gaps that are looked at one by one; a further tensor counts as one without gaps.
constexpr std::uint64_t kRunsMax = std::uint64_t{1} << 18;

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // begin and end, in bytes

// What the keys say of a storage.
struct Named {
  std::string_view selected;  // the first key of the plan that names the storage; empty: none
  bool is_whole = false;      // whether anything but a plain tensor names the storage
  bool has_whole_selected = false;
  bool has_elements_selected = false;
  Ranges ranges;  // of the tensors
};

struct Dimension {
  std::uint64_t size;
  std::uint64_t stride;
};

// The bytes that a tensor shows, as runs without gaps.
class Runs {
 public:
  void add(const TensorNode& tensor, Ranges& ranges) {
    std::vector<Dimension> dimensions;  // without those that repeat elements
    for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
      if (tensor.sizes[i] == 0) return;
      if (tensor.sizes[i] == 1 || tensor.strides[i] == 0) continue;
      dimensions.push_back(
          {static_cast<std::uint64_t>(tensor.sizes[i]), static_cast<std::uint64_t>(tensor.strides[i])});
    }
    std::ranges::sort(dimensions, {}, &Dimension::stride);
    std::uint64_t run = 1;
    auto outer = dimensions.begin();
    for (; outer != dimensions.end() && outer->stride <= run; ++outer) run += (outer->size - 1) * outer->stride;
    std::uint64_t count = 1;
    for (auto it = outer; it != dimensions.end() && count <= left_; ++it) count *= std::min(it->size, left_ + 1);
    if (count > left_) {
      for (; outer != dimensions.end(); ++outer) run += (outer->size - 1) * outer->stride;
      count = 1;
    }
    left_ -= count;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint64_t begin = tensor.storage_offset;
      std::uint64_t rest = i;
      for (auto it = outer; it != dimensions.end(); ++it) {
        begin += rest % it->size * it->stride;
        rest /= it->size;
      }
      ranges.emplace_back(begin * tensor.element_bytes(), (begin + run) * tensor.element_bytes());
    }
  }

 private:
  std::uint64_t left_ = kRunsMax;
};

std::uint64_t bytes_in(Ranges ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::uint64_t bytes = 0;
  std::uint64_t end = 0;
  for (const auto& [begin, range_end] : ranges) {
    if (range_end <= end) continue;
    bytes += range_end - std::max(begin, end);
    end = range_end;
  }
  return bytes;
}

using NamedByKey = std::unordered_map<std::string_view, Named, SeededHash>;

// The keys of the plan first: a part that several keys name counts for the plan.
Result<NamedByKey> named_storages(const ConvertInput& input, const StateFile& file) {
  NamedByKey named;
  Runs runs;
  StorageWalk walk = file.new_walk();
  std::unordered_set<std::string_view, SeededHash> selected;
  const auto add = [&](const StateFile::Entry& entry, bool is_selected) {
    return walk.walk(entry.node, [&](const StorageWalk::Found& found) -> Result<void> {
      Named& storage = named[found.key];
      if (is_selected && storage.selected.empty()) storage.selected = entry.fqn;
      if (!found.tensor) storage.is_whole = true;
      if (!found.tensor) storage.has_whole_selected |= is_selected;
      if (!found.tensor) return {};
      const std::size_t count = storage.ranges.size();
      runs.add(*found.tensor, storage.ranges);
      storage.has_elements_selected |= is_selected && storage.ranges.size() > count;
      return {};
    });
  };
  for (const ConvertKey& key : input.plan.keys) {
    const StateFile::Entry* const entry = file.find(key.source_fqn());
    if (entry == nullptr) return Error(ErrorCode::kInternal, "a key of no entry").key(key.source_fqn());
    selected.insert(entry->fqn);
    CAIRN_TRY(add(*entry, true));
  }
  for (const StateFile::Entry& entry : file.entries()) {
    if (!selected.contains(entry.fqn)) CAIRN_TRY(add(entry, false));
  }
  return named;
}

Error lost(ErrorCode code, const StateFile::StoredBytes& stored, std::string_view key, const char* reason) {
  Error error(code,
              std::string("the target would lack bytes of the source: ") + reason + ". torch.load reads the file");
  if (!key.empty()) error = std::move(error).key(key);
  return std::move(error).offset(stored.offset).actual(stored.name + " of " + std::to_string(stored.bytes) + " bytes");
}

}  // namespace

Result<std::vector<std::string>> check_consumed(const ConvertInput& input) {
  std::vector<std::string> unseen;
  const StateFile* const file = input.source->torch_file();
  if (file == nullptr) return unseen;
  CAIRN_TRY_ASSIGN(const NamedByKey named, named_storages(input, *file));
  for (const StateFile::StoredBytes& stored : file->stored_bytes()) {
    if (stored.key.empty()) return lost(ErrorCode::kCorrupt, stored, {}, "torch.save writes no such record");
    const auto found = named.find(stored.key);
    if (found == named.end()) return lost(ErrorCode::kCorrupt, stored, {}, "no key of the file names the storage");
    const Named& storage = found->second;
    if (storage.selected.empty()) continue;  // left out with its keys
    const bool is_copied = storage.has_whole_selected
                               ? file->was_read(stored.offset, true)
                               : input.source->was_read(stored.offset) || file->was_read(stored.offset, false);
    const bool is_wanted = storage.has_whole_selected || storage.has_elements_selected;
    if (is_wanted && !is_copied) {
      return lost(ErrorCode::kUnsafe, stored, storage.selected, "no key of the target has a part that the key names");
    }
    if (storage.is_whole) continue;
    const std::uint64_t seen = bytes_in(storage.ranges);
    if (seen >= stored.bytes) continue;
    unseen.push_back(std::string(storage.selected) + " (" + std::to_string(stored.bytes - seen) + " of " +
                     std::to_string(stored.bytes) + " bytes of " + stored.name + ")");
  }
  return unseen;
}

}  // namespace cairn::checkpointer
