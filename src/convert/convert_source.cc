#include "convert/convert_source.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "checkpoint/chunk_read.h"
#include "core/seeded_hash.h"
#include "plan/flat_range.h"

namespace cairn::checkpointer {
namespace {

using data_file::TensorRead;

// More tensors than the threads work on at a time.
constexpr std::size_t kRecentMax = 64;

}  // namespace

ConvertSource::ConvertSource(Checkpoint checkpoint, const ConvertOptions& options)
    : checkpoint_(std::move(checkpoint)), verify_(options.verify) {
  load_options_.verify = options.verify;
  load_options_.follow_links = options.follow_links;
  load_options_.direct_io = options.direct_io;
}

Result<void> ConvertSource::check_not_stopped() const {
  if (stop_.is_set()) return Error(ErrorCode::kCancelled, "interrupted by the caller");
  return {};
}

Result<ConvertSource::Stored> ConvertSource::stored(const CatalogTensor& tensor, std::size_t chunk) const {
  const data_file::DataFile* file = nullptr;
  CAIRN_TRY_ASSIGN(file, checkpoint_.impl().file_of(tensor.locations[chunk], tensor.fqn, load_options_.follow_links));
  CAIRN_TRY_ASSIGN(StoredTensor described, file->tensor(tensor, chunk));
  return Stored{file, std::move(described)};
}

std::shared_ptr<ConvertSource::OpenTensor> ConvertSource::open(const CatalogTensor& tensor) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(recent_.begin(), recent_.end(), [&](const auto& recent) { return recent.first == &tensor; });
    if (found != recent_.end()) {
      recent_.splice(recent_.begin(), recent_, found);
      return recent_.front().second;
    }
  }
  auto opened = std::make_shared<OpenTensor>(tensor);  // without the lock: sorts the chunks
  const std::lock_guard lock(mutex_);
  recent_.emplace_front(&tensor, opened);
  if (recent_.size() > kRecentMax) recent_.pop_back();
  return opened;
}

void ConvertSource::PlannedReads::add(TensorRead read, bool is_ahead) {
  (!is_ahead ? reads : read.stored().record_crc ? uncounted : ahead).push_back(std::move(read));
}

Result<void> ConvertSource::plan(const StreamPart& part, PlannedReads& planned) {
  const CatalogTensor& tensor = *part.tensor->tensor;
  const std::size_t item = item_bytes(part.tensor->dtype);
  const std::int64_t begin = part.tensor->first_element + static_cast<std::int64_t>(part.begin / item);
  const std::int64_t end = begin + static_cast<std::int64_t>(part.out.size() / item);
  const std::shared_ptr<OpenTensor> opened = open(tensor);
  std::byte* out = part.out.data();
  for (const Box& box : plan::boxes_of(tensor.shape, {begin, end})) {
    const TensorView view = TensorView::contiguous(out, part.tensor->dtype, box.sizes());
    CAIRN_TRY_ASSIGN(const std::vector<plan::ReadItem> items, opened->index.reads_for(box));
    for (const plan::ReadItem& read : items) {
      const std::lock_guard lock(opened->mutex);
      auto found = opened->chunks.find(read.chunk);
      if (found == opened->chunks.end()) {
        CAIRN_TRY_ASSIGN(Stored described, stored(tensor, read.chunk));
        found = opened->chunks.emplace(read.chunk, std::move(described)).first;
        note_read(found->second.tensor);
      }
      planned.add(chunk_read(tensor, read, {view, box}, *found->second.file, found->second.tensor), part.is_ahead);
    }
    out += static_cast<std::size_t>(box.element_count()) * item;
  }
  return {};
}

Result<void> ConvertSource::plan_record(const StreamPart& part, PlannedReads& planned) {
  const CatalogTensor& tensor = *part.tensor->tensor;
  const std::size_t item = item_bytes(part.tensor->dtype);
  CAIRN_TRY_ASSIGN(Stored described, stored(tensor, 0));
  StoredTensor& record = described.tensor;
  note_read(record);
  record.sizes = {static_cast<std::int64_t>(record.record_bytes / item_bytes(record.dtype))};
  record.strides = {1};
  record.first_element = 0;
  const Extents sizes{static_cast<std::int64_t>(part.out.size() / item)};
  planned.add({*described.file, tensor.fqn, record,
               Extents{part.tensor->first_element + static_cast<std::int64_t>(part.begin / item)},
               TensorView::contiguous(part.out.data(), part.tensor->dtype, sizes)},
              part.is_ahead);
  return {};
}

Result<void> ConvertSource::read(std::span<const StreamPart> parts) {
  CAIRN_TRY(check_not_stopped());
  PlannedReads planned;
  std::uint64_t bytes = 0;
  for (const StreamPart& part : parts) {
    if (!part.is_ahead) bytes += part.out.size();
    Result<void> added = part.tensor->of_record ? plan_record(part, planned) : plan(part, planned);
    if (!added) return explain(std::move(added).error().key(part.tensor->tensor->fqn));
  }
  const std::size_t counted_reads = planned.reads.size();
  std::move(planned.ahead.begin(), planned.ahead.end(), std::back_inserter(planned.reads));
  CAIRN_TRY(carry_out(planned.reads, verify_ == Verify::kNone ? nullptr : &checks_, counted_reads));
  if (!planned.uncounted.empty()) CAIRN_TRY(carry_out(planned.uncounted, nullptr, 0));
  bytes_done_.fetch_add(bytes, std::memory_order_relaxed);
  return {};
}

