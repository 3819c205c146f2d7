// diff: two checkpoints, compared in windows of their tensors and value by value.
//
// 1. Both checkpoints are opened, and the keys of both sides are paired into slots. Missing keys, and pairs of
//    different kinds or shapes, are differences already.
// 2. Several threads take work, under a lock: a value, or windows of tensors of a few MiB together. A window is a range
//    of elements in row-major order, so the chunks of both sides do not matter.
// 3. Each thread reads its windows from both sides, verified, compares them, and adds the result to the tensor's slot.
//    At the end the records that the windows have read only in part are checked.
// 4. When all work is done, the slots make up the report, with the attributes that no key of a file of torch.save has.
#include <cairn/inspect.h>

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <variant>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/element_reader.h"
#include "checkpoint/expansion_limit.h"
#include "checkpoint/missing_keys.h"
#include "checkpoint/open_calls.h"
#include "checkpoint/recorded_dtypes.h"
#include "core/byte_source.h"
#include "core/checked.h"
#include "core/element_comparison.h"
#include "core/nested_shape.h"
#include "core/value_comparison.h"
#include "events/work.h"
#include "format/torch_file/value_archive.h"
#include "inspect/attribute_comparison.h"
#include "os/page_buffer.h"
#include "storage/watched_call.h"

namespace cairn {
namespace {

using checkpointer::ElementReader;
using checkpointer::ExpansionLimit;
using data_file::RecordChecks;
using storage::Watch;
using Kind = KeyDifference::Kind;

// The bytes that a thread reads from a side at a time.
constexpr std::size_t kWindowBytes = 4 * 1024 * 1024;
// Windows of small tensors that a thread reads by one call.
constexpr std::size_t kWindowsMax = 256;

std::string kind_text(const CatalogTensor& tensor) {
  return std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape);
}

// One of the two checkpoints.
class Side {
 public:
  // `outline`: of the checkpoint.
  Side(std::filesystem::path directory, Checkpoint checkpoint, Catalog outline, const DiffOptions& options,
       Watch& watch)
      : directory_(std::move(directory)),
        checkpoint_(std::move(checkpoint)),
        outline_(std::move(outline)),
        follow_links_(options.follow_links),
        checks_(watch.stop) {}

  // The keys without chunks.
  const Catalog& outline() const { return outline_; }
  // The tensor with its chunks.
  Result<CatalogTensor> tensor(std::string_view key) const {
    CAIRN_TRY_ASSIGN(std::optional<KeyEntry> entry, located(checkpoint_.entry(key)));
    if (auto* tensor = entry ? std::get_if<CatalogTensor>(&*entry) : nullptr) return std::move(*tensor);
    return located(Result<CatalogTensor>(
        Error(ErrorCode::kCorrupt, "the metadata has the tensor in one of its parts only").key(key)));
  }
  // Call once.
  Result<ExpansionLimit> expansion_limit() const { return located(ExpansionLimit::of(checkpoint_)); }
  Result<ElementReader> reader(const CatalogTensor& tensor) {
    return located(ElementReader::open(checkpoint_.impl(), tensor, follow_links_));
  }
  Result<void> read(const std::vector<data_file::TensorRead>& reads) {
    return located(ElementReader::read(reads, checks_));
  }
  // After the last read(): checks the records that were read only in part.
  Result<void> finish(std::size_t thread_count) {
    return located(checks_.finish(RecordChecks::Which::kAll, thread_count));
  }
  Result<Value> value(std::string_view key) const {
    return located(checkpoint_.read_value(key, {.verify = Verify::kFull, .follow_links = follow_links_}));
  }
  // The stored bytes of a value; behind type and shape for a tensor that no call reads.
  Result<std::string> payload(std::string_view key) const {
    const auto& unread_keys = checkpoint_.impl().unread_keys;
    if (outline_.format == CheckpointFormat::kTorchCheckpointing)
      CAIRN_TRY(located(checkpoint_.impl().check_read(key)));
    if (const auto unread = unread_keys.find(key); unread != unread_keys.end()) {
      const ItemLocation& place = checkpoint_.impl().catalog.find_value(key)->location;
      std::string bytes;
      if (place.length != 0) {
        CAIRN_TRY_ASSIGN(bytes, located(checkpoint_.impl().chunk_payload(key, place, {})));
      }
      return unread->second.found + "\n" + bytes;
    }
    return located(checkpoint_.read_payload(key, {.verify = Verify::kFull, .follow_links = follow_links_}));
  }
  Result<std::string> chunk_payload(std::string_view key, std::size_t chunk) const {
    return located(
        checkpoint_.read_chunk_payload(key, chunk, {.verify = Verify::kFull, .follow_links = follow_links_}));
  }
  // The file of torch.save; null for any other checkpoint.
  Result<const torch_file::StateFile*> state_file() const {
    const torch_file::StateFile* none = nullptr;
    if (outline_.format != CheckpointFormat::kTorchSave) return none;
    CAIRN_TRY_ASSIGN(const data_file::DataFile* const file, located(checkpoint_.impl().file(0, true)));
    return file->state_file();
  }
  // Adds the side to the error of a read.
  template <typename T>
  Result<T> located(Result<T> result) const {
    if (result) return result;
    return checkpoint_.impl()
        .replaced_or(std::move(result).error())
        .while_doing("comparing '" + directory_.string() + "'");
  }

