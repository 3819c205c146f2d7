#include "convert/convert_plan.h"

#include <cairn/catalog.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/missing_keys.h"
#include "convert/renamed_shape.h"
#include "core/checked.h"
#include "core/conversion.h"
#include "core/place_text.h"
#include "core/seeded_hash.h"

namespace cairn::checkpointer {
namespace {

Result<void> check_dtype(DType dtype) {
  if (is_floating_point(dtype) && is_convertible(DType::kFloat32, dtype)) return {};
  return Error(ErrorCode::kInvalidArgument, "only floating-point tensors are converted, to a floating-point dtype")
      .expected("a floating-point dtype")
      .actual(name_of(dtype));
}

Result<void> check_options(const ConvertOptions& options) {
  const auto refuse = [](const char* message) { return Error(ErrorCode::kInvalidArgument, message); };
  if (options.to == CheckpointFormat::kTorchCheckpointing) {
    return refuse("a checkpoint of torch_checkpointing is read only: convert to dcp, safetensors or torch");
  }
  if (options.dtype) CAIRN_TRY(check_dtype(*options.dtype));
  for (const KeyDType& of_keys : options.key_dtypes) CAIRN_TRY(check_dtype(of_keys.dtype));
  if (options.file_count == 0) return refuse("a checkpoint needs at least one data file");
  if (options.file_count > 1 && options.to != CheckpointFormat::kDcp) {
    return refuse("a number of files applies only to the format dcp");
  }
  if (options.max_shard_bytes > 0 && options.to != CheckpointFormat::kSafetensors) {
    return refuse("a largest shard applies only to the format safetensors");
  }
  return {};
}

// Marks the patterns that have matched a key.
class KeyPatterns {
 public:
  explicit KeyPatterns(std::vector<std::string> patterns)
      : patterns_(std::move(patterns)), matched_(patterns_.size(), false) {}

  bool empty() const { return patterns_.empty(); }

  // The index of the first pattern that matches.
  std::optional<std::size_t> first_match(std::string_view fqn) {
    std::optional<std::size_t> first;
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!matches_key(patterns_[i], fqn)) continue;
      matched_[i] = true;
      if (!first) first = i;
    }
    return first;
  }

  const std::string* first_unmatched() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!matched_[i]) return &patterns_[i];
    }
    return nullptr;
  }

 private:
  std::vector<std::string> patterns_;
  std::vector<bool> matched_;
};

std::vector<std::string> patterns_of(const std::vector<KeyDType>& key_dtypes) {
  std::vector<std::string> patterns;
  patterns.reserve(key_dtypes.size());
  for (const KeyDType& of_keys : key_dtypes) patterns.push_back(of_keys.pattern);
  return patterns;
}

class Planner {
 public:
  Planner(const Catalog& source, const ConvertOptions& options, const NestedShape& shape)
      : source_(source),
        options_(options),
        shape_(shape),
        selection_(options.keys),
        exclusion_(options.exclude),
        key_dtypes_(patterns_of(options.key_dtypes)) {}

  Result<ConvertPlan> plan() {
    CAIRN_TRY_ASSIGN(KeyRenames renames, KeyRenames::make(options_.renames));
    for (const auto& [fqn, path] : source_.paths) paths_.emplace(fqn, &path);
    plan_.has_paths = !paths_.empty();
    (void)exclusion_.first_match(kNestedShapeKey);  // not a key of every source: the pattern leaves out the new value
    RenamedShape renamed(shape_);
    auto empty = shape_.empty.begin();
    for (std::size_t i = 0; i < source_.keys.size(); ++i) {
      for (; empty != shape_.empty.end() && empty->before <= i; ++empty) CAIRN_TRY(add_empty(*empty, renames, renamed));
      const Catalog::KeyRef& ref = source_.keys[i];
      ConvertKey key;
      if (ref.is_tensor) {
        key.tensor = &source_.tensors[ref.index];
      } else {
        key.value = &source_.values[ref.index];
      }
      if (key.value != nullptr && key.source_fqn() == kNestedShapeKey) continue;
      has_keys_ = true;
      if (!takes(key.source_fqn())) continue;
      const Path path = path_of(key.source_fqn());
      CAIRN_TRY_ASSIGN(key.name, renames.apply({key.source_fqn(), path}));
      renamed.add_steps(path, key.name);
      CAIRN_TRY(choose_dtype(key));
      plan_.keys.push_back(std::move(key));
    }
    for (; empty != shape_.empty.end(); ++empty) CAIRN_TRY(add_empty(*empty, renames, renamed));
    plan_.shape = std::move(renamed).take();
    for (const KeyPatterns* patterns : {&selection_, &exclusion_, &key_dtypes_}) {
      if (const std::string* pattern = patterns->first_unmatched()) return unmatched(*pattern);
    }
    if (has_keys_ && plan_.keys.empty() && plan_.shape.empty.empty()) {
      return Error(ErrorCode::kInvalidArgument, "the patterns leave out every key: the target would hold nothing")
          .expected("at least one key")
          .actual("none of " + std::to_string(source_.keys.size()));
    }
    note_scaled();
    if (const KeyRename* rename = renames.first_unused()) {
      return Error(ErrorCode::kMissingKey, "a rename applies to no key").actual(rename->from + "=" + rename->to);
    }
    CAIRN_TRY(check_names());
    if (!options_.renames.empty() && options_.to != CheckpointFormat::kSafetensors) CAIRN_TRY(check_places());
    return std::move(plan_);
  }

 private:
  bool takes(std::string_view fqn) {
    const bool is_selected = selection_.empty() || selection_.first_match(fqn);
    const bool is_excluded = exclusion_.first_match(fqn).has_value();
    return is_selected && !is_excluded;
  }

