#include "format/pickle/value_reader.h"

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "core/seeded_hash.h"
#include "format/pickle/global_table.h"
#include "format/pickle/numpy_node.h"

namespace cairn::pickle {
namespace {

bool is_builtin(std::string_view module) { return module == "builtins" || module == "__builtin__"; }

// Protocol 2 uses the names of Python 2, which Python 3 translates while reading. Values hold the names of Python 3.
struct Renamed {
  std::string_view old_module;
  std::string_view module;
};
constexpr std::array kRenamedModules = {Renamed{"__builtin__", "builtins"}, Renamed{"copy_reg", "copyreg"}};
struct RenamedBuiltin {
  std::string_view old_name;
  std::string_view name;
};
constexpr std::array kRenamedBuiltins = {RenamedBuiltin{"xrange", "range"}, RenamedBuiltin{"long", "int"},
                                         RenamedBuiltin{"unicode", "str"}};

GlobalName name_of_today(GlobalName global) {
  const bool was_builtin = global.module == "__builtin__";
  for (const Renamed& renamed : kRenamedModules) {
    if (global.module == renamed.old_module) global.module = renamed.module;
  }
  if (!was_builtin) return global;
  for (const RenamedBuiltin& renamed : kRenamedBuiltins) {
    if (global.name == renamed.old_name) global.name = renamed.name;
  }
  return global;
}

// A shorter text is copied. A reference takes 2 bytes of the input: the copy has no more than the budget's share.
constexpr std::size_t kSharedTextMin = 32;
// Of a shared text beside its characters: the std::string with its count of owners, and an entry of a table.
constexpr std::uint64_t kSharedTextBytes = 160;
// Part of the characters that each reference to a shared text is charged: a program that prints or compares the value
// takes its time for each reference.
constexpr std::uint64_t kReferenceShare = 8;

class ValueReader {
 public:
  ValueReader(const Graph& graph, ByteBudget& budget, Resolver* resolver)
      : graph_(graph), budget_(budget), resolver_(resolver) {}

  // Nests at most kValueDepthMax deep. The caller has charged the budget for the Value itself; read() charges for
  // memory beside the Value.
  Result<Value> read(Node node, std::size_t depth);

 private:
  Result<Value> read_anew(Node node, std::size_t depth);
  Result<Value> read_text(Node node);
  Result<std::vector<Value>> read_elements(Node node, std::size_t depth);
  Result<std::unique_ptr<Object>> make_object(std::string_view module, std::string_view name);
  Result<Value> read_dict(Node node, bool ordered, std::size_t depth);
  Result<std::optional<Dict>> read_pairs(Node list, std::size_t depth);
  Result<std::optional<Value>> read_ordered_dict(Node node, std::size_t depth);
  Result<Value> read_call(Node node, std::size_t depth);
  Result<std::optional<Value>> read_known_call(Node node, std::size_t depth);
  Result<Value> read_object(Node node, std::size_t depth);
  // The call of a builtin with one argument.
  Result<Value> call_of(std::string_view builtin, Value argument);