 private:
  std::filesystem::path directory_;
  Checkpoint checkpoint_;
  Catalog outline_;
  bool follow_links_;
  RecordChecks checks_;
};

// The value of a DCP checkpoint that tells what the flat keys lose. The other side, such as a file of torch.save, may
// have no such value, and is no other state for that.
bool is_shape_of_one(const Catalog& catalog, const Catalog::KeyRef& ref, const Catalog& other) {
  if (ref.is_tensor || catalog.values[ref.index].fqn != kNestedShapeKey) return false;
  return other.find_value(kNestedShapeKey) == nullptr;
}

// A key, and what is known of its difference.
struct Slot {
  const std::string* key = nullptr;
  const CatalogTensor* tensor_a = nullptr;
  const CatalogTensor* tensor_b = nullptr;
  bool in_a = false;
  bool in_b = false;
  std::optional<KeyDifference> difference = {};
  ElementTally tally = {};
  bool is_value() const { return in_a && in_b && tensor_a == nullptr && tensor_b == nullptr; }
  bool is_tensor() const { return tensor_a != nullptr && tensor_b != nullptr; }
  // Whether tensors of equal shape have no elements.
  bool is_empty() const {
    const Result<std::int64_t> count = element_count(tensor_a->shape);
    return count && *count == 0;
  }
  // Whether the elements are to be read.
  bool has_comparable_elements() const {
    if (!is_tensor() || !(tensor_a->shape == tensor_b->shape)) return false;
    return tensor_a->dtype == tensor_b->dtype || compares_as_numbers(tensor_a->dtype, tensor_b->dtype);
  }
};

// A tensor while it is compared; kept alive by its windows.
struct TensorPair {
  std::size_t slot;
  std::unique_ptr<const CatalogTensor> tensor_a;  // read by `a`
  std::unique_ptr<const CatalogTensor> tensor_b;
  ElementReader a;
  ElementReader b;
  std::int64_t count;  // elements
  std::int64_t step;   // elements per window
};

struct Window {
  std::shared_ptr<const TensorPair> pair;
  plan::FlatRange range;
};

// A share of the work: windows, or the slot of a value or of tensors that only torch can read. Neither: no work is
// left.
struct Share {
  std::vector<Window> windows;
  std::optional<std::size_t> stored;
  bool empty() const { return windows.empty() && !stored; }
};

class Comparison {
 public:
  Comparison(Side& a, Side& b, const DiffOptions& options, Watch& watch)
      : a_(a), b_(b), options_(options), watch_(watch) {}

