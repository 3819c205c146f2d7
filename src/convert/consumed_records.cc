#include "convert/consumed_records.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "convert/tied_tensors.h"
#include "core/place_text.h"
#include "core/seeded_hash.h"

namespace cairn::checkpointer {
namespace {

using torch_file::StateFile;
using torch_file::StorageWalk;
using torch_file::TensorNode;

// The runs of all tensors with gaps that are looked at one by one; more tensors count as tensors without gaps.
constexpr std::uint64_t kRunsMax = std::uint64_t{1} << 18;

using Ranges = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // begin and end, in bytes

// What the keys say of a storage.
struct Named {
  std::string_view selected;  // the first key of the plan that names the storage; empty: none
  bool is_whole = false;      // whether anything but a plain tensor names the storage
  bool has_whole_selected = false;
  bool has_elements_selected = false;
  bool is_copied_whole = false;  // with the stored pickle of a key
  Ranges ranges;                 // of the tensors
  // Set if attributes name the storage that the target lacks: the key of their tensor, or the place of their dict.
  std::optional<std::string> attributes_of;
  bool may_lack = false;  // whether the caller has left out the attributes
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
class NamedStorages {
 public:
  NamedStorages(const ConvertInput& input, const StateFile& file, const std::unordered_set<std::size_t>& as_saved)
      : input_(input), file_(file), as_saved_(as_saved), walk_(file.new_walk()) {}

  Result<NamedByKey> find() {
    const bool keeps_objects = input_.to == CheckpointFormat::kTorchSave;
    for (std::size_t i = 0; keeps_objects && i < input_.plan.keys.size(); ++i) {
      objects_.insert(tensor_object_of(input_.plan, i, *input_.source));
    }
    std::unordered_set<std::string_view, SeededHash> selected;
    for (std::size_t i = 0; i < input_.plan.keys.size(); ++i) {
      const StateFile::Entry* const entry = file_.find(input_.plan.keys[i].source_fqn());
      if (entry == nullptr) {
        return Error(ErrorCode::kInternal, "a key of no entry").key(input_.plan.keys[i].source_fqn());
      }
      selected.insert(entry->fqn);
      CAIRN_TRY(add_selected(*entry, i));
    }
    CAIRN_TRY(add_attributes());
    for (const StateFile::Entry& entry : file_.entries()) {
      if (!selected.contains(entry.fqn)) CAIRN_TRY(add(entry.node, entry.fqn, Use::kNone));
    }
    return std::move(named_);
  }

 private:
  enum class Use : std::uint8_t { kNone, kElements, kAsSaved };

  // Without the attributes that the target lacks.
  Result<void> add_selected(const StateFile::Entry& entry, std::size_t key) {
    const bool is_as_saved = as_saved_.contains(key);
    const pickle::Node attributes = file_.attributes_of(entry);
    const bool lacks_attributes =
        entry.tensor && attributes.is_set() && !is_as_saved && !input_.plan.attributes.contains(key);
    if (!lacks_attributes) return add(entry.node, entry.fqn, is_as_saved ? Use::kAsSaved : Use::kElements);
    note_tensor(*entry.tensor, entry.fqn, Use::kElements);
    lacking_.push_back({attributes, entry.fqn, input_.leaves_out_attributes});
    return {};
  }

  void note_tensor(const TensorNode& tensor, std::string_view key, Use use) {
    Named& storage = named_[tensor.storage_key];
    if (use != Use::kNone && storage.selected.empty()) storage.selected = key;
    const std::size_t count = storage.ranges.size();
    runs_.add(tensor, storage.ranges);
    storage.has_elements_selected |= use != Use::kNone && storage.ranges.size() > count;
  }

  Result<void> add(pickle::Node node, std::string_view key, Use use) {
    return walk_.walk(node, [&](const StorageWalk::Found& found) -> Result<void> {
      // A tensor that is a key stays one object in the target: not the whole storage.
      const bool is_whole = use == Use::kAsSaved && !(found.tensor && objects_.contains(found.node.bits()));
      if (is_whole) named_[found.key].is_copied_whole = true;
      if (found.tensor) return note_tensor(*found.tensor, key, use), Result<void>();
      Named& storage = named_[found.key];
      if (use != Use::kNone && storage.selected.empty()) storage.selected = key;
      storage.is_whole = true;
      storage.has_whole_selected |= use != Use::kNone;
      return {};
    });
  }

  // Of dicts, and the ones that the target lacks.
  Result<void> add_attributes() {
    CAIRN_TRY_ASSIGN(const std::vector<torch_file::FlatEntry> of_dicts, file_.attributes_of_dicts());
    if (!of_dicts.empty()) find_places();
    for (const torch_file::FlatEntry& it : of_dicts) {
      const std::string place = place_text(it.path);
      const bool is_kept = input_.to == CheckpointFormat::kTorchSave && with_attributes_.contains(place);
      if (is_kept) {
        places_.push_back(place_in_words(it.path));
        CAIRN_TRY(add(it.node, places_.back(), Use::kElements));
      } else {
        const bool is_left_out = input_.leaves_out_attributes || input_.has_selection || !with_keys_.contains(place);
        lacking_.push_back({it.node, place_in_words(it.path), is_left_out});
      }
    }
    for (const Lacking& lacking : lacking_) {
      CAIRN_TRY(walk_.walk(lacking.node, [&](const StorageWalk::Found& found) -> Result<void> {
        Named& storage = named_[found.key];
        if (storage.attributes_of) return {};
        storage.attributes_of = lacking.of;
        storage.may_lack = lacking.may_lack;
        return {};
      }));
    }
    return {};
  }

