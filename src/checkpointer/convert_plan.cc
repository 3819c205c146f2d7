#include "checkpointer/convert_plan.h"

#include <cairn/key_pattern.h>
#include <cairn/seeded_hash.h>

#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpointer/missing_keys.h"
#include "core/checked.h"
#include "core/conversion.h"

namespace cairn::checkpointer {
namespace {

Result<void> check_options(const ConvertOptions& options) {
  const auto refuse = [](const char* message) { return Error(ErrorCode::kInvalidArgument, message); };
  if (options.dtype && !is_floating_point(*options.dtype)) {
    return refuse("only floating-point tensors are converted, to a floating-point dtype")
        .expected("a floating-point dtype")
        .actual(name_of(*options.dtype));
  }
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
class KeySelection {
 public:
  explicit KeySelection(const std::vector<std::string>& patterns)
      : patterns_(patterns), matched_(patterns.size(), false) {}

  bool takes(std::string_view fqn) {
    bool is_taken = patterns_.empty();
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!matches_key(patterns_[i], fqn)) continue;
      matched_[i] = true;
      is_taken = true;
    }
    return is_taken;
  }

  const std::string* first_unmatched() const {
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      if (!matched_[i]) return &patterns_[i];
    }
    return nullptr;
  }

 private:
  const std::vector<std::string>& patterns_;
  std::vector<bool> matched_;
};

class Planner {
 public:
  Planner(const Catalog& source, const ConvertOptions& options)
      : source_(source), options_(options), selection_(options.keys) {}

  Result<ConvertPlan> plan() {
    CAIRN_TRY_ASSIGN(KeyRenames renames, KeyRenames::make(options_.renames));
    for (const auto& [fqn, path] : source_.paths) paths_.emplace(fqn, &path);
    plan_.has_paths = !paths_.empty();
    for (const Catalog::KeyRef& ref : source_.keys) {
      ConvertKey key;
      if (ref.is_tensor) {
        key.tensor = &source_.tensors[ref.index];
      } else {
        key.value = &source_.values[ref.index];
      }
      if (!selection_.takes(key.source_fqn())) continue;
      CAIRN_TRY_ASSIGN(key.name, renames.apply({key.source_fqn(), path_of(key.source_fqn())}));
      CAIRN_TRY(choose_dtype(key));
      plan_.keys.push_back(std::move(key));
    }
    if (const std::string* pattern = selection_.first_unmatched()) return unmatched(*pattern);
    if (const KeyRename* rename = renames.first_unused()) {
      return Error(ErrorCode::kMissingKey, "a rename applies to no key").actual(rename->from + "=" + rename->to);
    }
    CAIRN_TRY(check_names());
    return std::move(plan_);
  }

 private:
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
    if (!options_.dtype || key.dtype == *options_.dtype || !is_floating_point(key.dtype)) return {};
    if (!is_convertible(key.dtype, *options_.dtype)) {
      return Error(ErrorCode::kUnsupported, "no conversion between these dtypes")
          .key(key.source_fqn())
          .expected(name_of(*options_.dtype))
          .actual(name_of(key.dtype));
    }
    plan_.conversions.push_back({key.source_fqn(), key.dtype, *options_.dtype});
    key.dtype = *options_.dtype;
    return {};
  }

  Result<void> check_names() const {
    std::unordered_map<std::string_view, const ConvertKey*, SeededHash> sources;
    for (const ConvertKey& key : plan_.keys) {
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
  KeySelection selection_;
  std::unordered_map<std::string_view, const Path*, SeededHash> paths_;
  ConvertPlan plan_;
};

}  // namespace

std::uint64_t ConvertKey::bytes() const {
  if (tensor == nullptr) return 0;
  const auto elements = element_count(tensor->shape);
  const auto bytes =
      checked_multiply<std::uint64_t>(elements ? static_cast<std::uint64_t>(*elements) : UINT64_MAX, item_bytes(dtype));
  return bytes.value_or(UINT64_MAX);  // a tensor so large has no bytes in any file: the layout refuses it
}

Result<ConvertPlan> plan_conversion(const Catalog& source, const ConvertOptions& options) {
  CAIRN_TRY(check_options(options));
  return Planner(source, options).plan();
}

}  // namespace cairn::checkpointer