  // Step 1.
  Result<void> pair_keys() {
    CAIRN_TRY(check_patterns());
    const Catalog& in_a = a_.outline();
    const Catalog& in_b = b_.outline();
    CAIRN_TRY_ASSIGN(ExpansionLimit limit_a, a_.expansion_limit());
    CAIRN_TRY_ASSIGN(ExpansionLimit limit_b, b_.expansion_limit());
    for (const Catalog::KeyRef& ref : in_a.keys) {
      if (is_shape_of_one(in_a, ref, in_b)) continue;
      Slot slot{.in_a = true};
      slot.tensor_a = ref.is_tensor ? &in_a.tensors[ref.index] : nullptr;
      slot.key = ref.is_tensor ? &slot.tensor_a->fqn : &in_a.values[ref.index].fqn;
      slot.tensor_b = in_b.find_tensor(*slot.key);
      slot.in_b = slot.tensor_b != nullptr || in_b.find_value(*slot.key) != nullptr;
      if (is_selected(*slot.key) && slot.has_comparable_elements()) {
        CAIRN_TRY_ASSIGN(const CatalogTensor tensor_a, a_.tensor(*slot.key));
        CAIRN_TRY_ASSIGN(const CatalogTensor tensor_b, b_.tensor(*slot.key));
        CAIRN_TRY(a_.located(limit_a.add(tensor_a, bytes_of(tensor_a))));
        CAIRN_TRY(b_.located(limit_b.add(tensor_b, bytes_of(tensor_b))));
      }
      add(std::move(slot));
    }
    for (const Catalog::KeyRef& ref : in_b.keys) {
      if (is_shape_of_one(in_b, ref, in_a)) continue;
      Slot slot{.in_b = true};
      slot.tensor_b = ref.is_tensor ? &in_b.tensors[ref.index] : nullptr;
      slot.key = ref.is_tensor ? &slot.tensor_b->fqn : &in_b.values[ref.index].fqn;
      const bool in_both = in_a.find_tensor(*slot.key) != nullptr || in_a.find_value(*slot.key) != nullptr;
      if (!in_both) add(std::move(slot));
    }
    return {};
  }

  // Steps 2 and 3.
  Result<void> compare() {
    const std::size_t threads = std::max<std::size_t>(options_.thread_count, 1);
    CAIRN_TRY(os::run_parallel(
        threads, [this] { return watch_.stop.is_set(); },
        [this](std::size_t, os::StopFlag& stop) { return work(stop); }));
    CAIRN_TRY(a_.finish(threads));
    return b_.finish(threads);
  }

  // Of two files of torch.save: what no key has.
  Result<void> compare_attributes() {
    CAIRN_TRY_ASSIGN(const torch_file::StateFile* const a, a_.state_file());
    CAIRN_TRY_ASSIGN(const torch_file::StateFile* const b, b_.state_file());
    if (a == nullptr || b == nullptr) return {};
    for (Slot& slot : slots_) {
      if (!slot.is_tensor() || slot.difference) continue;
      CAIRN_TRY_ASSIGN(slot.difference, checkpointer::compare_tensor_attributes(*a, *b, *slot.key, options_.tolerance));
    }
    const auto is_compared = [this](std::string_view key) { return is_selected(key); };
    CAIRN_TRY_ASSIGN(attribute_differences_,
                     checkpointer::compare_dict_attributes(*a, *b, is_compared, options_.tolerance));
    return {};
  }

  // Step 4.
  DiffReport report() {
    DiffReport report;
    report.bytes_compared = watch_.bytes_done;
    for (Slot& slot : slots_) {
      if (slot.is_tensor()) ++report.tensors;
      if (slot.is_value()) ++report.values;
      if (slot.tally.unequal != 0 && !slot.difference) slot.difference = tensors_differ(slot, Kind::kElements);
      if (!slot.difference) continue;
      if (slot.has_comparable_elements() && (slot.is_empty() || slot.tally.elements != 0)) {
        slot.difference->elements = elements_of(slot);
      }
      (is_tolerated(*slot.difference) ? report.tolerated : report.differences).push_back(std::move(*slot.difference));
    }
    for (KeyDifference& difference : attribute_differences_) report.differences.push_back(std::move(difference));
    return report;
  }

