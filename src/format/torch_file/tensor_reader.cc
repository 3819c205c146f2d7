#include "format/torch_file/tensor_reader.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "format/pickle/machine.h"
#include "format/torch_file/archive_reader.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// Headers and pickle of a tensor item lie in the item's first bytes: a single read of the item serves all reads of the
// parser.
class HeadSource final : public ByteSource {
 public:
  explicit HeadSource(const ByteSource& item) : item_(item) {}

  Result<void> read_head() {
    const std::uint64_t wanted = std::min<std::uint64_t>(head_.size(), item_.size());
    CAIRN_TRY(item_.read_at(0, std::span(head_).first(wanted)));
    held_ = wanted;
    return {};
  }
  std::uint64_t size() const override { return item_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (offset > held_ || target.size() > held_ - offset) return item_.read_at(offset, target);
    if (!target.empty()) std::memcpy(target.data(), head_.data() + offset, target.size());
    return {};
  }

 private:
  const ByteSource& item_;
  std::uint64_t held_ = 0;
  std::array<std::byte, 1024> head_;
};

Error not_plain(std::string_view what) {
  return Error(ErrorCode::kUnsupported, "not a plain tensor").expected("a strided tensor").actual(what);
}

// The root of the pickle in words, for the error that refuses the root.
std::string describe(const Graph& graph, Node node) {
  const bool made = graph.is(node, Kind::kCall) || graph.is(node, Kind::kInstance);
  if (!made) return "a value that is not a tensor";
  const Node callable = graph.callable(node);
  if (!graph.is(callable, Kind::kGlobal)) return "the result of an unknown call";
  const std::string name = std::string(graph.module(callable)) + "." + std::string(graph.name(callable));
  const bool has_state = graph.state(node).is_set() || graph.items(node).is_set();
  return has_state ? name + " with a state" : name;
}

Result<TensorNode> read_root(const Graph& graph) {
  Node root = graph.root();
  const std::optional<ParameterNode> parameter = read_parameter_node(graph, root);
  if (parameter) root = parameter->tensor;
  CAIRN_TRY_ASSIGN(std::optional<TensorNode> tensor, read_tensor_node(graph, root));
  if (!tensor) return not_plain(describe(graph, root));
  if (is_quantized(tensor->dtype)) return not_plain("a quantised tensor");
  if (parameter) tensor->requires_grad = parameter->requires_grad;
  return std::move(*tensor);
}

}  // namespace

Result<StoredTensor> read_tensor_item(const ByteSource& item) {
  HeadSource source(item);
  CAIRN_TRY(source.read_head());
  CAIRN_TRY_ASSIGN(const ArchiveReader archive, ArchiveReader::open(source));
  CAIRN_TRY_ASSIGN(const std::vector<std::byte> pickle, archive.read("data.pkl"));
  CAIRN_TRY_ASSIGN(const Graph graph, pickle::parse(pickle));
  CAIRN_TRY_ASSIGN(TensorNode tensor, read_root(graph));

  std::string name = "data/";
  name += tensor.storage_key;
  CAIRN_TRY_ASSIGN(const zip::DirectoryEntry* entry, archive.require(name));
  if (entry->size != tensor.storage_bytes) {
    return Error(ErrorCode::kCorrupt, "a storage record of the wrong size")
        .offset(entry->local_header_offset)
        .expected(std::to_string(tensor.storage_bytes) + " bytes")
        .actual(std::to_string(entry->size) + " bytes");
  }
  StoredTensor record;
  CAIRN_TRY_ASSIGN(record.record_offset, zip::payload_offset(source, *entry));
  CAIRN_TRY_ASSIGN(record.big_endian, archive.big_endian());
  record.dtype = tensor.dtype;
  record.sizes = std::move(tensor.sizes);
  record.strides = std::move(tensor.strides);
  record.first_element = tensor.storage_offset;
  record.record_bytes = entry->size;
  record.record_crc = entry->crc;
  record.conjugate = tensor.conjugate;
  record.negative = tensor.negative;
  record.requires_grad = tensor.requires_grad;
  return record;
}

}  // namespace cairn::torch_file
