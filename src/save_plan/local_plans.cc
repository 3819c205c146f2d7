// A message: the version (text), file_per_item (a byte), the number of items, the items, and names_taken (a byte). All
// numbers are varints. An item:
//
// 1. A byte: the form in three bits, then a bit each for kRequiresGrad, kReplicated, kSameTensor, kHasPath and
//    kHasStrides.
// 2. The name: the number of leading bytes that it shares with the name of the item before (a byte), and the rest
// (text).
// 3. With kHasPath: the number of elements of the path, and for each element its length doubled, plus 1 for an integer.
//    If the elements do not join to the name, a 0 comes first, and the text of each element follows its length.
// 4. Of a tensor, unless kSameTensor says that both are those of the last tensor before: dtype (a byte), the number of
//    dimensions, the sizes.
// 5. Of a chunk: kRows, offset and size in the first dimension; kBox and kSerializedChunk, the offsets and the sizes.
//    Of an archive: its bytes.
// 6. With kHasStrides: 0 if the strides are the row-major strides of the chunk's sizes; otherwise their number plus 1,
//    and the strides.
#include "save_plan/local_plans.h"

#include <cairn/version.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "core/checked.h"
#include "core/whole_number.h"
#include "format/manifest/index_coding.h"

namespace cairn::save_plan {
namespace {

using data_file::ItemSource;
using manifest::append_extents;
using manifest::append_text;
using manifest::append_varint;
using manifest::CodedReader;
using manifest::TrailerItem;
using plan::LocalItem;

enum class Form : std::uint8_t { kWhole, kRows, kBox, kSerializedTensor, kValue, kSerializedChunk };
constexpr unsigned kFormMask = 0b111;
constexpr unsigned kRequiresGrad = 1 << 3;
constexpr unsigned kReplicated = 1 << 4;
constexpr unsigned kSameTensor = 1 << 5;
constexpr unsigned kHasPath = 1 << 6;
constexpr unsigned kHasStrides = 1 << 7;

// An item of a few bytes may have a long name, and the shape of the item before. These limits keep the memory of a
// decoded plan below about 200 bytes for each byte of the message.
constexpr std::size_t kSharedMax = 255;
constexpr std::size_t kSharedDimensionsMax = 4;

bool is_at_origin(std::span<const std::int64_t> offsets) {
  return std::ranges::all_of(offsets, [](std::int64_t offset) { return offset == 0; });
}

Form form_of(const TrailerItem& item) {
  if (item.kind == TrailerItem::Kind::kValue) return Form::kValue;
  const auto offsets = item.box.offsets().span();
  const auto sizes = item.box.sizes().span();
  const auto shape = item.global_shape.span();
  const bool is_whole = is_at_origin(offsets) && std::ranges::equal(sizes, shape);
  if (item.kind == TrailerItem::Kind::kSerializedTensor) {
    return is_whole ? Form::kSerializedTensor : Form::kSerializedChunk;
  }
  if (is_whole) return Form::kWhole;
  const bool is_rows =
      !shape.empty() && is_at_origin(offsets.subspan(1)) && std::ranges::equal(sizes.subspan(1), shape.subspan(1));
  return is_rows ? Form::kRows : Form::kBox;
}

class Encoder {
 public:
  explicit Encoder(std::string& message) : message_(message) {}

  void add(const TrailerItem& item, const ItemSource& source) {
    const Form form = form_of(item);
    const bool is_tensor = form != Form::kValue;
    const bool is_same = is_tensor && has_shared_ && item.dtype == dtype_ && item.global_shape == shape_;
    unsigned bits = static_cast<unsigned>(form);
    if (is_tensor && item.requires_grad) bits |= kRequiresGrad;
    if (source.tensor != nullptr && source.tensor->traits.replicated) bits |= kReplicated;
    if (is_same) bits |= kSameTensor;
    if (!item.path.empty()) bits |= kHasPath;
    const Extents* const strides = strides_of(source);
    if (strides != nullptr) bits |= kHasStrides;
    message_.push_back(static_cast<char>(bits));
    add_name(source.entry->fqn);
    if (!item.path.empty()) manifest::append_path_of(message_, item.path, source.entry->fqn);
    if (is_tensor && !is_same) add_tensor(item);
    add_box(form, item, source);
    if (strides != nullptr) add_strides(*strides, item.box.sizes());
  }

