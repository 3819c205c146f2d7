#include "format/pickle/value_writer.h"

#include <cstdint>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "format/pickle/numpy_node.h"
#include "format/pickle/value_reader.h"

namespace cairn::pickle {
namespace {

class ValueWriter {
 public:
  ValueWriter(Writer& writer, TensorWriter* tensors, NodeMemo* memo, bool keeps_all)
      : writer_(writer), tensors_(tensors), memo_(memo), keeps_all_(keeps_all) {}

  // Before the first write: the identities that occur more than once.
  void note_identities(const Value& value) {
    std::unordered_set<std::uint64_t, SeededHash> seen;
    std::vector<const Value*> open{&value};  // no recursion: the input determines the depth
    while (!open.empty()) {
      const Value& next = *open.back();
      open.pop_back();
      if (next.identity() != 0 && !seen.insert(next.identity()).second) repeated_.insert(next.identity());
      push_parts(next, open);
    }
  }

  // Nests at most kValueDepthMax deep.
  Result<void> write(const Value& value, std::size_t depth) {
    if (depth > kValueDepthMax) {
      return Error(ErrorCode::kUnsupported, "a value that nests deeper than allowed")
          .expected("at most " + std::to_string(kValueDepthMax) + " levels");
    }
    const std::uint64_t identity = memo_ != nullptr ? value.identity() : 0;
    if (identity != 0) {
      if (const auto known = memo_->find(identity); known != memo_->end()) {
        writer_.reference(known->second);
        return {};
      }
    }
    bool is_written = false;
    if (identity != 0 && tensors_ != nullptr) {
      CAIRN_TRY_ASSIGN(is_written, tensors_->write_identity(writer_, identity));
    }
    if (!is_written) {
      CAIRN_TRY(std::visit([&](const auto& alternative) { return write_one(alternative, depth); }, value.variant()));
    }
    if (identity != 0 && (keeps_all_ || repeated_.contains(identity)) && !memo_->contains(identity)) {
      memo_->emplace(identity, writer_.memoize());
    }
    return {};
  }

 private:
  static void push_parts(const Value& value, std::vector<const Value*>& open) {
    const auto push = [&open](const std::vector<Value>& items) {
      for (const Value& item : items) open.push_back(&item);
    };
    if (const auto* list = value.get_if<List>()) push(list->items);
    if (const auto* tuple = value.get_if<Tuple>()) push(tuple->items);
    if (const auto* set = value.get_if<Set>()) push(set->items);
    if (const auto* dict = value.get_if<Dict>()) {
      for (const auto& [key, item] : dict->items) open.insert(open.end(), {&key, &item});
    }
    if (const Object* object = value.object()) {
      open.insert(open.end(), {&object->arguments, &object->state, &object->items});
    }
  }

  Result<void> write_one(None, std::size_t) { return writer_.none(), Result<void>(); }
  Result<void> write_one(bool flag, std::size_t) { return writer_.boolean(flag), Result<void>(); }
  Result<void> write_one(std::int64_t number, std::size_t) { return writer_.integer(number), Result<void>(); }
  Result<void> write_one(double number, std::size_t) { return writer_.real(number), Result<void>(); }
  Result<void> write_one(const std::string& text, std::size_t) { return writer_.text(text), Result<void>(); }
  Result<void> write_one(const SharedText& text, std::size_t) {
    if (const auto known = texts_.find(text.get()); known != texts_.end()) {
      writer_.reference(known->second);
    } else {
      writer_.text(*text);
      texts_.emplace(text.get(), writer_.memoize());
    }
    return {};
  }
  Result<void> write_one(const Bytes& bytes, std::size_t) { return write_bytes(writer_, bytes.data), Result<void>(); }
  Result<void> write_one(const BigInt& number, std::size_t) { return writer_.big_integer(number.data), Result<void>(); }

  Result<void> write_one(const Complex& number, std::size_t) {
    writer_.global(builtins(), "complex");
    writer_.real(number.real);
    writer_.real(number.imaginary);
    writer_.tuple(2);
    writer_.reduce();
    return {};
  }

  Result<void> write_one(const List& list, std::size_t depth) {
    writer_.empty_list();
    return write_items(list, depth);
  }

  Result<void> write_one(const Tuple& tuple, std::size_t depth) {
    const std::size_t count = tuple.items.size();
    if (count > 3) writer_.mark();
    for (const Value& item : tuple.items) CAIRN_TRY(write(item, depth + 1));
    if (count > 3) {
      writer_.tuple_since_mark();
    } else {
      writer_.tuple(count);
    }
    return {};
  }

