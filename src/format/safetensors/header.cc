// 1. Read the length of the header and hold it against the size of the file and the format's limit.
// 2. Read the header; it begins with '{'.
// 3. Read one member per tensor; each has dtype, shape and data_offsets, each once and nothing more.
// 4. Sort the tensors by their bytes. Each begins where the tensor before it ends, and the last ends with the file.
// 5. Read the checksums, if Cairn wrote the file, and hold the header against its own.
#include "format/safetensors/header.h"

#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "core/seeded_hash.h"
#include "format/json/json_reader.h"
#include "format/json/json_string.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <tuple>
#include <unordered_set>

namespace cairn::safetensors {
namespace {

constexpr std::string_view kMetadataName = "__metadata__";

struct NamedType {
  std::string_view name;
  DType dtype;
};
constexpr std::array kTypes{
    NamedType{"BOOL", DType::kBool},
    NamedType{"U8", DType::kUInt8},
    NamedType{"I8", DType::kInt8},
    NamedType{"F8_E5M2", DType::kFloat8E5M2},
    NamedType{"F8_E4M3", DType::kFloat8E4M3FN},
    NamedType{"F8_E8M0", DType::kFloat8E8M0FNU},
    NamedType{"F8_E4M3FNUZ", DType::kFloat8E4M3FNUZ},
    NamedType{"F8_E5M2FNUZ", DType::kFloat8E5M2FNUZ},
    NamedType{"F4", DType::kFloat4E2M1FNx2},
    NamedType{"I16", DType::kInt16},
    NamedType{"U16", DType::kUInt16},
    NamedType{"F16", DType::kFloat16},
    NamedType{"BF16", DType::kBFloat16},
    NamedType{"I32", DType::kInt32},
    NamedType{"U32", DType::kUInt32},
    NamedType{"F32", DType::kFloat32},
    NamedType{"C64", DType::kComplex64},
    NamedType{"F64", DType::kFloat64},
    NamedType{"I64", DType::kInt64},
    NamedType{"U64", DType::kUInt64},
};

using json::JsonReader;

// Whether the format has the type, although torch lacks it.
bool is_type_of_format_alone(std::string_view type) { return type == "F6_E2M3" || type == "F6_E3M2"; }

// Sets the dtype, or the name of a type without a DType.
Result<void> read_type(JsonReader& reader, Tensor& tensor) {
  CAIRN_TRY_ASSIGN(std::string name, reader.read_string());
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const NamedType& t) { return t.name == name; });
  if (type != kTypes.end()) {
    tensor.dtype = type->dtype;
    return {};
  }
  if (!is_type_of_format_alone(name)) return reader.damaged("a type of safetensors").actual(name);
  tensor.unread_type = std::move(name);
  return {};
}

Result<Extents> read_shape(JsonReader& reader) {
  constexpr auto kSizeMax = static_cast<std::uint64_t>(INT64_MAX);
  std::vector<std::int64_t> sizes;
  CAIRN_TRY(reader.begin_array());
  while (true) {
    CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
    if (!follows) return Extents(sizes);
    CAIRN_TRY_ASSIGN(const std::uint64_t size, reader.read_unsigned());
    if (size > kSizeMax || sizes.size() == kDimensionsMax) return reader.damaged("a shape that a tensor can have");
    sizes.push_back(static_cast<std::int64_t>(size));
  }
}

Result<void> read_places(JsonReader& reader, Tensor& tensor) {
  CAIRN_TRY(reader.begin_array());
  for (std::uint64_t* place : {&tensor.begin, &tensor.end}) {
    CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
    if (!follows) return reader.damaged("two offsets");
    CAIRN_TRY_ASSIGN(*place, reader.read_unsigned());
  }
  CAIRN_TRY_ASSIGN(const bool follows, reader.next_element());
  if (follows) return reader.damaged("two offsets");
  return {};
}

// The header counts F4 elements, torch counts pairs of them.
Result<void> count_pairs(const JsonReader& reader, Extents& shape) {
  if (shape.empty() || shape[shape.size() - 1] % 2 != 0) return reader.damaged("an even number of F4 in a row");
  shape[shape.size() - 1] /= 2;
  return {};
}