 private:
  void add_name(std::string_view name) {
    const std::size_t shorter = std::min({name.size(), name_.size(), kSharedMax});
    const auto end = std::mismatch(name.begin(), name.begin() + static_cast<std::ptrdiff_t>(shorter), name_.begin());
    const auto shared = static_cast<std::size_t>(end.first - name.begin());
    message_.push_back(static_cast<char>(shared));
    append_text(message_, name.substr(shared));
    name_ = name;
  }
  void add_tensor(const TrailerItem& item) {
    message_.push_back(static_cast<char>(item.dtype));
    append_varint(message_, item.global_shape.size());
    append_extents(message_, item.global_shape);
    dtype_ = item.dtype;
    shape_ = item.global_shape;
    has_shared_ = shape_.size() <= kSharedDimensionsMax;
  }
  void add_box(Form form, const TrailerItem& item, const ItemSource& source) {
    if (form == Form::kRows) {
      append_varint(message_, static_cast<std::uint64_t>(item.box.offsets()[0]));
      append_varint(message_, static_cast<std::uint64_t>(item.box.sizes()[0]));
    } else if (form == Form::kBox || form == Form::kSerializedChunk) {
      append_extents(message_, item.box.offsets());
      append_extents(message_, item.box.sizes());
    }
    if (source.tensor == nullptr) append_varint(message_, source.bytes.size());
  }

  void add_strides(const Extents& strides, const Extents& sizes) {
    if (strides == row_major_strides(sizes)) return append_varint(message_, 0);
    append_varint(message_, strides.size() + 1);
    append_extents(message_, strides);
  }