  Result<void> write_one(const Set& set, std::size_t depth) {
    if (writer_.protocol() >= kFirstModernProtocol) {
      writer_.empty_set();
      return write_items(set, depth);
    }
    writer_.global(builtins(), "set");
    writer_.empty_list();
    CAIRN_TRY(write_elements(set.items, depth));
    writer_.tuple(1);
    writer_.reduce();
    return {};
  }

  Result<void> write_one(const Dict& dict, std::size_t depth) {
    if (dict.ordered) {
      writer_.global("collections", "OrderedDict");
      writer_.empty_tuple();
      writer_.reduce();
    } else {
      writer_.empty_dict();
    }
    return write_items(dict, depth);
  }

  Result<void> write_one(const std::unique_ptr<Array>& array, std::size_t) { return write_array(*array); }
  Result<void> write_one(const SharedArray& array, std::size_t) { return write_array(*array); }
  Result<void> write_array(const Array& array) {
    if (array.kind != Array::Kind::kTensor) return write_numpy(writer_, array);
    if (tensors_ != nullptr) return tensors_->write_tensor(writer_, array);
    return Error(ErrorCode::kUnsupported, "a tensor where the file has no place for its bytes");
  }

  Result<void> write_one(const std::unique_ptr<Object>& object, std::size_t depth) {
    if (tensors_ != nullptr) {
      CAIRN_TRY_ASSIGN(const bool is_written, tensors_->write_object(writer_, *object));
      if (is_written) return {};
    }
    // The callable is itself the result of a call: see to_value().
    if (object->module.empty() && object->name.empty()) {
      const auto* call = object->arguments.get_if<Tuple>();
      if (call == nullptr || call->items.size() != 2)
        return Error(ErrorCode::kUnsupported, "an object without a class");
      for (const Value& part : call->items) CAIRN_TRY(write(part, depth + 1));
    } else {
      if (writer_.protocol() < kFirstModernProtocol && object->qualified_name().find('\n') != std::string::npos) {
        return Error(ErrorCode::kUnsupported, "a class whose name has two lines");
      }
      writer_.global(object->module, object->name);
      if (object->arguments.get_if<None>() != nullptr) return {};
      CAIRN_TRY(write(object->arguments, depth + 1));
    }
    if (object->by_new) {
      writer_.new_instance();
    } else {
      writer_.reduce();
    }
    if (const auto* list = object->items.get_if<List>()) CAIRN_TRY(write_items(*list, depth));
    if (const auto* set = object->items.get_if<Set>()) CAIRN_TRY(write_items(*set, depth));
    if (const auto* dict = object->items.get_if<Dict>()) CAIRN_TRY(write_items(*dict, depth));
    if (object->state.get_if<None>() == nullptr) {
      CAIRN_TRY(write(object->state, depth + 1));
      writer_.build();
    }
    return {};
  }

  // Each adds items to the object on top of the stack.
  Result<void> write_items(const List& list, std::size_t depth) { return write_elements(list.items, depth); }
  Result<void> write_items(const Set& set, std::size_t depth) {
    if (set.items.empty()) return {};
    writer_.mark();
    for (const Value& item : set.items) CAIRN_TRY(write(item, depth + 1));
    writer_.add_items();
    return {};
  }
  Result<void> write_items(const Dict& dict, std::size_t depth) {
    if (dict.items.empty()) return {};
    writer_.mark();
    for (const auto& [key, value] : dict.items) {
      CAIRN_TRY(write(key, depth + 1));
      CAIRN_TRY(write(value, depth + 1));
    }
    writer_.set_items();
    return {};
  }
  Result<void> write_elements(const std::vector<Value>& items, std::size_t depth) {
    if (items.empty()) return {};
    writer_.mark();
    for (const Value& item : items) CAIRN_TRY(write(item, depth + 1));
    writer_.appends();
    return {};
  }

  // Protocol 2 is Python 2's protocol and uses Python 2's names; Python 3 and torch translate the names.
  std::string_view builtins() const { return writer_.protocol() >= 3 ? "builtins" : "__builtin__"; }

  Writer& writer_;
  TensorWriter* tensors_;
  NodeMemo* memo_;
  bool keeps_all_;
  std::unordered_set<std::uint64_t, SeededHash> repeated_;
  std::unordered_map<const std::string*, std::uint32_t> texts_;  // the shared texts, by entry of the memo
};

}  // namespace

Result<void> write_value(Writer& writer, const Value& value, TensorWriter* tensors, NodeMemo* memo, bool keeps_all) {
  ValueWriter values(writer, tensors, memo, keeps_all);
  if (memo != nullptr) values.note_identities(value);
  return values.write(value, 0);
}

}  // namespace cairn::pickle