 private:
  bool is_selected(std::string_view key) const { return selects_key(options_.keys, key); }

  Result<void> check_patterns() const {
    const auto has_match = [](const Catalog& catalog, std::string_view pattern) {
      const auto is_match = [&](const auto& entry) { return matches_key(pattern, entry.fqn); };
      return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), is_match) ||
             std::any_of(catalog.values.begin(), catalog.values.end(), is_match);
    };
    for (const std::string& pattern : options_.keys) {
      if (has_match(a_.outline(), pattern) || has_match(b_.outline(), pattern)) continue;
      return checkpointer::missing_keys(a_.outline(), {pattern});
    }
    return {};
  }

  void add(Slot slot) {
    if (!is_selected(*slot.key)) return;
    slot.difference = difference_of_entries(slot);
    if (slot.has_comparable_elements()) watch_.bytes_total += bytes_of(*slot.tensor_a) + bytes_of(*slot.tensor_b);
    slots_.push_back(std::move(slot));
  }

  // The difference that the catalogs show.
  static std::optional<KeyDifference> difference_of_entries(const Slot& slot) {
    if (!slot.in_a || !slot.in_b) return tensors_differ(slot, slot.in_a ? Kind::kOnlyInA : Kind::kOnlyInB);
    if ((slot.tensor_a == nullptr) != (slot.tensor_b == nullptr)) return tensors_differ(slot, Kind::kKind);
    if (!slot.is_tensor()) return std::nullopt;
    if (!(slot.tensor_a->shape == slot.tensor_b->shape)) return tensors_differ(slot, Kind::kShape);
    if (slot.tensor_a->dtype != slot.tensor_b->dtype) return tensors_differ(slot, Kind::kDType);
    return std::nullopt;
  }

  bool is_tolerated(const KeyDifference& difference) const {
    const bool is_by_kind =
        difference.kind == Kind::kElements || (difference.kind == Kind::kDType && options_.ignore_dtype);
    return is_by_kind && difference.elements && difference.elements->differing == 0;
  }

  // Of the elements. A size beyond 64 bits is the largest number: no file holds so many elements.
  static std::uint64_t bytes_of(const CatalogTensor& tensor) {
    const Result<std::int64_t> count = element_count(tensor.shape);
    if (!count) return UINT64_MAX;
    return checked_multiply<std::uint64_t>(static_cast<std::uint64_t>(*count), item_bytes(tensor.dtype))
        .value_or(UINT64_MAX);
  }

  static KeyDifference tensors_differ(const Slot& slot, Kind kind) {
    const auto text = [](bool is_there, const CatalogTensor* tensor) {
      return !is_there ? std::string() : tensor != nullptr ? kind_text(*tensor) : "a value";
    };
    return {*slot.key, kind, text(slot.in_a, slot.tensor_a), text(slot.in_b, slot.tensor_b), {}, {}};
  }

  Result<void> work(const os::StopFlag& stop) {
    const os::PageBuffer buffer_a(kWindowBytes);
    const os::PageBuffer buffer_b(kWindowBytes);
    while (!stop.is_set()) {
      CAIRN_TRY_ASSIGN(const Share share, take());
      if (share.empty()) break;
      if (share.stored) CAIRN_TRY(compare_stored(*share.stored));
      CAIRN_TRY(compare_windows(share.windows, buffer_a, buffer_b));
    }
    return {};
  }

  // Takes the next share of the work. Opens the files of the tensors.
  Result<Share> take() {
    const std::lock_guard lock(mutex_);
    Share share;
    std::size_t bytes = 0;
    while (share.windows.size() < kWindowsMax) {
      if (pair_) {
        const plan::FlatRange range{position_, std::min(position_ + pair_->step, pair_->count)};
        const std::size_t window_bytes = static_cast<std::size_t>(range.count()) * larger_item(*pair_);
        if (!share.windows.empty() && bytes + window_bytes > kWindowBytes) break;
        share.windows.push_back({pair_, range});
        bytes += window_bytes;
        position_ = range.end;
        if (position_ == pair_->count) pair_.reset();
        continue;
      }
      if (next_ == slots_.size()) break;
      const bool is_stored = slots_[next_].is_value() || (slots_[next_].has_comparable_elements() && !open_next());
      if (open_error_) return *open_error_;
      if (is_stored && !share.windows.empty()) break;
      ++next_;
      if (!is_stored) continue;
      share.stored = next_ - 1;
      break;
    }
    return share;
  }

  static std::size_t larger_item(const TensorPair& pair) {
    return std::max(item_bytes(pair.a.tensor().dtype), item_bytes(pair.b.tensor().dtype));
  }

  // Makes the tensors of slot `next_` the ones whose windows are taken. False if their elements can't be read, and
  // their stored bytes are to be compared.
  bool open_next() {
    const Slot& slot = slots_[next_];
    Result<CatalogTensor> whole_a = a_.tensor(*slot.key);
    Result<CatalogTensor> whole_b = b_.tensor(*slot.key);
    if (!whole_a || !whole_b) {
      open_error_ = !whole_a ? whole_a.error() : whole_b.error();
      return false;
    }
    auto tensor_a = std::make_unique<const CatalogTensor>(*std::move(whole_a));
    auto tensor_b = std::make_unique<const CatalogTensor>(*std::move(whole_b));
    Result<ElementReader> a = a_.reader(*tensor_a);
    Result<ElementReader> b = b_.reader(*tensor_b);
    for (const Result<ElementReader>* side : {&a, &b}) {
      if (*side) continue;
      const bool has_archives = side->error().code() == ErrorCode::kUnsupported && tensor_a->boxes == tensor_b->boxes;
      if (!has_archives) open_error_ = side->error();
      return false;
    }
    const std::int64_t count = *element_count(slot.tensor_a->shape);  // the readers have checked the shape
    if (count == 0) return true;
    const std::int64_t step = std::min(a->elements_per_read(kWindowBytes), b->elements_per_read(kWindowBytes));
    pair_ = std::make_shared<const TensorPair>(
        TensorPair{next_, std::move(tensor_a), std::move(tensor_b), *std::move(a), *std::move(b), count, step});
    position_ = 0;
    return true;
  }

  Result<void> compare_windows(const std::vector<Window>& windows, const os::PageBuffer& buffer_a,
                               const os::PageBuffer& buffer_b) {
    std::vector<data_file::TensorRead> reads_a;
    std::vector<data_file::TensorRead> reads_b;
    std::vector<std::pair<Elements, Elements>> elements;
    std::byte* next_a = buffer_a.data();
    std::byte* next_b = buffer_b.data();
    const auto plan = [](const ElementReader& reader, plan::FlatRange range, std::byte*& next,
                         std::vector<data_file::TensorRead>& reads) -> Result<Elements> {
      const DType dtype = reader.tensor().dtype;
      const std::span<std::byte> bytes(next, static_cast<std::size_t>(range.count()) * item_bytes(dtype));
      CAIRN_TRY(reader.plan(range, bytes.data(), reads));
      next += bytes.size();
      return Elements{dtype, bytes};
    };
    for (const Window& window : windows) {
      CAIRN_TRY_ASSIGN(const Elements in_a, a_.located(plan(window.pair->a, window.range, next_a, reads_a)));
      CAIRN_TRY_ASSIGN(const Elements in_b, b_.located(plan(window.pair->b, window.range, next_b, reads_b)));
      elements.emplace_back(in_a, in_b);
    }
    CAIRN_TRY(a_.read(reads_a));
    CAIRN_TRY(b_.read(reads_b));
    for (std::size_t i = 0; i < windows.size(); ++i) {
      const auto& [in_a, in_b] = elements[i];
      const ElementTally tally = compare_elements(in_a, in_b, windows[i].range.begin, options_.tolerance);
      watch_.bytes_done += in_a.bytes.size() + in_b.bytes.size();
      const std::lock_guard lock(mutex_);
      slots_[windows[i].pair->slot].tally.add(tally);
    }
    return {};
  }

  // Compares two values, or two tensors that only torch can read. Only this thread uses the slot.
  Result<void> compare_stored(std::size_t index) {
    Slot& slot = slots_[index];
    if (slot.is_value()) {
      Result<Value> a = a_.value(*slot.key);
      Result<Value> b = b_.value(*slot.key);
      const auto is_undecoded = [](const auto& value) {
        return !value && value.error().code() == ErrorCode::kUnsupported;
      };
      if (!a && !is_undecoded(a)) return std::move(a).error();
      if (!b && !is_undecoded(b)) return std::move(b).error();
      if (a && b) return compare_values(slot, *a, *b), Result<void>();
    }
    if (slot.is_tensor()) return compare_archives(slot);
    // In a form that Cairn does not decode: only equal bytes show that the two are equal.
    CAIRN_TRY_ASSIGN(const std::string a, a_.payload(*slot.key));
    CAIRN_TRY_ASSIGN(const std::string b, b_.payload(*slot.key));
    if (a == b) return {};
    const auto text = [](const std::string& bytes) { return "<" + std::to_string(bytes.size()) + " stored bytes>"; };
    slot.difference = KeyDifference{*slot.key, Kind::kValue, text(a), text(b), {}, {}};
    return {};
  }

  // Whether two archives hold equal values, with all bytes that the values name: writers differ in how they number the
  // parts of a pickle, and in the names of records. False for an archive that Cairn does not decode.
  static bool hold_equal_values(const std::string& a, const std::string& b) {
    const auto decoded = [](const std::string& archive) {
      return torch_file::decode_value(MemorySource(std::as_bytes(std::span(archive))));
    };
    const Result<Value> in_a = decoded(a);
    if (!in_a) return false;
    const Result<Value> in_b = decoded(b);
    return in_b && !first_difference(*in_a, *in_b, std::nullopt);
  }

  // Compares the stored chunks of two tensors whose chunks have equal places.
  Result<void> compare_archives(Slot& slot) {
    CAIRN_TRY_ASSIGN(const CatalogTensor tensor, a_.tensor(*slot.key));
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
      CAIRN_TRY_ASSIGN(const std::string a, a_.chunk_payload(*slot.key, chunk));
      CAIRN_TRY_ASSIGN(const std::string b, b_.chunk_payload(*slot.key, chunk));
      if (a == b || hold_equal_values(a, b)) continue;
      slot.difference = tensors_differ(slot, slot.difference ? slot.difference->kind : Kind::kElements);
      return {};
    }
    return {};
  }

  void compare_values(Slot& slot, const Value& a, const Value& b) const {
    std::optional<ValueDifference> found = first_difference(a, b, options_.tolerance);
    if (!found) return;
    slot.difference =
        KeyDifference{*slot.key, Kind::kValue, std::move(found->a), std::move(found->b), std::move(found->place), {}};
  }

  static Extents index_of(const Extents& shape, std::optional<std::int64_t> position) {
    if (!position) return {};
    const Extents strides = row_major_strides(shape);
    Extents index(shape.size(), 0);
    for (std::size_t i = 0; i < shape.size(); ++i) {
      index[i] = *position / strides[i];
      *position %= strides[i];
    }
    return index;
  }

  static ElementDifference elements_of(const Slot& slot) {
    const ElementTally& tally = slot.tally;
    const Extents& shape = slot.tensor_a->shape;
    ElementDifference difference;
    difference.elements = tally.elements;
    difference.unequal = tally.unequal;
    difference.differing = tally.differing;
    difference.first_differing = index_of(shape, tally.first_differing);
    difference.are_numbers = compares_as_numbers(slot.tensor_a->dtype, slot.tensor_b->dtype);
    difference.nan_on_one_side = tally.nan_on_one_side;
    difference.largest_absolute = tally.largest_absolute;
    difference.largest_relative = tally.largest_relative;
    difference.largest_at = index_of(shape, tally.largest_at);
    return difference;
  }

  Side& a_;
  Side& b_;
  const DiffOptions& options_;
  Watch& watch_;
  std::mutex mutex_;  // guards the members below, except the slots of values
  std::vector<Slot> slots_;
  std::size_t next_ = 0;  // the slot whose work is taken next
  std::shared_ptr<const TensorPair> pair_;
  std::int64_t position_ = 0;  // in `pair_`
  std::optional<Error> open_error_;
  std::vector<KeyDifference> attribute_differences_;  // of dicts
};