  std::string& message_;
  std::string_view name_;  // of the item before, in the caller's entry
  bool has_shared_ = false;
  DType dtype_ = DType::kFloat32;
  Extents shape_;
};

// The boxes of a plan are checked by the plan (plan::validate_chunks): here only that they are boxes.
Result<Box> read_box(CodedReader& reader, Form form, const Extents& shape) {
  if (form == Form::kWhole || form == Form::kSerializedTensor) return Box::whole(shape);
  if (form == Form::kBox || form == Form::kSerializedChunk) {
    CAIRN_TRY_ASSIGN(Extents offsets, manifest::read_extents(reader, shape.size()));
    CAIRN_TRY_ASSIGN(Extents sizes, manifest::read_extents(reader, shape.size()));
    return Box::make(std::move(offsets), std::move(sizes));
  }
  if (shape.empty()) return reader.damaged("rows of a tensor without dimensions");
  CAIRN_TRY_ASSIGN(const Extents place, manifest::read_extents(reader, 2));
  Extents offsets(shape.size(), 0);
  Extents sizes = shape;
  offsets[0] = place[0];
  sizes[0] = place[1];
  return Box::make(std::move(offsets), std::move(sizes));
}

Result<void> check_strides(const ItemSource& source) {
  const Extents* const strides = strides_of(source);
  if (strides == nullptr) return {};
  const bool is_negative = std::ranges::any_of(strides->span(), [](std::int64_t stride) { return stride < 0; });
  if (!is_negative && strides->size() <= kDimensionsMax) return {};
  return Error(ErrorCode::kInvalidArgument, "strides that a checkpoint can't record")
      .key(source.entry->fqn)
      .expected("at most " + std::to_string(kDimensionsMax) + " numbers, none negative")
      .actual(to_string(*strides));
}

}  // namespace

const Extents* strides_of(const data_file::ItemSource& source) {
  if (source.tensor != nullptr) return source.tensor->traits.strides.get();
  const auto* const serialized = std::get_if<SerializedTensor>(&source.entry->content);
  return serialized == nullptr ? nullptr : serialized->strides.get();
}

Result<std::string> encode_local_plan(std::span<const ItemSource> items, const LocalPlanOptions& options) {
  std::string message;
  append_text(message, kVersion);
  message.push_back(options.file_per_item ? 1 : 0);
  append_varint(message, items.size());
  Encoder encoder(message);
  TrailerItem item;
  for (const ItemSource& source : items) {
    CAIRN_TRY(check_strides(source));
    if (auto described = data_file::describe(source, item); !described) {
      return std::move(described).error().key(source.entry->fqn);
    }
    if (!options.record_paths) item.path.clear();
    encoder.add(item, source);
  }
  message.push_back(options.names_taken ? 1 : 0);
  return message;
}

std::string_view items_of_message(std::string_view local_plan) { return local_plan.substr(0, local_plan.size() - 1); }

Result<std::string_view> LocalPlans::read_key(CodedReader& reader, bool has_path, Previous& previous) {
  CAIRN_TRY_ASSIGN(const std::uint8_t shared, reader.byte());
  if (shared > previous.name.size()) return reader.damaged("a name that shares more than the name before has");
  CAIRN_TRY_ASSIGN(const std::string_view rest, reader.counted_text());
  previous.name.resize(shared);
  previous.name += rest;
  const auto [number, is_new] = numbers_.number_of(
      previous.name, [this](std::string_view name) { return std::string_view(names_.emplace_back(name)); });
  if (is_new) paths_.emplace_back();
  if (!has_path) return numbers_.name(number);
  if (!is_new) {
    CAIRN_TRY(manifest::skip_path_of(reader));
    return numbers_.name(number);
  }
  CAIRN_TRY_ASSIGN(paths_.back(), manifest::read_path_of(reader, previous.name));
  return numbers_.name(number);
}

Result<LocalItem> LocalPlans::read_item(CodedReader& reader, Previous& previous) {
  CAIRN_TRY_ASSIGN(const unsigned bits, reader.byte());
  const unsigned form_bits = bits & kFormMask;
  if (form_bits > static_cast<unsigned>(Form::kSerializedChunk)) {
    return reader.damaged("an item of an unknown form");
  }
  const Form form = static_cast<Form>(form_bits);
  LocalItem item;
  CAIRN_TRY_ASSIGN(item.fqn, read_key(reader, (bits & kHasPath) != 0, previous));
  item.requires_grad = (bits & kRequiresGrad) != 0;
  item.replicated = (bits & kReplicated) != 0;
  if (form == Form::kValue) {
    if ((bits & kHasStrides) != 0) return reader.damaged("a value with strides");
    item.kind = LocalItem::Kind::kValue;
    CAIRN_TRY_ASSIGN(item.bytes, reader.varint());
    return item;
  }
  if ((bits & kSameTensor) == 0) {
    CAIRN_TRY_ASSIGN(const std::uint8_t code, reader.byte());
    const std::optional<DType> dtype = dtype_from_code(code);
    if (!dtype) return reader.damaged("an unknown dtype");
    previous.dtype = *dtype;
    CAIRN_TRY_ASSIGN(const std::uint64_t dimensions, reader.varint());
    if (dimensions > kDimensionsMax) return reader.damaged("too many dimensions");
    CAIRN_TRY_ASSIGN(previous.shape, manifest::read_extents(reader, dimensions));
    CAIRN_TRY(element_count(previous.shape));
    previous.has_shared = dimensions <= kSharedDimensionsMax;
  } else if (!previous.has_shared) {
    return reader.damaged("a tensor like the tensor before, which may not be shared");
  }
  item.dtype = previous.dtype;
  item.shape = previous.shape;
  CAIRN_TRY_ASSIGN(item.box, read_box(reader, form, item.shape));
  if (form == Form::kSerializedTensor || form == Form::kSerializedChunk) {
    item.kind = LocalItem::Kind::kSerializedTensor;
    CAIRN_TRY_ASSIGN(item.bytes, reader.varint());
  } else {
    const auto bytes =
        checked_multiply(static_cast<std::uint64_t>(item.box.element_count()), std::uint64_t{item_bytes(item.dtype)});
    if (!bytes) return reader.damaged("a chunk of more than 2^64 bytes");
    item.bytes = *bytes;
  }
  if ((bits & kHasStrides) != 0) {
    CAIRN_TRY_ASSIGN(item.strides, read_strides(reader, item.box.sizes()));
  }
  return item;
}

Result<std::uint32_t> LocalPlans::read_strides(CodedReader& reader, const Extents& sizes) {
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.varint());
  if (count == 0) return strides_.number_of(row_major_strides(sizes));
  if (count - 1 > kDimensionsMax) return reader.damaged("too many strides");
  CAIRN_TRY_ASSIGN(const Extents strides, manifest::read_extents(reader, count - 1));
  return strides_.number_of(strides);
}

Result<void> LocalPlans::add(std::string_view message) {
  CodedReader reader(message);
  CAIRN_TRY_ASSIGN(const std::string_view version, reader.counted_text());
  if (version != kVersion) {
    return Error(ErrorCode::kUnsupported, "the ranks of the save run different versions of Cairn")
        .rank(static_cast<std::int64_t>(plans_.size()))
        .expected(kVersion)
        .actual(version);
  }
  CAIRN_TRY_ASSIGN(const std::uint8_t file_per_item, reader.byte());
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.count());
  plan::LocalPlan plan;
  plan.reserve(count);
  Previous previous;
  numbers_.begin_rank();
  for (std::uint64_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(LocalItem item, read_item(reader, previous));
    plan.push_back(std::move(item));
  }
  CAIRN_TRY_ASSIGN(const std::uint8_t names_taken, reader.byte());
  names_taken_ |= names_taken != 0;
  plans_.push_back(std::move(plan));
  file_per_item_.push_back(file_per_item != 0);
  return {};
}

}  // namespace cairn::save_plan