Result<void> check_length(const JsonReader& reader, const Tensor& tensor) {
  const Result<std::int64_t> count = element_count(tensor.shape);
  if (!count) return reader.damaged("a shape that a tensor can have").actual(to_string(tensor.shape));
  const auto elements = static_cast<std::uint64_t>(*count);
  auto bytes = checked_multiply(elements, std::uint64_t{item_bytes(tensor.dtype)});
  if (!tensor.unread_type.empty()) {
    const auto bits = checked_multiply(elements, std::uint64_t{6});
    bytes = bits && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
  }
  if (bytes && tensor.begin <= tensor.end && tensor.end - tensor.begin == *bytes) return {};
  return Error(ErrorCode::kCorrupt, "the offsets of a tensor do not fit its type and shape")
      .offset(reader.offset())
      .expected(bytes ? std::to_string(*bytes) + " bytes" : "bytes that a file can hold")
      .actual("data_offsets [" + std::to_string(tensor.begin) + ", " + std::to_string(tensor.end) + "]");
}

// (3) A member's value.
Result<Tensor> read_tensor(JsonReader& reader) {
  Tensor tensor;
  bool has_type = false, has_shape = false, has_places = false;
  CAIRN_TRY(reader.begin_object());
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) break;
    if (*name == "dtype" && !has_type) {
      CAIRN_TRY(read_type(reader, tensor));
      has_type = true;
    } else if (*name == "shape" && !has_shape) {
      CAIRN_TRY_ASSIGN(tensor.shape, read_shape(reader));
      has_shape = true;
    } else if (*name == "data_offsets" && !has_places) {
      CAIRN_TRY(read_places(reader, tensor));
      has_places = true;
    } else {
      return reader.damaged("dtype, shape and data_offsets, each once").actual(*name);
    }
  }
  if (!has_type || !has_shape || !has_places) return reader.damaged("dtype, shape and data_offsets, each once");
  if (tensor.unread_type.empty() && tensor.dtype == DType::kFloat4E2M1FNx2)
    CAIRN_TRY(count_pairs(reader, tensor.shape));
  CAIRN_TRY(check_length(reader, tensor));
  return tensor;
}

// The library safetensors takes null for no metadata.
Result<void> read_metadata(JsonReader& reader, Header& header) {
  if (reader.take_null()) return {};
  CAIRN_TRY(reader.begin_object());
  std::unordered_set<std::string, SeededHash> names;
  while (true) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) return {};
    if (!names.insert(*name).second) return reader.damaged("each name once").actual(*name);
    CAIRN_TRY_ASSIGN(std::string value, reader.read_string());
    if (*name != kChecksumsName) header.metadata.emplace_back(*name, std::move(value));
  }
}

// (4)
Result<void> check_cover(std::vector<Tensor>& tensors, std::uint64_t data_bytes) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
    return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
  });
  std::uint64_t place = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.begin != place) {
      return Error(ErrorCode::kCorrupt, tensor.begin < place ? "two tensors share bytes" : "bytes that no tensor has")
          .key(tensor.name)
          .expected("a tensor that begins at byte " + std::to_string(place) + " of the data")
          .actual(std::to_string(tensor.begin));
    }
    place = tensor.end;
  }
  if (place == data_bytes) return {};
  return Error(ErrorCode::kCorrupt, place < data_bytes ? "bytes behind the last tensor" : "a file that is cut off")
      .expected(std::to_string(place) + " bytes of data")
      .actual(std::to_string(data_bytes));
}

// Steps 1 and 2.
Result<std::string> read_text(const ByteSource& file) {
  std::array<std::byte, kLengthBytes> head{};
  if (file.size() < head.size()) {
    return Error(ErrorCode::kCorrupt, "too short for a safetensors file")
        .actual(std::to_string(file.size()) + " bytes");
  }
  CAIRN_TRY(file.read_at(0, head));
  const auto bytes = load_little_endian<std::uint64_t>(head.data());
  if (bytes > kHeaderBytesMax || !range_within(kLengthBytes, bytes, file.size())) {
    return Error(ErrorCode::kCorrupt, "the length of the header does not fit the file")
        .offset(0)
        .expected("at most " + std::to_string(std::min(kHeaderBytesMax, file.size() - kLengthBytes)))
        .actual(std::to_string(bytes));
  }
  std::string text(bytes, '\0');
  CAIRN_TRY(file.read_at(kLengthBytes, std::as_writable_bytes(std::span(text))));
  if (!text.starts_with('{')) {
    return Error(ErrorCode::kCorrupt, "the header is no JSON object").offset(kLengthBytes).expected("'{'");
  }
  return text;
}

}  // namespace