  // An empty mapping is selected and renamed like a key.
  Result<void> add_empty(const NestedShape::Empty& empty, KeyRenames& renames, RenamedShape& renamed) {
    const std::string fqn = fqn_of(empty.place);
    if (!takes(fqn)) return {};
    CAIRN_TRY_ASSIGN(KeyName name, renames.apply({fqn, empty.place}));
    renamed.add_steps(empty.place, name);
    renamed.add_empty(std::move(name.path), plan_.keys.size());
    return {};
  }

  // The nested place of a key. A path that does not spell the key is not used.
  Path path_of(const std::string& fqn) const {
    const auto found = paths_.find(fqn);
    return found != paths_.end() && fqn_of(*found->second) == fqn ? *found->second : Path{fqn};
  }

  Error unmatched(const std::string& pattern) const {
    if (pattern.find_first_of("*?[\\") == std::string::npos) return missing_keys(source_, {pattern});
    return Error(ErrorCode::kMissingKey, "no key matches a pattern").actual(pattern);
  }

  Result<void> choose_dtype(ConvertKey& key) {
    if (key.tensor == nullptr) return {};
    key.dtype = key.tensor->dtype;
    const std::optional<std::size_t> match = key_dtypes_.first_match(key.source_fqn());
    const std::optional<DType> dtype = match ? options_.key_dtypes[*match].dtype : options_.dtype;
    if (!dtype || key.dtype == *dtype || !is_floating_point(key.dtype)) return {};
    // A packed element is two numbers; an element of a scale is the meaning of other elements.
    if (!is_convertible(key.dtype, *dtype) || key.dtype == DType::kFloat8E8M0FNU) {
      plan_.unconverted.push_back(key.source_fqn());
      return {};
    }
    plan_.conversions.push_back({key.source_fqn(), key.dtype, *dtype});
    key.dtype = *dtype;
    return {};
  }

  // Finds the converted tensors of 8 bits whose elements are only codes: the values are the elements times a scale.
  void note_scaled() {
    std::vector<std::string_view> names;
    for (const CatalogTensor& tensor : source_.tensors) names.emplace_back(tensor.fqn);
    std::sort(names.begin(), names.end());
    for (const Conversion& conversion : plan_.conversions) {
      if (item_bytes(conversion.saved) != 1) continue;
      const std::string scale = conversion.fqn + "_scale";
      const auto found = std::lower_bound(names.begin(), names.end(), std::string_view(scale));
      if (found != names.end() && found->starts_with(scale)) plan_.scaled.push_back(conversion.fqn);
    }
  }

  // A rename may not put a key into a tensor or a value, nor names beside positions.
  Result<void> check_places() const {
    if (!plan_.has_paths && options_.to == CheckpointFormat::kDcp && source_.format == CheckpointFormat::kDcp)
      return {};
    enum class Kind : std::uint8_t { kLeaf, kDict, kList };
    std::unordered_map<std::string, Kind, SeededHash> kinds;
    for (const ConvertKey& key : plan_.keys) {
      std::string place;
      for (std::size_t i = 0; i <= key.name.path.size(); ++i) {
        const bool is_leaf = i == key.name.path.size();
        const bool is_list = !is_leaf && std::holds_alternative<std::int64_t>(key.name.path[i]);
        const Kind kind = is_leaf ? Kind::kLeaf : is_list ? Kind::kList : Kind::kDict;
        if (kinds.try_emplace(place, kind).first->second != kind) {
          return Error(
                     ErrorCode::kInvalidArgument,
                     "a rename puts a key into the nested place of another key, so that no nested state can hold both: "
                     "choose a name outside the other key")
              .key(key.source_fqn())
              .actual("'" + key.name.fqn + "'");
        }
        if (!is_leaf) append_step(place, key.name.path[i]);
      }
    }
    return {};
  }

  Result<void> check_names() const {
    std::unordered_map<std::string_view, const ConvertKey*, SeededHash> sources;
    for (const ConvertKey& key : plan_.keys) {
      if (key.name.fqn == kNestedShapeKey) {
        return Error(ErrorCode::kInvalidArgument, "a rename to a name that is reserved for Cairn")
            .key(key.source_fqn());
      }
      const auto [found, is_new] = sources.try_emplace(key.name.fqn, &key);
      if (is_new) continue;
      return Error(ErrorCode::kInvalidArgument, "two keys get the same name '" + key.name.fqn + "'")
          .key(key.source_fqn())
          .actual("also '" + found->second->source_fqn() + "'");
    }
    return {};
  }

  const Catalog& source_;
  const ConvertOptions& options_;
  const NestedShape& shape_;
  KeyPatterns selection_;
  KeyPatterns exclusion_;
  KeyPatterns key_dtypes_;
  std::unordered_map<std::string_view, const Path*, SeededHash> paths_;
  ConvertPlan plan_;
  bool has_keys_ = false;  // whether the source has any
};

}  // namespace

std::uint64_t ConvertKey::bytes() const {
  if (tensor == nullptr) return 0;
  const auto elements = element_count(tensor->shape);
  const auto bytes =
      checked_multiply<std::uint64_t>(elements ? static_cast<std::uint64_t>(*elements) : UINT64_MAX, item_bytes(dtype));
  return bytes.value_or(UINT64_MAX);  // a tensor so large has no bytes in any file: the layout refuses it
}

Result<ConvertPlan> plan_conversion(const Catalog& source, const ConvertOptions& options, const NestedShape& shape) {
  CAIRN_TRY(check_options(options));
  return Planner(source, options, shape).plan();
}

}  // namespace cairn::checkpointer
