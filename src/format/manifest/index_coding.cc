#include "format/manifest/index_coding.h"

#include "core/checked.h"
#include "core/whole_number.h"

#include <algorithm>
#include <array>
#include <limits>

namespace cairn::manifest {
namespace {

// The form in which an item's path is encoded.
enum class PathForm : std::uint8_t {
  kNone = 0,      // the item has no path
  kJoined = 1,    // the elements, joined by dots, are the flat name: only the elements' lengths are written
  kExplicit = 2,  // the elements' text follows their lengths
};

constexpr unsigned kKindMask = 0b11;
constexpr unsigned kRequiresGradBit = 1 << 2;
constexpr unsigned kPathFormShift = 3;
constexpr unsigned kPathFormMask = 0b11;
constexpr unsigned kWholeBit = 1 << 5;  // the box covers the whole tensor
constexpr unsigned kAllBits = (1 << 6) - 1;

// The text of a path's element. An integer's text is rendered into `buffer`.
using TextBuffer = std::array<char, std::numeric_limits<std::int64_t>::digits10 + 2>;
std::string_view text_of(const PathElement& element, TextBuffer& buffer) {
  if (const std::string* text = std::get_if<std::string>(&element)) return *text;
  const auto written = std::to_chars(buffer.data(), buffer.data() + buffer.size(), std::get<std::int64_t>(element));
  return {buffer.data(), static_cast<std::size_t>(written.ptr - buffer.data())};
}

// Whether fqn_of(path) == fqn.
bool joins_to(const Path& path, std::string_view fqn) {
  TextBuffer buffer;
  for (const PathElement& element : path) {
    if (&element != &path.front()) {
      if (!fqn.starts_with('.')) return false;
      fqn.remove_prefix(1);
    }
    const std::string_view text = text_of(element, buffer);
    if (!fqn.starts_with(text)) return false;
    fqn.remove_prefix(text.size());
  }
  return fqn.empty();
}

PathForm form_of(const TrailerItem& item) {
  if (item.path.empty()) return PathForm::kNone;
  return joins_to(item.path, item.fqn) ? PathForm::kJoined : PathForm::kExplicit;
}

bool is_whole(const TrailerItem& item) {
  return item.box.sizes() == item.global_shape && std::all_of(item.box.offsets().begin(), item.box.offsets().end(),
                                                              [](std::int64_t offset) { return offset == 0; });
}

void append_path(std::string& out, const Path& path, PathForm form) {
  if (form == PathForm::kNone) return;
  append_varint(out, path.size());
  TextBuffer buffer;
  for (const PathElement& element : path) {
    const std::string_view text = text_of(element, buffer);
    const bool is_integer = std::holds_alternative<std::int64_t>(element);
    append_varint(out, text.size() << 1 | (is_integer ? 1 : 0));
    if (form == PathForm::kExplicit) out += text;
  }
}

// Sets an element of a path from its text.
Result<void> set_element(PathElement& element, std::string_view text, bool is_integer, const CodedReader& reader) {
  if (!is_integer) {
    element.emplace<std::string>(text);
    return {};
  }
  const auto number = whole_number<std::int64_t>(text);
  if (!number) return reader.damaged("a list index that is not a number");
  element.emplace<std::int64_t>(*number);
  return {};
}

Result<void> read_path(CodedReader& reader, PathForm form, std::string_view fqn, Path& path) {
  path.clear();
  if (form == PathForm::kNone) return {};
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.varint());
  if (count == 0 || count > reader.left()) return reader.damaged("a path of more elements than there are bytes");
  std::string_view unread = fqn;
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t coded, reader.varint());
    const std::uint64_t length = coded >> 1;
    std::string_view text;
    if (form == PathForm::kExplicit) {
      CAIRN_TRY_ASSIGN(text, reader.text(length));
    } else {
      const bool last = i + 1 == count;
      if (last ? length != unread.size() : length >= unread.size() || unread[length] != '.') {
        return reader.damaged("a path that differs from the flat name");
      }
      text = unread.substr(0, length);
      unread.remove_prefix(last ? length : length + 1);
    }
    CAIRN_TRY(set_element(path.emplace_back(), text, (coded & 1) != 0, reader));
  }
  return {};
}