// Runs on the working thread, and calls neither function of `options`.
Result<DiffReport> diff_watched(const std::filesystem::path& path_a, const std::filesystem::path& path_b,
                                const DiffOptions& options, Watch& watch) {
  const checkpointer::OpenDirectory open_directory = checkpointer::watched_directories(watch.operations);
  const auto open_at = [&](const std::filesystem::path& path) {
    return checkpointer::open_with(open_directory, path, std::string(kMetadataName), checkpointer::Decoding::kWanted);
  };
  CAIRN_TRY_ASSIGN(Checkpoint checkpoint_a, open_at(path_a));
  CAIRN_TRY_ASSIGN(Checkpoint checkpoint_b, open_at(path_b));
  const auto is_compared = [&options](std::string_view key) { return selects_key(options.keys, key); };
  for (const Checkpoint* checkpoint : {&checkpoint_a, &checkpoint_b}) {
    CAIRN_TRY(checkpointer::take_recorded_dtypes(checkpoint->impl(), options.follow_links, is_compared));
  }
  CAIRN_TRY_ASSIGN(Catalog outline_a, checkpoint_a.outline());
  CAIRN_TRY_ASSIGN(Catalog outline_b, checkpoint_b.outline());
  Side a(path_a, std::move(checkpoint_a), std::move(outline_a), options, watch);
  Side b(path_b, std::move(checkpoint_b), std::move(outline_b), options, watch);
  Comparison comparison(a, b, options, watch);
  CAIRN_TRY(comparison.pair_keys());
  CAIRN_TRY(comparison.compare());
  CAIRN_TRY(comparison.compare_attributes());
  return comparison.report();
}

}  // namespace

