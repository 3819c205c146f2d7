#include "core/value_comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/element_comparison.h"

namespace cairn {
namespace {

constexpr std::size_t kTextMax = 60;

// Text that orders the keys of a dict and the items of a set.
std::string order_text(const Value& value) { return to_string(value, std::numeric_limits<std::size_t>::max()); }

// The items with their order texts, sorted by them.
template <typename Item, typename KeyOf>
std::vector<std::pair<std::string, const Item*>> sorted(const std::vector<Item>& items, const KeyOf& key_of) {
  std::vector<std::pair<std::string, const Item*>> result;
  result.reserve(items.size());
  for (const Item& item : items) result.emplace_back(order_text(key_of(item)), &item);
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  return result;
}

// Recursion is bounded: the decoder bounds the depth of a Value.
class ValueComparer {
 public:
  explicit ValueComparer(std::optional<double> tolerance) : tolerance_(tolerance) {}

  // Sets found() if the values differ.
  void compare(const Value& a, const Value& b) {
    if (found_) return;
    if (a.get_if<std::string>() != nullptr && b.get_if<std::string>() != nullptr) {
      if (a != b) differ(a, b);
      return;
    }
    const auto* const array_a = a.get_if<Array>();
    const auto* const array_b = b.get_if<Array>();
    if (array_a != nullptr && array_b != nullptr) return compare_arrays(*array_a, *array_b, a, b);
    if (a.variant().index() != b.variant().index()) return differ(a, b);
    std::visit(
        [&](const auto& left) {
          using T = std::decay_t<decltype(left)>;
          compare_alternatives(left, std::get<T>(b.variant()), a, b);
        },
        a.variant());
  }

  std::optional<ValueDifference> found() && { return std::move(found_); }

 private:
  void differ(const Value& a, const Value& b) { differ_by(to_string(a, kTextMax), to_string(b, kTextMax)); }
  void differ_by(std::string a, std::string b) { found_ = ValueDifference{{}, std::move(a), std::move(b)}; }

  // A part of a container; `name` is its place.
  void compare_part(const std::string& name, const Value& a, const Value& b) {
    if (found_) return;
    compare(a, b);
    if (found_) found_->place.insert(0, name);
  }
  void lacks(const std::string& name, const Value* a, const Value* b) {
    differ_by(a != nullptr ? to_string(*a, kTextMax) : "", b != nullptr ? to_string(*b, kTextMax) : "");
    found_->place = name;
  }

  bool agree(double a, double b) const {
    if (std::isnan(a) && std::isnan(b)) return true;
    if (tolerance_) return agree_within(a, b, *tolerance_);
    return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
  }

  template <typename T>
  void compare_alternatives(const T& left, const T& right, const Value& a, const Value& b) {
    if constexpr (std::is_same_v<T, double>) {
      if (!agree(left, right)) differ(a, b);
    } else if constexpr (std::is_same_v<T, Complex>) {
      if (!agree(left.real, right.real) || !agree(left.imaginary, right.imaginary)) differ(a, b);
    } else if constexpr (std::is_same_v<T, List> || std::is_same_v<T, Tuple>) {
      compare_rows(left.items, right.items);
    } else if constexpr (std::is_same_v<T, Set>) {
      compare_sets(left, right);
    } else if constexpr (std::is_same_v<T, Dict>) {
      if (left.ordered != right.ordered) {
        return differ_by(left.ordered ? "an OrderedDict" : "a dict", right.ordered ? "an OrderedDict" : "a dict");
      }
      left.ordered ? compare_ordered(left, right) : compare_dicts(left, right);
    } else if constexpr (std::is_same_v<T, std::unique_ptr<Object>>) {
      compare_objects(*left, *right, a, b);
    } else {
      if (!(left == right)) differ(a, b);
    }
  }

  void compare_rows(const std::vector<Value>& a, const std::vector<Value>& b) {
    const std::size_t common = std::min(a.size(), b.size());
    for (std::size_t i = 0; i < common && !found_; ++i) compare_part("[" + std::to_string(i) + "]", a[i], b[i]);
    if (found_ || a.size() == b.size()) return;
    const bool in_a = a.size() > common;
    lacks("[" + std::to_string(common) + "]", in_a ? &a[common] : nullptr, in_a ? nullptr : &b[common]);
  }

