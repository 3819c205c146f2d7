#include "checkpoint/missing_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "core/nearest_names.h"

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kNamedKeysMax = 8;  // keys that the text names
constexpr std::size_t kExplainedMax = 3;  // keys whose nearest keys the text names
constexpr std::size_t kNearestMax = 2;    // nearest keys for each
constexpr std::size_t kPrefixesMax = 8;   // prefixes tried on all missing keys
constexpr std::size_t kPlacesMax = 32;    // places tried in a key

// The prefixes that module wrappers add to the names of a module's parameters.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kWrappers{{
    {"module.", "DistributedDataParallel"},
    {"_orig_mod.", "torch.compile"},
    {"_fsdp_wrapped_module.", "FullyShardedDataParallel"},
    {"_checkpoint_wrapped_module.", "checkpoint_wrapper"},
}};

bool holds(const Catalog& catalog, std::string_view fqn) {
  return catalog.find_tensor(fqn) != nullptr || catalog.find_value(fqn) != nullptr;
}

std::string_view name_in_catalog(const Catalog& catalog, const Catalog::KeyRef& key) {
  return key.is_tensor ? catalog.tensors[key.index].fqn : catalog.values[key.index].fqn;
}

// Components by which keys of the checkpoint differ from missing keys: only one of the two sides has the components.
struct Prefix {
  std::string text;
  bool is_in_checkpoint;

  bool operator==(const Prefix&) const = default;
};

// Whether the checkpoint holds `key` with the prefix inserted before a component, or removed before a component.
bool explains(const Prefix& prefix, const Catalog& catalog, const std::string& key) {
  std::size_t places = 0;
  for (std::size_t at = 0; at != std::string::npos && places < kPlacesMax; ++places) {
    std::string other = key;
    if (prefix.is_in_checkpoint) {
      other.insert(at, prefix.text);
    } else if (other.compare(at, prefix.text.size(), prefix.text) == 0) {
      other.erase(at, prefix.text.size());
    }
    if (other != key && holds(catalog, other)) return true;
    const std::size_t dot = key.find('.', at);
    at = dot == std::string::npos ? dot : dot + 1;
  }
  return false;
}

// The prefix by which every missing key differs from a key of the checkpoint. Nullopt if no tried prefix fits.
std::optional<Prefix> common_prefix(const Catalog& catalog, const std::vector<std::string>& missing) {
  std::vector<Prefix> candidates;
  for (const Catalog::KeyRef& key : catalog.keys) {
    const std::string_view fqn = name_in_catalog(catalog, key);
    std::optional<Prefix> candidate;
    if (const auto added = added_components(missing[0], fqn)) candidate = Prefix{std::string(added->text), true};
    if (const auto removed = added_components(fqn, missing[0])) candidate = Prefix{std::string(removed->text), false};
    if (!candidate || std::find(candidates.begin(), candidates.end(), *candidate) != candidates.end()) continue;
    candidates.push_back(std::move(*candidate));
    if (candidates.size() == kPrefixesMax) break;
  }
  for (const Prefix& candidate : candidates) {
    const auto explained = [&](const std::string& key) { return explains(candidate, catalog, key); };
    if (std::all_of(missing.begin(), missing.end(), explained)) return candidate;
  }
  return std::nullopt;
}

std::string hint_at(const Prefix& prefix, std::size_t count) {
  const std::string subject = count == 1 ? "It is" : "All " + std::to_string(count) + " are";
  const auto* const wrapper =
      std::find_if(kWrappers.begin(), kWrappers.end(), [&](const auto& known) { return known.first == prefix.text; });
  std::string cause;
  if (wrapper != kWrappers.end()) cause = ", which " + std::string(wrapper->second) + " adds";
  const std::string_view has =
      prefix.is_in_checkpoint ? " in the checkpoint with the prefix '" : " in the checkpoint without the prefix '";
  const std::string_view step = prefix.is_in_checkpoint ? ": load into a state dict whose keys have it"
                                                        : ": load into a state dict whose keys lack it";
  return ". " + subject + std::string(has) + prefix.text + "'" + cause + std::string(step);
}

std::string nearest_to(const Catalog& catalog, std::string_view key) {
  std::string text;
  for (const std::string& name : catalog.nearest_keys(key, kNearestMax)) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? text : " (nearest: " + text + ")";
}

}  // namespace

Error missing_keys(const Catalog& catalog, const std::vector<std::string>& missing) {
  const std::optional<Prefix> prefix = common_prefix(catalog, missing);
  const std::size_t named = std::min(missing.size(), kNamedKeysMax);
  std::string text = "Missing key in checkpoint state_dict: ";
  for (std::size_t i = 0; i < named; ++i) {
    if (i != 0) text += ", ";
    text += missing[i];
    if (!prefix && i < kExplainedMax) text += nearest_to(catalog, missing[i]);
  }
  if (named < missing.size()) text += " and " + std::to_string(missing.size() - named) + " more";
  if (prefix) text += hint_at(*prefix, missing.size());
  return Error(ErrorCode::kMissingKey, std::move(text)).key(missing[0]);
}

}  // namespace cairn::checkpointer