  static std::string place_in_words(const Path& place) { return place.empty() ? "the whole state" : fqn_of(place); }

  // The texts of the places of dicts: whose attributes the target has, and of which it has keys.
  void find_places() {
    for (const NestedShape::Ordered& it : input_.plan.shape.ordered) {
      if (it.attributes.get_if<None>() == nullptr) with_attributes_.insert(place_text(it.place));
    }
    for (const ConvertKey& key : input_.plan.keys) {
      std::string text;
      for (const PathElement& step : file_.find(key.source_fqn())->path) {
        with_keys_.insert(text);
        append_step(text, step);
      }
    }
  }

  struct Lacking {
    pickle::Node node;
    std::string of;
    bool may_lack;
  };
  const ConvertInput& input_;
  const StateFile& file_;
  const std::unordered_set<std::size_t>& as_saved_;
  StorageWalk walk_;
  Runs runs_;
  NamedByKey named_;
  std::unordered_set<std::uint64_t, SeededHash> objects_;  // of the keys
  std::vector<Lacking> lacking_;
  std::unordered_set<std::string, SeededHash> with_attributes_;
  std::unordered_set<std::string, SeededHash> with_keys_;
  std::deque<std::string> places_;  // `named_` refers to these
};

Error lost(ErrorCode code, const StateFile::StoredBytes& stored, std::string_view key, const char* reason) {
  Error error(code,
              std::string("the target would lack bytes of the source: ") + reason + ". torch.load reads the file");
  if (!key.empty()) error = std::move(error).key(key);
  return std::move(error).offset(stored.offset).actual(stored.name + " of " + std::to_string(stored.bytes) + " bytes");
}

Error lost_attributes(const StateFile::StoredBytes& stored, const std::string& of) {
  return lost(ErrorCode::kUnsafe, stored, of,
              "attributes of the tensor or dict name the storage, and the target has no place for attributes that are "
              "no plain data. Leave the key out (option exclude), or leave out all attributes: exclude "
              "'__cairn_shape__' (option exclude)");
}

std::string in_words(const StateFile::StoredBytes& stored, std::string_view of, std::uint64_t lacking) {
  return std::string(of) + " (" + std::to_string(lacking) + " of " + std::to_string(stored.bytes) + " bytes of " +
         stored.name + ")";
}

// Adds the bytes of the storage that the target may lack to `unseen`.
Result<void> check_storage(const ConvertInput& input, const StateFile::StoredBytes& stored, const Named& storage,
                           std::vector<std::string>& unseen) {
  const StateFile& file = *input.source->torch_file();
  if (storage.selected.empty()) {
    if (!storage.attributes_of) return {};  // left out with its keys
    if (!storage.may_lack) return lost_attributes(stored, *storage.attributes_of);
    unseen.push_back(in_words(stored, "attributes of " + *storage.attributes_of, stored.bytes));
    return {};
  }
  const bool is_copied = storage.has_whole_selected
                             ? file.was_read(stored.offset, true)
                             : input.source->was_read(stored.offset) || file.was_read(stored.offset, false);
  const bool is_wanted = storage.has_whole_selected || storage.has_elements_selected;
  if (is_wanted && !is_copied) {
    return lost(ErrorCode::kUnsafe, stored, storage.selected, "no key of the target has a part that the key names");
  }
  if (storage.is_whole || storage.is_copied_whole) return {};
  const std::uint64_t seen = bytes_in(storage.ranges);
  if (seen < stored.bytes) unseen.push_back(in_words(stored, storage.selected, stored.bytes - seen));
  return {};
}

}  // namespace

Result<std::vector<std::string>> check_consumed(const ConvertInput& input,
                                                const std::unordered_set<std::size_t>& as_saved) {
  std::vector<std::string> unseen;
  const StateFile* const file = input.source->torch_file();
  if (file == nullptr) return unseen;
  CAIRN_TRY_ASSIGN(const NamedByKey named, NamedStorages(input, *file, as_saved).find());
  for (const StateFile::StoredBytes& stored : file->stored_bytes()) {
    if (stored.key.empty()) return lost(ErrorCode::kCorrupt, stored, {}, "torch.save writes no such record");
    const auto found = named.find(stored.key);
    if (found == named.end()) return lost(ErrorCode::kCorrupt, stored, {}, "no key of the file names the storage");
    CAIRN_TRY(check_storage(input, stored, found->second, unseen));
  }
  return unseen;
}

}  // namespace cairn::checkpointer