  void compare_sets(const Set& a, const Set& b) {
    const auto itself = [](const Value& item) -> const Value& { return item; };
    const auto items_a = sorted(a.items, itself);
    const auto items_b = sorted(b.items, itself);
    merge(items_a, items_b, [&](const std::string&, const Value* item_a, const Value* item_b) {
      if (item_a != nullptr && item_b != nullptr) return compare(*item_a, *item_b);
      lacks({}, item_a, item_b);
    });
  }

  void compare_dicts(const Dict& a, const Dict& b) {
    const auto key = [](const auto& item) -> const Value& { return item.first; };
    using Item = std::pair<Value, Value>;
    const auto items_a = sorted(a.items, key);
    const auto items_b = sorted(b.items, key);
    merge(items_a, items_b, [&](const std::string& text, const Item* item_a, const Item* item_b) {
      const std::string name = "[" + text.substr(0, kTextMax) + "]";
      if (item_a == nullptr || item_b == nullptr) {
        return lacks(name, item_a != nullptr ? &item_a->second : nullptr,
                     item_b != nullptr ? &item_b->second : nullptr);
      }
      compare(item_a->first, item_b->first);  // keys of one text may differ: <integer of 30 bytes>
      compare_part(name, item_a->second, item_b->second);
    });
  }

  // Calls `visit(text, item of a, item of b)` in the order of the texts until a difference is found; an item without a
  // partner of equal text comes with null.
  template <typename Items, typename Visit>
  void merge(const Items& a, const Items& b, const Visit& visit) {
    std::size_t i = 0;
    std::size_t j = 0;
    while (!found_ && (i < a.size() || j < b.size())) {
      const bool from_a = i < a.size() && (j == b.size() || a[i].first <= b[j].first);
      const bool from_b = j < b.size() && (i == a.size() || b[j].first <= a[i].first);
      visit(from_a ? a[i].first : b[j].first, from_a ? a[i].second : nullptr, from_b ? b[j].second : nullptr);
      i += from_a ? 1 : 0;
      j += from_b ? 1 : 0;
    }
  }

  void compare_ordered(const Dict& a, const Dict& b) {
    const std::size_t common = std::min(a.items.size(), b.items.size());
    for (std::size_t i = 0; i < common && !found_; ++i) {
      compare_part(" key " + std::to_string(i), a.items[i].first, b.items[i].first);
      compare_part("[" + to_string(a.items[i].first, kTextMax) + "]", a.items[i].second, b.items[i].second);
    }
    if (found_ || a.items.size() == b.items.size()) return;
    const bool in_a = a.items.size() > common;
    const auto& [key, value] = in_a ? a.items[common] : b.items[common];
    lacks("[" + to_string(key, kTextMax) + "]", in_a ? &value : nullptr, in_a ? nullptr : &value);
  }

  void compare_arrays(const Array& left, const Array& right, const Value& a, const Value& b) {
    const bool alike = left.kind == right.kind && left.dtype == right.dtype && left.shape == right.shape &&
                       left.data.size() == right.data.size();
    if (!alike) return differ(a, b);
    if (!compared_.emplace(&left, &right).second || left.data == right.data) return;
    const auto elements = [](const Array& array) {
      return Elements{array.dtype, std::as_bytes(std::span(array.data))};
    };
    const ElementTally tally = compare_elements(elements(left), elements(right), 0, tolerance_);
    if (tally.differing == 0) return;
    differ(a, b);
    found_->b += ", " + std::to_string(tally.differing) + " elements differ";
  }

  void compare_objects(const Object& left, const Object& right, const Value& a, const Value& b) {
    if (left.qualified_name() != right.qualified_name() || left.by_new != right.by_new) return differ(a, b);
    compare_part(" arguments", left.arguments, right.arguments);
    compare_part(" state", left.state, right.state);
    compare_part(" items", left.items, right.items);
  }

  std::optional<double> tolerance_;
  std::optional<ValueDifference> found_;
  // Pairs that have been found to agree: parts of a value may share a large array.
  std::set<std::pair<const Array*, const Array*>> compared_;
};

}  // namespace

std::optional<ValueDifference> first_difference(const Value& a, const Value& b, std::optional<double> tolerance) {
  ValueComparer comparer(tolerance);
  comparer.compare(a, b);
  return std::move(comparer).found();
}

}  // namespace cairn
