#include <cairn/state_dict.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace cairn {
namespace {

// Decoders bound the depth of values; this bound limits the text of values built by a caller.
constexpr int kTextDepthMax = 32;

// The state of a datetime.date, datetime.time or datetime.datetime: year (two bytes), month, day, hour, minute, second,
// microsecond (three bytes); the month or the hour also holds the "fold" bit.
std::string date_text(std::string_view state) {
  constexpr std::size_t kDateBytes = 4;
  constexpr std::size_t kTimeBytes = 6;
  const auto at = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(state[i])); };
  const auto two = [](unsigned number) { return (number < 10 ? "0" : "") + std::to_string(number); };
  std::string text;
  const bool has_date = state.size() == kDateBytes || state.size() == kDateBytes + kTimeBytes;
  if (has_date) {
    text = std::to_string(at(0) << 8 | at(1)) + "-" + two(at(2) & 0x7F) + "-" + two(at(3));
    state.remove_prefix(kDateBytes);
    if (state.empty()) return text;
    text += " ";
  }
  if (state.size() != kTimeBytes) return "of " + std::to_string(state.size()) + " bytes";
  text += two(at(0) & 0x7F) + ":" + two(at(1)) + ":" + two(at(2));
  const std::string microseconds = std::to_string(at(3) << 16 | at(4) << 8 | at(5));
  return text + "." + std::string(microseconds.size() < 6 ? 6 - microseconds.size() : 0, '0') + microseconds;
}

class Printer {
 public:
  explicit Printer(std::size_t characters_max) : characters_max_(characters_max) {}

  void print(const Value& value, int depth) {
    if (full()) return;
    if (depth > kTextDepthMax) {
      text_ += "...";
      return;
    }
    depth_ = depth;
    std::visit([this](const auto& alternative) { print_one(alternative); }, value.variant());
  }

  std::string take() && {
    if (full()) {
      text_.resize(characters_max_);
      text_ += "...";
    }
    return std::move(text_);
  }

 private:
  bool full() const { return text_.size() > characters_max_; }

  void print_one(None) { text_ += "None"; }
  void print_one(bool flag) { text_ += flag ? "True" : "False"; }
  void print_one(std::int64_t number) { text_ += std::to_string(number); }
  void print_one(double number) {
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number).ptr;
    const std::string_view digits(buffer, static_cast<std::size_t>(end - buffer));
    text_ += digits;
    if (digits.find_first_not_of("-0123456789") == std::string_view::npos) text_ += ".0";
  }
  void print_one(const std::string& text) { text_ += "'" + text.substr(0, characters_max_) + "'"; }
  void print_one(const SharedText& text) { print_one(*text); }
  void print_one(const Bytes& bytes) { text_ += "<" + std::to_string(bytes.data.size()) + " bytes>"; }
  void print_one(const BigInt& number) {
    constexpr std::size_t kShownBytesMax = 20;  // a UUID has 16
    const bool negative = !number.data.empty() && (static_cast<unsigned char>(number.data.back()) & 0x80) != 0;
    if (negative || number.data.size() > kShownBytesMax) {
      text_ += "<integer of " + std::to_string(number.data.size()) + " bytes>";
      return;
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string hex;
    for (auto byte = number.data.rbegin(); byte != number.data.rend(); ++byte) {
      hex += kDigits[static_cast<unsigned char>(*byte) >> 4];
      hex += kDigits[static_cast<unsigned char>(*byte) & 15];
    }
    text_ += "0x" + hex.substr(std::min(hex.find_first_not_of('0'), hex.size()));
  }
  void print_one(const Complex& number) {
    text_ += "(";
    print_one(number.real);
    text_ += std::signbit(number.imaginary) ? "" : "+";  // -0.0 and a negative NaN print their sign
    print_one(number.imaginary);
    text_ += "j)";
  }
  void print_one(const List& list) { print_items("[", list.items, "]"); }
  void print_one(const Tuple& tuple) { print_items("(", tuple.items, tuple.items.size() == 1 ? ",)" : ")"); }
  void print_one(const Set& set) { print_items("{", set.items, "}"); }
  void print_one(const Dict& dict) {
    const int depth = depth_;
    text_ += "{";
    for (const auto& [key, value] : dict.items) {
      if (&key != &dict.items.front().first) text_ += ", ";
      print(key, depth + 1);
      text_ += ": ";
      print(value, depth + 1);
    }
    text_ += "}";
  }
  void print_one(const std::unique_ptr<Array>& array) { print_array(*array); }
  void print_one(const SharedArray& array) { print_array(*array); }
  void print_array(const Array& array) {
    constexpr std::string_view kKinds[] = {"array", "scalar", "tensor"};
    text_ += "<";
    text_ += kKinds[static_cast<std::size_t>(array.kind)];
    text_ += " ";
    text_ += name_of(array.dtype);
    text_ += " " + to_string(array.shape) + ">";
  }
  // Printed as the call in the pickle: "<collections.deque((), 3), [1, 2]>".
  void print_one(const std::unique_ptr<Object>& object) {
    const int depth = depth_;
    text_ += "<" + object->qualified_name();
    const auto* arguments = object->arguments.get_if<Tuple>();
    if (arguments != nullptr && object->module == "datetime" && !arguments->items.empty()) {
      if (const auto* state = arguments->items.front().get_if<Bytes>()) {
        text_ += " " + date_text(state->data) + ">";
        return;
      }
    }
    if (arguments != nullptr) print_items("(", arguments->items, ")");
    for (const Value* part : {&object->items, &object->state}) {
      if (part->get_if<None>() != nullptr) continue;
      text_ += ", ";
      print(*part, depth + 1);
    }
    text_ += ">";
  }

  void print_items(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    const int depth = depth_;
    text_ += open;
    for (const Value& item : items) {
      if (&item != &items.front()) text_ += ", ";
      print(item, depth + 1);
    }
    text_ += close;
  }

  std::string text_;
  std::size_t characters_max_;
  int depth_ = 0;
};

}  // namespace