Result<void> read_tensor(CodedReader& reader, bool whole, TrailerItem& item) {
  CAIRN_TRY_ASSIGN(const std::uint8_t code, reader.byte());
  const std::optional<DType> dtype = dtype_from_code(code);
  if (!dtype) return reader.damaged("an unknown dtype");
  item.dtype = *dtype;
  CAIRN_TRY_ASSIGN(const std::uint64_t dimensions, reader.varint());
  if (dimensions > kDimensionsMax) return reader.damaged("too many dimensions");
  CAIRN_TRY_ASSIGN(item.global_shape, read_extents(reader, dimensions));
  if (whole) {
    CAIRN_TRY_ASSIGN(item.box, Box::whole(item.global_shape));
    return {};
  }
  CAIRN_TRY_ASSIGN(Extents offsets, read_extents(reader, dimensions));
  CAIRN_TRY_ASSIGN(Extents sizes, read_extents(reader, dimensions));
  CAIRN_TRY_ASSIGN(item.box, Box::make(std::move(offsets), std::move(sizes)));
  return {};
}

Result<void> read_extent(CodedReader& reader, std::uint64_t previous_end, TrailerItem& item) {
  ItemRange& range = item.range;
  CAIRN_TRY_ASSIGN(const std::uint64_t gap, reader.varint());
  CAIRN_TRY_ASSIGN(range.item_length, reader.varint());
  const auto offset = checked_add(previous_end, gap);
  if (!offset || !checked_add(*offset, range.item_length)) return reader.damaged("an item beyond 2^64");
  range.item_offset = *offset;
  range.payload_offset = range.item_offset;
  range.payload_length = range.item_length;
  if (item.kind != TrailerItem::Kind::kTensor) return {};
  CAIRN_TRY_ASSIGN(const std::uint64_t head, reader.varint());
  CAIRN_TRY_ASSIGN(range.payload_length, reader.varint());
  if (!range_within(head, range.payload_length, range.item_length)) return reader.damaged("a payload outside its item");
  range.payload_offset += head;
  return {};
}

}  // namespace

void append_extents(std::string& out, const Extents& extents) {
  for (const std::int64_t value : extents) append_varint(out, static_cast<std::uint64_t>(value));
}

Result<Extents> read_extents(CodedReader& reader, std::uint64_t dimensions) {
  Extents extents(dimensions, 0);
  for (std::size_t i = 0; i < dimensions; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t value, reader.varint());
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return reader.damaged("a size beyond 2^63 - 1");
    }
    extents[i] = static_cast<std::int64_t>(value);
  }
  return extents;
}

void append_path_of(std::string& out, const Path& path, std::string_view fqn) {
  const PathForm form = joins_to(path, fqn) ? PathForm::kJoined : PathForm::kExplicit;
  if (form == PathForm::kExplicit) append_varint(out, 0);
  append_path(out, path, form);
}

Result<Path> read_path_of(CodedReader& reader, std::string_view fqn) {
  CodedReader ahead = reader;
  CAIRN_TRY_ASSIGN(const std::uint64_t count, ahead.varint());
  if (count == 0) reader = ahead;
  Path path;
  CAIRN_TRY(read_path(reader, count == 0 ? PathForm::kExplicit : PathForm::kJoined, fqn, path));
  return path;
}

Result<void> skip_path_of(CodedReader& reader) {
  CAIRN_TRY_ASSIGN(std::uint64_t count, reader.varint());
  const bool is_explicit = count == 0;
  if (is_explicit) {
    CAIRN_TRY_ASSIGN(count, reader.varint());
  }
  if (count > reader.left()) return reader.damaged("a path of more elements than there are bytes");
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(const std::uint64_t coded, reader.varint());
    if (is_explicit) CAIRN_TRY(reader.text(coded >> 1));
  }
  return {};
}