Result<Header> read_header(const ByteSource& file) {
  CAIRN_TRY_ASSIGN(const std::string text, read_text(file));  // (1), (2)
  Header header;
  header.data_offset = kLengthBytes + text.size();
  header.checksum = crc32(std::as_bytes(std::span(text)));
  JsonReader reader(text, kLengthBytes);
  CAIRN_TRY(reader.begin_object());
  std::unordered_set<std::string, SeededHash> names;
  while (true) {
    CAIRN_TRY_ASSIGN(std::optional<std::string> name, reader.next_name());
    if (!name) break;
    if (!names.insert(*name).second) return reader.damaged("each name once").key(*name);
    if (*name == kMetadataName) {
      CAIRN_TRY(read_metadata(reader, header));
      continue;
    }
    Result<Tensor> tensor = read_tensor(reader);  // (3)
    if (!tensor) return std::move(tensor).error().key(*name);
    tensor->name = *std::move(name);
    header.tensors.push_back(*std::move(tensor));
  }
  CAIRN_TRY(reader.end());
  CAIRN_TRY(check_cover(header.tensors, file.size() - header.data_offset));               // (4)
  CAIRN_TRY_ASSIGN(header.checksums, read_checksums(text, coverage_of(header.tensors)));  // (5)
  return header;
}

ChecksumCoverage coverage_of(const std::vector<Tensor>& tensors) {
  std::vector<std::uint64_t> lengths;
  lengths.reserve(tensors.size());
  for (const Tensor& tensor : tensors) lengths.push_back(tensor.end - tensor.begin);
  return coverage_of(lengths);
}

std::optional<std::string_view> type_name(DType dtype) {
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const NamedType& t) { return t.dtype == dtype; });
  return type == kTypes.end() ? std::nullopt : std::optional(type->name);
}

namespace {

Result<void> append_tensor(std::string& out, const Tensor& tensor) {
  const std::optional<std::string_view> type = type_name(tensor.dtype);
  const bool is_pair = tensor.dtype == DType::kFloat4E2M1FNx2;
  if (!type || (is_pair && tensor.shape.empty()) || !tensor.unread_type.empty()) {
    return Error(ErrorCode::kUnsupported, "safetensors has no such type").actual(name_of(tensor.dtype));
  }
  Extents shape = tensor.shape;
  if (is_pair) shape[shape.size() - 1] *= 2;
  CAIRN_TRY(json::append_json_string(out, tensor.name));
  out += ":{\"dtype\":\"";
  out += *type;
  out += "\",\"shape\":[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ',';
    out += std::to_string(shape[i]);
  }
  out += "],\"data_offsets\":[" + std::to_string(tensor.begin) + ',' + std::to_string(tensor.end) + "]}";
  return {};
}

Result<void> append_metadata(std::string& out, const Header& header) {
  std::unordered_set<std::string_view, SeededHash> names;
  out += "\"__metadata__\":{";
  for (const auto& [name, value] : header.metadata) {
    if (!names.insert(name).second) return Error(ErrorCode::kInvalidArgument, "metadata with a name twice").key(name);
    if (names.size() > 1) out += ',';
    CAIRN_TRY(json::append_json_string(out, name));
    out += ':';
    CAIRN_TRY(json::append_json_string(out, value));
  }
  out += '}';
  return {};
}

}  // namespace

Result<std::string> render_header(const Header& header, const HeaderPadding& padding) {
  std::string out(kLengthBytes, '\0');
  out += '{';
  bool is_first = true;
  if (!header.metadata.empty()) {
    CAIRN_TRY(append_metadata(out, header));
    is_first = false;
  }
  std::unordered_set<std::string_view, SeededHash> names{kMetadataName};
  for (const Tensor& tensor : header.tensors) {
    if (!names.insert(tensor.name).second) {
      return Error(ErrorCode::kInvalidArgument, "a name that safetensors reserves, or a name twice").key(tensor.name);
    }
    if (!is_first) out += ',';
    is_first = false;
    if (Result<void> appended = append_tensor(out, tensor); !appended) {
      return std::move(appended).error().key(tensor.name);
    }
  }
  out += '}';
  out.resize(align_up(out.size() + padding.spaces_min, padding.alignment), ' ');
  const std::uint64_t bytes = out.size() - kLengthBytes;
  if (bytes > kHeaderBytesMax) {
    return Error(ErrorCode::kUnsupported, "a header above the limit of safetensors: save into several files")
        .expected("at most " + std::to_string(kHeaderBytesMax) + " bytes")
        .actual(std::to_string(bytes) + " bytes");
  }
  store_little_endian(reinterpret_cast<std::byte*>(out.data()), bytes);
  return out;
}

}  // namespace cairn::safetensors