Result<void> ConvertSource::carry_out(const std::vector<TensorRead>& reads, data_file::RecordChecks* checks,
                                      std::size_t counted_reads) {
  data_file::ReadOptions options;
  options.verify = verify_ == Verify::kNone ? Verify::kNone : Verify::kNeeded;
  options.thread_count = 1;  // the calling thread
  options.direct_io = load_options_.direct_io;
  options.checks = checks;
  options.losses = &losses_;
  options.counted_reads = counted_reads;
  os::PageBufferPool::Loan loan = buffers_.borrow();
  options.buffer = &loan.buffer();
  const Result<data_file::ReadCounts> counts = data_file::read_tensors(reads, options);
  if (!counts) return explain(counts.error());
  return {};
}

Result<NestedShape> ConvertSource::shape() const {
  NestedShape shape;
  if (const torch_file::StateFile* file = torch_file()) {
    CAIRN_TRY_ASSIGN(shape, file->shape());
  }
  if (catalog().format == CheckpointFormat::kTorchCheckpointing) {
    CAIRN_TRY_ASSIGN(shape, shape_of_items());
  }
  if (catalog().find_value(kNestedShapeKey) == nullptr) return shape;
  CAIRN_TRY_ASSIGN(const Value saved, checkpoint_.read_value(kNestedShapeKey, load_options_));
  CAIRN_TRY_ASSIGN(NestedShape read, shape_in(saved));
  std::move(read.keys.begin(), read.keys.end(), std::back_inserter(shape.keys));
  std::move(read.empty.begin(), read.empty.end(), std::back_inserter(shape.empty));
  return shape;
}

// The files of the first rank with an item tell the shape of the item. `containers` stay empty: no two items share one.
Result<NestedShape> ConvertSource::shape_of_items() const {
  NestedShape shape;
  std::unordered_map<std::string_view, std::size_t, SeededHash> places;  // of the keys
  for (const Catalog::KeyRef& ref : catalog().keys) {
    places.emplace(ref.is_tensor ? catalog().tensors[ref.index].fqn : catalog().values[ref.index].fqn, places.size());
  }
  std::set<std::string, std::less<>> items;
  for (std::uint32_t index = 0; index < catalog().files.size(); ++index) {
    const Result<const data_file::DataFile*> file = checkpoint_.impl().file(index, false);
    const torch_file::StateFile* const state = file ? (*file)->state_file() : nullptr;
    if (state == nullptr || state->entries().empty()) continue;
    const torch_file::StateFile::Entry& first = state->entries().front();
    if (!items.insert(std::get<std::string>(first.path.front())).second) continue;
    CAIRN_TRY_ASSIGN(NestedShape of_item, state->shape());
    const std::size_t before = places.at(first.fqn);
    for (NestedShape::Empty& empty : of_item.empty) empty.before += before;
    std::move(of_item.keys.begin(), of_item.keys.end(), std::back_inserter(shape.keys));
    std::move(of_item.empty.begin(), of_item.empty.end(), std::back_inserter(shape.empty));
    std::move(of_item.ordered.begin(), of_item.ordered.end(), std::back_inserter(shape.ordered));
    std::move(of_item.unheld.begin(), of_item.unheld.end(), std::back_inserter(shape.unheld));
  }
  return shape;
}

const torch_file::StateFile* ConvertSource::torch_file() const {
  if (catalog().format != CheckpointFormat::kTorchSave) return nullptr;
  const Result<const data_file::DataFile*> file = checkpoint_.impl().file(0, true);  // open since the checkpoint is
  return file ? (*file)->state_file() : nullptr;
}

void ConvertSource::note_read(const StoredTensor& stored) {
  const std::lock_guard lock(mutex_);
  read_records_.insert(stored.record_offset);
}

bool ConvertSource::was_read(std::uint64_t record_offset) const {
  const std::lock_guard lock(mutex_);
  return read_records_.contains(record_offset);
}

Result<std::vector<torch_file::StateFile::InnerTensor>> ConvertSource::inner_tensors() const {
  const torch_file::StateFile* file = torch_file();
  if (file == nullptr) return std::vector<torch_file::StateFile::InnerTensor>();
  return file->inner_tensors();
}

Result<void> ConvertSource::finish(std::size_t thread_count) {
  if (verify_ == Verify::kNone) return {};
  using Which = data_file::RecordChecks::Which;
  const Which which = verify_ == Verify::kFull ? Which::kAll : Which::kOverlapping;
  if (auto checked = checks_.finish(which, thread_count); !checked) return explain(std::move(checked).error());
  return {};
}

Error ConvertSource::explain(Error error) const { return checkpoint_.impl().replaced_or(std::move(error)); }

}  // namespace cairn::checkpointer
