// 1. Find the ends of the five pickles: read the file's first 64 KiB, and four times as much while a pickle has no end.
// 2. Check magic number and protocol version. Parse the object and the list of keys.
// 3. Walk the object's graph: each persistent id names a storage and its number of bytes.
// 4. Walk the storages behind the pickles in the order of the list of keys; each has the number of elements that the
//    object names.
#include "format/torch_file/legacy_file.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "core/checked.h"
#include "core/little_endian.h"
#include "format/pickle/machine.h"
#include "format/pickle/opcode_scan.h"
#include "format/torch_file/storage_walk.h"
#include "format/torch_file/tensor_node.h"

namespace cairn::torch_file {
namespace {

using pickle::Graph;
using pickle::Kind;
using pickle::Node;

// 0x1950a86a20f9469cfc6c, little endian.
constexpr std::array<std::uint8_t, 10> kMagic = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::int64_t kProtocolVersion = 1001;

constexpr std::size_t kPickleCount = 5;
enum Part : std::size_t { kMagicNumber, kVersion, kHost, kObject, kKeys };

constexpr std::uint64_t kHeadBytesMin = 64 * 1024;
constexpr std::uint64_t kHeadGrowth = 4;
// The pickle of 100,000 tensors takes some 20 MB.
constexpr std::uint64_t kHeadBytesMax = std::uint64_t{1} << 30;

Error damaged(const char* what) { return Error(ErrorCode::kCorrupt, what); }

bool is_magic(const Graph& graph) {
  if (!graph.is(graph.root(), Kind::kBigInteger)) return false;
  const std::span<const std::byte> bytes = graph.bytes(graph.root());
  return std::equal(bytes.begin(), bytes.end(), kMagic.begin(), kMagic.end(),
                    [](std::byte a, std::uint8_t b) { return std::to_integer<std::uint8_t>(a) == b; });
}

// The first bytes of the file, with the ends of the pickles in them.
struct Head {
  std::vector<std::byte> bytes;
  std::array<std::uint64_t, kPickleCount> ends{};