Value::Value(const Value& other)
    : variant_(std::visit(
          [](const auto& alternative) -> Variant {
            using T = std::decay_t<decltype(alternative)>;
            if constexpr (std::is_same_v<T, std::unique_ptr<Object>>) {
              return std::make_unique<Object>(*alternative);
            } else if constexpr (std::is_same_v<T, std::unique_ptr<Array>>) {
              return std::make_unique<Array>(*alternative);
            } else {
              return alternative;
            }
          },
          other.variant_)),
      identity_(other.identity_) {}
Value::Value(Value&& other) noexcept = default;
Value& Value::operator=(const Value& other) { return *this = Value(other); }
Value& Value::operator=(Value&& other) noexcept = default;
Value::~Value() = default;

const Object* Value::object() const noexcept {
  const auto* owner = std::get_if<std::unique_ptr<Object>>(&variant_);
  return owner == nullptr ? nullptr : owner->get();
}

bool operator==(const Value& a, const Value& b) {
  const auto* const text_a = a.get_if<std::string>();
  const auto* const text_b = b.get_if<std::string>();
  if (text_a != nullptr && text_b != nullptr) return text_a == text_b || *text_a == *text_b;
  const auto* const array_a = a.get_if<Array>();
  const auto* const array_b = b.get_if<Array>();
  if (array_a != nullptr && array_b != nullptr) return array_a == array_b || *array_a == *array_b;
  if (a.variant_.index() != b.variant_.index()) return false;
  return std::visit(
      [&](const auto& left) {
        using T = std::decay_t<decltype(left)>;
        const T& right = *std::get_if<T>(&b.variant_);
        if constexpr (std::is_same_v<T, List> || std::is_same_v<T, Tuple> || std::is_same_v<T, Set>) {
          return left.items == right.items;
        } else if constexpr (std::is_same_v<T, Dict>) {
          return left.ordered == right.ordered && left.items == right.items;
        } else if constexpr (std::is_same_v<T, std::unique_ptr<Object>>) {
          return left->qualified_name() == right->qualified_name() && left->arguments == right->arguments &&
                 left->state == right->state && left->items == right->items && left->by_new == right->by_new;
        } else {
          return left == right;
        }
      },
      a.variant_);
}

std::string first_unknown_class(const Value& value) {
  std::vector<const Value*> open{&value};  // no recursion: the input determines the depth
  while (!open.empty()) {
    const Value& next = *open.back();
    open.pop_back();
    if (const Object* object = next.object()) return object->qualified_name();
    const auto push = [&open](const std::vector<Value>& items) {
      for (auto item = items.rbegin(); item != items.rend(); ++item) open.push_back(&*item);
    };
    if (const auto* list = next.get_if<List>()) push(list->items);
    if (const auto* tuple = next.get_if<Tuple>()) push(tuple->items);
    if (const auto* set = next.get_if<Set>()) push(set->items);
    if (const auto* dict = next.get_if<Dict>()) {
      for (auto item = dict->items.rbegin(); item != dict->items.rend(); ++item) {
        open.push_back(&item->second);
        open.push_back(&item->first);
      }
    }
  }
  return {};
}

std::string to_string(const Value& value, std::size_t characters_max) {
  Printer printer(characters_max);
  printer.print(value, 0);
  return std::move(printer).take();
}

}  // namespace cairn