  const Graph& graph_;
  ByteBudget& budget_;
  Resolver* resolver_;
  std::unordered_map<std::uint64_t, SharedText, SeededHash> texts_;  // by node
};

Result<std::unique_ptr<Object>> ValueReader::make_object(std::string_view module, std::string_view name) {
  const GlobalName today = name_of_today({module, name});
  CAIRN_TRY(budget_.charge(sizeof(Object) + heap_bytes(today.module.size()) + heap_bytes(today.name.size())));
  auto object = std::make_unique<Object>();
  object->module = today.module;
  object->name = today.name;
  return object;
}

Result<Value> ValueReader::call_of(std::string_view builtin, Value argument) {
  CAIRN_TRY(budget_.charge(sizeof(Value)));
  Tuple arguments;
  arguments.items.push_back(std::move(argument));
  CAIRN_TRY_ASSIGN(std::unique_ptr<Object> object, make_object("builtins", builtin));
  object->arguments = std::move(arguments);
  return Value(std::move(object));
}

Result<Value> ValueReader::read_text(Node node) {
  const std::string_view text = graph_.text(node);
  if (text.size() < kSharedTextMin) {
    CAIRN_TRY(budget_.charge(heap_bytes(text.size())));
    return Value(text);
  }
  SharedText& shared = texts_[node.bits()];
  if (shared != nullptr) {
    CAIRN_TRY(budget_.charge(text.size() / kReferenceShare));
  } else {
    CAIRN_TRY(budget_.charge(heap_bytes(text.size()) + kSharedTextBytes));
    shared = std::make_shared<const std::string>(text);
  }
  return Value(shared);
}

Result<std::vector<Value>> ValueReader::read_elements(Node node, std::size_t depth) {
  const Elements range = graph_.elements(node);
  CAIRN_TRY(budget_.charge(range.size(), sizeof(Value)));
  std::vector<Value> values;
  values.reserve(range.size());
  for (const Node element : range) {
    CAIRN_TRY_ASSIGN(Value value, read(element, depth + 1));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Value> ValueReader::read_dict(Node node, bool ordered, std::size_t depth) {
  Dict dict;
  dict.ordered = ordered;
  std::optional<Value> key;
  if (node.is_set()) {
    const Elements range = graph_.elements(node);
    CAIRN_TRY(budget_.charge(range.size(), sizeof(Value)));
    dict.items.reserve(range.size() / 2);
    for (const Node element : range) {
      CAIRN_TRY_ASSIGN(Value value, read(element, depth + 1));
      if (!key) {
        key = std::move(value);
        continue;
      }
      dict.items.emplace_back(std::move(*key), std::move(value));
      key.reset();
    }
  }
  return Value(std::move(dict));
}

// [[key, value], ...]: the argument of an OrderedDict of Python 2. Nullopt for another list.
Result<std::optional<Dict>> ValueReader::read_pairs(Node list, std::size_t depth) {
  Dict dict;
  dict.ordered = true;
  CAIRN_TRY(budget_.charge(graph_.elements(list).size(), 2 * sizeof(Value)));
  for (const Node pair : graph_.elements(list)) {
    const bool is_row = graph_.is(pair, Kind::kList) || graph_.is(pair, Kind::kTuple);
    if (!is_row || graph_.elements(pair).size() != 2) return std::optional<Dict>();
    CAIRN_TRY_ASSIGN(Value key, read(*graph_.elements(pair).begin(), depth + 2));
    CAIRN_TRY_ASSIGN(Value value, read(*++graph_.elements(pair).begin(), depth + 2));
    dict.items.emplace_back(std::move(key), std::move(value));
  }
  return std::optional(std::move(dict));
}

// Nullopt for a call with arguments of another form.
Result<std::optional<Value>> ValueReader::read_ordered_dict(Node node, std::size_t depth) {
  const Elements arguments = graph_.elements(graph_.arguments(node));
  const Node items = graph_.items(node);
  if (items.is_set() && !graph_.is(items, Kind::kDict)) return std::optional<Value>();
  if (arguments.empty()) {
    CAIRN_TRY_ASSIGN(Value dict, read_dict(items, true, depth));
    return std::optional(std::move(dict));
  }
  if (items.is_set() || arguments.size() != 1 || !graph_.is(arguments.front(), Kind::kList)) {
    return std::optional<Value>();
  }
  CAIRN_TRY_ASSIGN(std::optional<Dict> dict, read_pairs(arguments.front(), depth));
  if (!dict) return std::optional<Value>();
  return std::optional(Value(*std::move(dict)));
}

// Whether Python can tell one shared object from two equal objects: mutable objects, and containers that may hold
// mutable objects.
bool has_identity(Kind kind) {
  switch (kind) {
    case Kind::kByteArray:
    case Kind::kTuple:
    case Kind::kFrozenSet:
    case Kind::kList:
    case Kind::kSet:
    case Kind::kDict:
    case Kind::kCall:
    case Kind::kInstance: return true;
    default: return false;
  }
}

Result<Value> ValueReader::read(Node node, std::size_t depth) {
  CAIRN_TRY_ASSIGN(Value value, read_anew(node, depth));
  if (has_identity(graph_.kind(node))) value.set_identity(node.bits());
  return value;
}

Result<Value> ValueReader::read_anew(Node node, std::size_t depth) {
  if (depth > kValueDepthMax) {
    return Error(ErrorCode::kUnsupported, "pickle: nested deeper than allowed, or contains itself")
        .expected("at most " + std::to_string(kValueDepthMax) + " levels");
  }
  switch (graph_.kind(node)) {
    case Kind::kNone: return Value();
    case Kind::kBool: return Value(graph_.boolean(node));
    case Kind::kInteger: return Value(graph_.integer(node));
    case Kind::kReal: return Value(graph_.real(node));
    case Kind::kText: return read_text(node);
    case Kind::kBigInteger:
    case Kind::kBytes:
    case Kind::kByteArray: {
      const std::span<const std::byte> bytes = graph_.bytes(node);
      CAIRN_TRY(budget_.charge(heap_bytes(bytes.size())));
      std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
      if (graph_.is(node, Kind::kBigInteger)) return Value(BigInt{std::move(data)});
      if (graph_.is(node, Kind::kBytes)) return Value(Bytes{std::move(data)});
      return call_of("bytearray", Value(Bytes{std::move(data)}));
    }
    case Kind::kTuple: {
      CAIRN_TRY_ASSIGN(std::vector<Value> items, read_elements(node, depth));
      return Value(Tuple{std::move(items)});
    }
    case Kind::kList: {
      CAIRN_TRY_ASSIGN(std::vector<Value> items, read_elements(node, depth));
      return Value(List{std::move(items)});
    }
    case Kind::kSet: {
      CAIRN_TRY_ASSIGN(std::vector<Value> items, read_elements(node, depth));
      return Value(Set{std::move(items)});
    }
    case Kind::kFrozenSet: {
      CAIRN_TRY_ASSIGN(std::vector<Value> items, read_elements(node, depth));
      return call_of("frozenset", Value(List{std::move(items)}));
    }
    case Kind::kDict: return read_dict(node, false, depth);
    case Kind::kGlobal: {
      CAIRN_TRY_ASSIGN(std::unique_ptr<Object> object, make_object(graph_.module(node), graph_.name(node)));
      return Value(std::move(object));
    }
    case Kind::kCall:
    case Kind::kInstance:
    case Kind::kPersistent:
    case Kind::kFolded: return read_call(node, depth);
  }
  return Error(ErrorCode::kInternal, "a node of no kind");
}

Result<Value> ValueReader::read_call(Node node, std::size_t depth) {
  if (resolver_ != nullptr) {
    CAIRN_TRY_ASSIGN(std::optional<Value> resolved, resolver_->resolve(graph_, node, budget_));
    if (resolved) return std::move(*resolved);
  }
  if (graph_.is(node, Kind::kPersistent) || graph_.is(node, Kind::kFolded)) {
    return Error(ErrorCode::kUnsupported, "pickle: reference to an object outside the pickle");
  }
  CAIRN_TRY_ASSIGN(std::optional<Value> known, read_known_call(node, depth));
  if (known) return std::move(*known);
  return read_object(node, depth);
}

// The plain value of a call with a known name; nullopt for all other calls.
Result<std::optional<Value>> ValueReader::read_known_call(Node node, std::size_t depth) {
  using Maybe = std::optional<Value>;
  const Node callable = graph_.callable(node);
  if (!graph_.is(node, Kind::kCall) || !graph_.is(callable, Kind::kGlobal)) return Maybe();
  CAIRN_TRY_ASSIGN(std::optional<Array> array, read_numpy_node(graph_, node, budget_));
  if (array) return Maybe(std::move(*array));
  CAIRN_TRY_ASSIGN(std::optional<std::string> bytes, bytes_of(graph_, node, budget_));
  if (bytes) return Maybe(Bytes{std::move(*bytes)});
  if (graph_.state(node).is_set()) return Maybe();
  const std::string_view module = graph_.module(callable);
  const std::string_view name = graph_.name(callable);
  const Elements arguments = graph_.elements(graph_.arguments(node));
  const Node items = graph_.items(node);
  if (module == "collections" && name == "OrderedDict") return read_ordered_dict(node, depth);
  if (!is_builtin(module) || items.is_set()) return Maybe();
  if (name == "set" && arguments.size() == 1 && graph_.is(arguments.front(), Kind::kList)) {
    CAIRN_TRY_ASSIGN(std::vector<Value> members, read_elements(arguments.front(), depth));
    return Maybe(Set{std::move(members)});
  }
  if (name == "complex" && arguments.size() == 2) {
    const Node real = *arguments.begin();
    const Node imaginary = *++arguments.begin();
    if (!graph_.is(real, Kind::kReal) || !graph_.is(imaginary, Kind::kReal)) return Maybe();
    return Maybe(Complex{graph_.real(real), graph_.real(imaginary)});
  }
  return Maybe();
}

// The value, if it is a class or function itself; null otherwise.
const Object* name_alone(const Value& value) {
  const Object* object = value.object();
  return object != nullptr && object->arguments.get_if<None>() != nullptr ? object : nullptr;
}

Result<Value> ValueReader::read_object(Node node, std::size_t depth) {
  const Node callable = graph_.callable(node);
  const bool is_named = graph_.is(callable, Kind::kGlobal);
  CAIRN_TRY_ASSIGN(std::unique_ptr<Object> object, make_object(is_named ? graph_.module(callable) : std::string_view(),
                                                               is_named ? graph_.name(callable) : std::string_view()));
  CAIRN_TRY_ASSIGN(object->arguments, read(graph_.arguments(node), depth + 1));
  if (!is_named) {  // the callable is itself the result of a call
    CAIRN_TRY(budget_.charge(2, sizeof(Value)));
    CAIRN_TRY_ASSIGN(Value what, read(callable, depth + 1));
    if (const Object* name = name_alone(what)) {  // the resolver knows the class
      object->module = name->module;
      object->name = name->name;
    } else {
      Tuple call;
      call.items.push_back(std::move(what));
      call.items.push_back(std::move(object->arguments));
      object->arguments = std::move(call);
    }
  }
  object->by_new = graph_.is(node, Kind::kInstance);
  if (graph_.state(node).is_set()) {
    CAIRN_TRY_ASSIGN(object->state, read(graph_.state(node), depth + 1));
  }
  if (graph_.items(node).is_set()) {
    CAIRN_TRY_ASSIGN(object->items, read(graph_.items(node), depth + 1));
  }
  return Value(std::move(object));
}

}  // namespace

Result<Value> to_value(const Graph& graph, Node node, ByteBudget& budget, Resolver* resolver) {
  return ValueReader(graph, budget, resolver).read(node, 0);
}

}  // namespace cairn::pickle