std::string_view name_of(KeyDifference::Kind kind) {
  switch (kind) {
    case Kind::kOnlyInA: return "only_in_a";
    case Kind::kOnlyInB: return "only_in_b";
    case Kind::kKind: return "kind";
    case Kind::kShape: return "shape";
    case Kind::kDType: return "dtype";
    case Kind::kElements: return "elements";
    default: return "value";
  }
}

Result<DiffReport> diff(const std::filesystem::path& a, const std::filesystem::path& b, const DiffOptions& options) {
  if (options.tolerance && !(*options.tolerance >= 0 && *options.tolerance < 1)) {
    return Error(ErrorCode::kInvalidArgument, "the tolerance must be a number of at least 0 and below 1")
        .actual(std::to_string(*options.tolerance));
  }
  DiffOptions copied = options;  // without the functions, which only this thread calls
  copied.interrupted = nullptr;
  copied.progress = nullptr;
  std::function<void(std::uint64_t, std::uint64_t)> progress;
  if (options.progress) {
    progress = [&options](std::uint64_t done, std::uint64_t total) { options.progress({done, total}); };
  }
  const events::Work work = events::Work::begin(WorkKind::kCompare, a.native());
  Result<DiffReport> report =
      storage::watched_call({options.interrupted, work.setter(std::move(progress)),
                             Error(ErrorCode::kCancelled, "interrupted while comparing"), options.deadlines},
                            [a, b, copied](Watch& watch) { return diff_watched(a, b, copied, watch); });
  work.end(report.has_value());
  return report;
}

}  // namespace cairn