  std::uint64_t begin(Part part) const { return part == 0 ? 0 : ends[part - 1]; }
  std::span<const std::byte> pickled(Part part) const {
    return std::span(bytes).subspan(begin(part), ends[part] - begin(part));
  }
};

Result<void> find_ends(Head& head) {
  std::uint64_t end = 0;
  for (std::size_t part = 0; part < kPickleCount; ++part) {
    const Result<pickle::OpcodeScan> scan = pickle::OpcodeScan::make(std::span(head.bytes).subspan(end));
    if (!scan) {
      Error error(scan.error().code(), scan.error().message());
      if (scan.error().actual()) error = std::move(error).actual(*scan.error().actual());
      return std::move(error).offset(end + scan.error().offset().value_or(0));
    }
    end += scan->bytes_consumed();
    head.ends[part] = end;
  }
  return {};
}

// (1)
Result<Head> read_head(const ByteSource& file) {
  const std::uint64_t bytes_max = std::min(file.size(), kHeadBytesMax);
  for (std::uint64_t bytes = kHeadBytesMin;; bytes *= kHeadGrowth) {
    Head head;
    head.bytes.resize(std::min(bytes, bytes_max));
    CAIRN_TRY(file.read_at(0, head.bytes));
    Result<void> found = find_ends(head);
    if (found) return head;
    if (found.error().code() != ErrorCode::kCorrupt) return std::move(found).error();
    if (bytes < bytes_max) continue;
    if (file.size() <= kHeadBytesMax) return std::move(found).error();
    return Error(ErrorCode::kUnsupported, "the pickles at the file's begin have no end")
        .expected("an end within " + std::to_string(kHeadBytesMax) + " bytes");
  }
}

// A storage as the object's pickle names it.
struct NamedStorage {
  std::uint64_t bytes = 0;
  std::uint64_t element_bytes = 1;
};
using NamedStorages = std::unordered_map<std::string_view, NamedStorage, SeededHash>;

// Step 3.
Result<NamedStorages> named_storages(const Graph& graph) {
  NamedStorages storages;
  const auto note = [&](const StorageWalk::Found& found) -> Result<void> {
    CAIRN_TRY_ASSIGN(const StorageNode storage, read_storage_node(graph, found.id));
    const NamedStorage named{storage.bytes, storage.dtype ? item_bytes(*storage.dtype) : 1};
    const auto [known, is_new] = storages.try_emplace(storage.key, named);
    if (is_new || known->second.bytes == named.bytes) return {};
    return damaged("the object names one storage with two sizes")
        .expected(std::to_string(known->second.bytes) + " bytes")
        .actual(std::to_string(named.bytes) + " bytes");
  };
  CAIRN_TRY(StorageWalk(graph).walk(graph.root(), note));
  return storages;
}

// Step 4.
Result<void> find_storages(const ByteSource& file, const Head& head, const NamedStorages& named, LegacyFile& found) {
  CAIRN_TRY_ASSIGN(const Graph keys, pickle::parse(head.pickled(kKeys)));
  if (!keys.is(keys.root(), Kind::kList)) return damaged("the keys of the storages are not a list");
  std::uint64_t offset = head.ends[kKeys];
  for (const Node node : keys.elements(keys.root())) {
    const std::optional<std::string_view> key = keys.text_if(node);
    const auto storage = key ? named.find(*key) : named.end();
    if (storage == named.end()) return damaged("the list of storages has a key that the object lacks").offset(offset);
    std::array<std::byte, sizeof(std::uint64_t)> count{};
    if (!range_within(offset, count.size(), file.size())) {
      return damaged("the file ends before its storages do").offset(file.size());
    }
    CAIRN_TRY(file.read_at(offset, count));
    const auto elements = load_little_endian<std::uint64_t>(count.data());
    const auto& [bytes, element_bytes] = storage->second;
    if (elements != bytes / element_bytes) {
      return damaged("the number of elements of a storage differs from the object's")
          .offset(offset)
          .expected(std::to_string(bytes / element_bytes))
          .actual(std::to_string(elements));
    }
    offset += count.size();
    if (!range_within(offset, bytes, file.size())) {
      return damaged("the file ends before its storages do")
          .offset(file.size())
          .expected(std::to_string(bytes) + " bytes from " + std::to_string(offset));
    }
    if (!found.storages.emplace(std::string(*key), LegacyStorage{offset, bytes}).second) {
      return damaged("the list of storages has a key twice").offset(offset);
    }
    offset += bytes;
  }
  if (offset == file.size()) return {};
  return Error(ErrorCode::kUnsupported, "bytes behind the last storage: the file may hold a second torch.save")
      .offset(offset)
      .actual(std::to_string(file.size() - offset) + " bytes");
}

}  // namespace

bool begins_legacy_file(std::span<const std::byte> first_bytes) {
  const Result<Graph> graph = pickle::parse(first_bytes);
  return graph && is_magic(*graph);
}

Result<LegacyFile> read_legacy_file(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(Head head, read_head(file));                                    // (1)
  CAIRN_TRY_ASSIGN(const Graph magic, pickle::parse(head.pickled(kMagicNumber)));  // (2)
  if (!is_magic(magic)) return Error(ErrorCode::kUnsupported, "no magic number of torch.save");
  CAIRN_TRY_ASSIGN(const Graph version, pickle::parse(head.pickled(kVersion)));
  if (version.integer_if(version.root()) != kProtocolVersion) {
    return Error(ErrorCode::kUnsupported, "an unknown protocol version of torch.save")
        .expected(std::to_string(kProtocolVersion));
  }
  const std::span<const std::byte> object = head.pickled(kObject);
  std::vector<std::byte> pickled(object.begin(), object.end());
  Result<Graph> graph = pickle::parse(pickled);
  if (!graph) {
    Error error(graph.error().code(), graph.error().message());
    return std::move(error).offset(head.begin(kObject) + graph.error().offset().value_or(0));
  }
  LegacyFile found{std::move(pickled), head.begin(kObject), std::move(*graph), {}};
  CAIRN_TRY_ASSIGN(const NamedStorages named, named_storages(found.graph));  // (3)
  CAIRN_TRY(find_storages(file, head, named, found));                        // (4)
  return found;
}

}  // namespace cairn::torch_file
