#include "format/pickle/graph_writer.h"

#include <string>
#include <string_view>

#include "format/pickle/numpy_node.h"
#include "format/pickle/opcode.h"
#include "format/pickle/value_reader.h"

namespace cairn::pickle {
namespace {

class GraphWriter {
 public:
  GraphWriter(Writer& writer, const Graph& graph, PersistentWriter* persistent, NodeMemo& memo)
      : writer_(writer), graph_(graph), persistent_(persistent), memo_(memo) {}

  // Nests at most kValueDepthMax deep.
  Result<void> write(Node node, std::size_t depth) {
    if (depth > kValueDepthMax) {
      return Error(ErrorCode::kUnsupported, "pickle: nested deeper than allowed, or contains itself")
          .expected("at most " + std::to_string(kValueDepthMax) + " levels");
    }
    if (const auto known = memo_.find(node.bits()); known != memo_.end()) {
      writer_.reference(known->second);
      return {};
    }
    return write_anew(node, depth);
  }

 private:
  // Later references to the node, whose object is on top of the stack, refer to the memo.
  void remember(Node node) { memo_.emplace(node.bits(), writer_.memoize()); }

  Result<void> write_anew(Node node, std::size_t depth) {
    switch (graph_.kind(node)) {
      case Kind::kNone: writer_.none(); return {};
      case Kind::kBool: writer_.boolean(graph_.boolean(node)); return {};
      case Kind::kInteger: writer_.integer(graph_.integer(node)); return {};
      case Kind::kReal: writer_.real(graph_.real(node)); return {};
      case Kind::kGlobal: writer_.global(graph_.module(node), graph_.name(node)); return {};
      case Kind::kText:
        writer_.text(graph_.text(node));
        remember(node);
        return {};
      case Kind::kBigInteger:
        writer_.big_integer(text_of(graph_.bytes(node)));
        remember(node);
        return {};
      case Kind::kBytes:
      case Kind::kByteArray: write_bytes_node(node); return {};
      case Kind::kTuple:
      case Kind::kFrozenSet: return write_fixed(node, depth);
      case Kind::kList:
        writer_.empty_list();
        remember(node);
        return write_elements(node, depth);
      case Kind::kSet:
        writer_.empty_set();
        remember(node);
        return write_elements(node, depth);
      case Kind::kDict:
        writer_.empty_dict();
        remember(node);
        return write_elements(node, depth);
      case Kind::kCall:
      case Kind::kInstance: return write_call(node, depth);
      case Kind::kPersistent: return write_persistent(node);
      case Kind::kFolded: break;
    }
    return Error(ErrorCode::kInternal, "a node of no kind");
  }

  static std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void write_bytes_node(Node node) {
    const std::string data(text_of(graph_.bytes(node)));
    const bool is_array = graph_.is(node, Kind::kByteArray);
    if (is_array) writer_.global("builtins", "bytearray");
    write_bytes(writer_, data);
    if (is_array) {
      writer_.tuple(1);
      writer_.reduce();
    }
    remember(node);
  }

  Result<void> write_fixed(Node node, std::size_t depth) {
    const Elements elements = graph_.elements(node);
    const bool is_tuple = graph_.is(node, Kind::kTuple);
    const bool is_short = is_tuple && elements.size() <= 3;
    if (!is_short) writer_.mark();
    for (const Node element : elements) CAIRN_TRY(write(element, depth + 1));
    if (is_short) {
      writer_.tuple(elements.size());
    } else if (is_tuple) {
      writer_.tuple_since_mark();
    } else {
      writer_.frozen_set();
    }
    if (!elements.empty()) remember(node);
    return {};
  }

  // Adds the elements of the container `node` to the object on top of the stack.
  Result<void> write_elements(Node node, std::size_t depth) {
    const Elements elements = graph_.elements(node);
    if (elements.empty()) return {};
    writer_.mark();
    for (const Node element : elements) CAIRN_TRY(write(element, depth + 1));
    switch (graph_.kind(node)) {
      case Kind::kList: writer_.appends(); break;
      case Kind::kSet: writer_.add_items(); break;
      default: writer_.set_items(); break;
    }
    return {};
  }

  Result<void> write_call(Node node, std::size_t depth) {
    if (persistent_ != nullptr) {
      CAIRN_TRY_ASSIGN(const bool is_written, persistent_->write_call(writer_, graph_, node));
      if (is_written) return remember(node), Result<void>();
    }
    CAIRN_TRY(write(graph_.callable(node), depth + 1));
    CAIRN_TRY(write(graph_.arguments(node), depth + 1));
    if (graph_.is(node, Kind::kInstance)) {
      writer_.new_instance();
    } else {
      writer_.reduce();
    }
    remember(node);
    if (graph_.items(node).is_set()) CAIRN_TRY(write_elements(graph_.items(node), depth));
    if (graph_.state(node).is_set()) {
      CAIRN_TRY(write(graph_.state(node), depth + 1));
      writer_.build();
    }
    return {};
  }

  Result<void> write_persistent(Node node) {
    if (persistent_ == nullptr) {
      return Error(ErrorCode::kUnsupported, "pickle: reference to an object outside the pickle");
    }
    CAIRN_TRY(persistent_->write_persistent(writer_, graph_, graph_.persistent_id(node)));
    remember(node);
    return {};
  }

  Writer& writer_;
  const Graph& graph_;
  PersistentWriter* persistent_;
  NodeMemo& memo_;
};

}  // namespace

int protocol_of(const Graph& graph) {
  const std::span<const std::byte> input = graph.input();
  const bool is_named = input.size() >= 2 && std::to_integer<std::uint8_t>(input[0]) == kProto;
  const int protocol = is_named ? std::to_integer<int>(input[1]) : kFirstModernProtocol;
  if (protocol >= kFirstModernProtocol) return kFirstModernProtocol;
  return protocol <= 2 ? 2 : protocol;
}

Result<void> write_node(Writer& writer, const Graph& graph, Node node, PersistentWriter* persistent, NodeMemo* memo) {
  NodeMemo own;
  return GraphWriter(writer, graph, persistent, memo != nullptr ? *memo : own).write(node, 0);
}

}  // namespace cairn::pickle