Result<void> check_item(const TrailerItem& item) {
  const auto refuse = [&](const char* what) { return Error(ErrorCode::kInvalidArgument, what).key(item.fqn); };
  const ItemRange& range = item.range;
  if (!checked_add(range.item_offset, range.item_length)) return refuse("an item beyond 2^64");
  if (range.payload_offset < range.item_offset ||
      !range_within(range.payload_offset - range.item_offset, range.payload_length, range.item_length)) {
    return refuse("a payload outside its item");
  }
  const bool whole_item = range.payload_offset == range.item_offset && range.payload_length == range.item_length;
  if (item.kind != TrailerItem::Kind::kTensor && !whole_item) return refuse("a payload smaller than its item");
  if (item.kind == TrailerItem::Kind::kValue) return {};
  CAIRN_TRY(element_count(item.global_shape));
  if (!item.box.within(item.global_shape)) return refuse("a chunk outside its tensor");
  if (item.kind == TrailerItem::Kind::kSerializedTensor) return {};
  const auto bytes =
      checked_multiply(static_cast<std::uint64_t>(item.box.element_count()), std::uint64_t{item_bytes(item.dtype)});
  if (bytes != range.payload_length) {
    return refuse("a payload whose length differs from the chunk")
        .expected(bytes ? std::to_string(*bytes) + " bytes" : "more than 2^64 bytes")
        .actual(std::to_string(range.payload_length) + " bytes");
  }
  return {};
}

void append_item(std::string& out, const TrailerItem& item, std::uint64_t previous_end) {
  const bool is_tensor = item.kind != TrailerItem::Kind::kValue;
  const bool whole = is_tensor && is_whole(item);
  const PathForm form = form_of(item);
  unsigned bits = static_cast<unsigned>(item.kind) | static_cast<unsigned>(form) << kPathFormShift;
  if (is_tensor && item.requires_grad) bits |= kRequiresGradBit;
  if (whole) bits |= kWholeBit;
  out.push_back(static_cast<char>(bits));
  append_varint(out, item.range.item_offset - previous_end);
  append_varint(out, item.range.item_length);
  if (item.kind == TrailerItem::Kind::kTensor) {
    append_varint(out, item.range.payload_offset - item.range.item_offset);
    append_varint(out, item.range.payload_length);
  }
  append_varint(out, item.fqn.size());
  out += item.fqn;
  append_path(out, item.path, form);
  if (!is_tensor) return;
  out.push_back(static_cast<char>(item.dtype));
  append_varint(out, item.global_shape.size());
  append_extents(out, item.global_shape);
  if (whole) return;
  append_extents(out, item.box.offsets());
  append_extents(out, item.box.sizes());
}

Result<void> read_item(CodedReader& reader, std::uint64_t previous_end, TrailerItem& item) {
  CAIRN_TRY_ASSIGN(const unsigned bits, reader.byte());
  const unsigned kind = bits & kKindMask;
  const unsigned form = bits >> kPathFormShift & kPathFormMask;
  if (bits > kAllBits || kind > 2 || form > 2) return reader.damaged("an item of an unknown kind");
  item.kind = static_cast<TrailerItem::Kind>(kind);
  CAIRN_TRY(read_extent(reader, previous_end, item));
  CAIRN_TRY_ASSIGN(const std::uint64_t name_bytes, reader.varint());
  CAIRN_TRY_ASSIGN(const std::string_view name, reader.text(name_bytes));
  item.fqn.assign(name);
  CAIRN_TRY(read_path(reader, static_cast<PathForm>(form), item.fqn, item.path));
  item.requires_grad = (bits & kRequiresGradBit) != 0;
  item.dtype = DType::kFloat32;
  item.global_shape = Extents();
  item.box = Box();
  if (item.kind != TrailerItem::Kind::kValue) CAIRN_TRY(read_tensor(reader, (bits & kWholeBit) != 0, item));
  return check_item(item);
}

}  // namespace cairn::manifest
