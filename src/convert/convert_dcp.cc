// The conversion into a DCP checkpoint. The steps are those of a save by one rank (save.cc): claim, write, publish,
// commit.
#include <algorithm>
#include <deque>
#include <optional>
#include <span>
#include <unordered_set>
#include <utility>

#include "commit/job_identity.h"
#include "convert/convert_job.h"
#include "convert/convert_warnings.h"
#include "core/byte_source.h"
#include "data_file/file_image.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/notes.h"
#include "format/torch_file/value_archive.h"
#include "plan/file_balance.h"
#include "save/save_calls.h"
#include "save/save_items.h"
#include "save_plan/catalog_builder.h"
#include "save_plan/local_plans.h"

namespace cairn::checkpointer {
namespace {

using data_file::FileImage;
using data_file::ItemSource;

// The items of the target, and all that they refer to.
struct Items {
  std::shared_ptr<const ConvertInput> input;
  std::vector<Entry> entries;     // in the order of the plan's keys, and perhaps the shape
  std::vector<std::size_t> keys;  // by entry: the index of the key in the plan; of the shape: the number of keys
  SaveItems serialized;           // points into `entries`
  std::deque<TensorEntry> cuts;   // parts of tensors
  std::unordered_set<std::size_t> as_saved = {};  // ConvertJob::as_saved
};

// The data files, with the sources and streams of their items.
struct FileContent {
  std::vector<ItemSource> sources;
  std::vector<StreamedTensor> streams;  // by source; without a tensor: the source has ready bytes
  std::vector<std::size_t> items;       // by source: the index of the item in `Items`
};

// An item of a data file, for the catalog.
struct PlacedItem {
  std::size_t item;
  const ItemSource* source;
  ItemLocation location;
};

Result<SerializedTensor> serialized_tensor(const ConvertInput& input, const CatalogTensor& tensor) {
  CAIRN_TRY_ASSIGN(std::string payload,
                   input.source->checkpoint().read_payload(tensor.fqn, input.source->load_options()));
  return SerializedTensor{std::move(payload), tensor.dtype, tensor.shape, tensor.requires_grad, {}, tensor.strides};
}

// Whether a chunk is stored in a form that only torch reads.
Result<bool> is_serialized(const ConvertInput& input, const CatalogTensor& tensor, std::size_t chunk) {
  if (is_quantized(tensor.dtype)) return true;
  if (input.source->catalog().format != CheckpointFormat::kDcp) return false;
  const Result<ConvertSource::Stored> stored = input.source->stored(tensor, chunk);
  if (stored) return false;
  if (stored.error().code() != ErrorCode::kUnsupported) return stored.error();
  return true;
}

// The chunks of a tensor of which torch alone reads at least one: each chunk stays as it is stored.
Result<std::vector<SerializedTensor>> serialized_chunks(const ConvertInput& input, const CatalogTensor& tensor) {
  std::vector<SerializedTensor> chunks;
  if (input.source->catalog().format != CheckpointFormat::kDcp) return chunks;
  bool has_archive = false;
  for (std::size_t chunk = 0; !has_archive && chunk < tensor.chunk_count(); ++chunk) {
    CAIRN_TRY_ASSIGN(has_archive, is_serialized(input, tensor, chunk));
  }
  for (std::size_t chunk = 0; has_archive && chunk < tensor.chunk_count(); ++chunk) {
    CAIRN_TRY_ASSIGN(std::string payload,
                     input.source->checkpoint().read_chunk_payload(tensor.fqn, chunk, input.source->load_options()));
    chunks.push_back(
        {std::move(payload), tensor.dtype, tensor.shape, tensor.requires_grad, tensor.chunk(chunk), tensor.strides});
  }
  return chunks;
}

Result<void> add_tensor(const ConvertInput& input, const ConvertKey& key, Entry& entry) {
  if (is_quantized(key.tensor->dtype)) {
    CAIRN_TRY_ASSIGN(entry.content, serialized_tensor(input, *key.tensor));
    return {};
  }
  CAIRN_TRY_ASSIGN(Box whole, Box::whole(key.tensor->shape));
  TensorEntry tensor{TensorView::contiguous(static_cast<void*>(nullptr), key.dtype, key.tensor->shape),
                     key.tensor->shape, std::move(whole)};
  tensor.traits.requires_grad = key.tensor->requires_grad;
  tensor.traits.strides = key.tensor->strides;
  entry.content = std::move(tensor);
  return {};
}

Result<void> add_value(const ConvertInput& input, const ConvertKey& key, Entry& entry) {
  const Checkpoint& source = input.source->checkpoint();
  const LoadOptions& options = input.source->load_options();
  if (source.catalog().format == CheckpointFormat::kDcp) {  // the bytes stay, whatever classes they name
    CAIRN_TRY_ASSIGN(std::string payload, source.read_payload(key.value->fqn, options));
    if (options.verify != Verify::kNone) {
      CAIRN_TRY(torch_file::check_storages(MemorySource(std::as_bytes(std::span(payload)))));
    }
    entry.content = SerializedValue{std::move(payload)};
    return {};
  }
  CAIRN_TRY_ASSIGN(std::optional<Value> value, convertible_value(input, key));
  if (value) {
    entry.content = *std::move(value);
  } else {
    Result<std::string> payload = source.read_payload(key.value->fqn, options);
    if (!payload) return advised(std::move(payload).error());
    entry.content = SerializedValue{*std::move(payload)};
  }
  return {};
}

// Adds the entries of key number `index` of the plan: one, or one for each chunk of a tensor with archives.
Result<void> add_key(const ConvertInput& input, std::size_t index, Items& items) {
  const ConvertKey& key = input.plan.keys[index];
  const auto add_entry = [&]() -> Entry& {
    items.keys.push_back(index);
    return items.entries.emplace_back(Entry{key.name.fqn, key.name.path, Value()});
  };
  if (key.tensor == nullptr) {
    Entry& entry = add_entry();
    CAIRN_TRY(add_value(input, key, entry));
    if (std::holds_alternative<SerializedValue>(entry.content)) items.as_saved.insert(index);
    return {};
  }
  if (is_quantized(key.tensor->dtype)) items.as_saved.insert(index);
  CAIRN_TRY_ASSIGN(std::vector<SerializedTensor> chunks, serialized_chunks(input, *key.tensor));
  if (chunks.empty()) return add_tensor(input, key, add_entry());
  if (key.dtype != key.tensor->dtype) {
    return Error(ErrorCode::kUnsupported, "the dtype of an archive that only torch can read can't change")
        .expected(name_of(key.dtype))
        .actual(name_of(key.tensor->dtype));
  }
  for (SerializedTensor& chunk : chunks) add_entry().content = std::move(chunk);
  return {};
}

// Reads the values of the source.
Result<std::shared_ptr<Items>> make_items(const std::shared_ptr<const ConvertInput>& input) {
  auto items = std::make_shared<Items>();
  items->input = input;
  items->entries.reserve(input->plan.keys.size() + 1);
  for (std::size_t i = 0; i < input->plan.keys.size(); ++i) {
    CAIRN_TRY(input->source->check_not_stopped());
    Result<void> added = add_key(*input, i, *items);
    if (!added) return input->source->explain(std::move(added).error().key(input->plan.keys[i].source_fqn()));
  }
  if (input->saves_shape) {
    const std::string key(kNestedShapeKey);
    items->entries.push_back({key, {key}, shape_value(input->plan.shape)});
    items->keys.push_back(input->plan.keys.size());
  }
  CAIRN_TRY_ASSIGN(items->serialized, SaveItems::make(items->entries));
  return items;
}

// The rows of an item that a file may hold apart from the rest.
std::int64_t rows_of(const ItemSource& source) {
  if (source.tensor == nullptr || source.tensor->global_shape.empty()) return 1;
  return source.tensor->global_shape[0];
}

// `key` is null for the shape.
std::uint64_t bytes_of(const ItemSource& source, const ConvertKey* key) {
  return source.tensor != nullptr ? key->bytes() : source.bytes.size();
}

// The rows of a whole tensor that the part names.
TensorEntry rows(const TensorEntry& whole, const plan::ItemPart& part) {
  TensorEntry cut = whole;
  Extents offsets(whole.global_shape.size(), 0);
  Extents sizes = whole.global_shape;
  offsets[0] = part.begin;
  sizes[0] = part.end - part.begin;
  cut.local = TensorView::contiguous(static_cast<void*>(nullptr), cut.local.dtype, sizes);
  cut.box = Box::make(std::move(offsets), std::move(sizes)).value();
  return cut;
}

void add_part(ItemSource source, const ConvertKey* key, const plan::ItemPart& part, Items& items, FileContent& file) {
  StreamedTensor stream;
  if (source.tensor != nullptr) {
    stream = {key->tensor, key->dtype, 0};
    if (part.end - part.begin != rows_of(source)) {
      stream.first_element = part.begin * row_major_strides(source.tensor->global_shape)[0];
      source.tensor = &items.cuts.emplace_back(rows(*source.tensor, part));
    }
  }
  file.sources.push_back(source);
  file.streams.push_back(stream);
}

std::vector<FileContent> divide(const ConvertJob& job, Items& items) {
  const std::vector<ItemSource>& sources = items.serialized.sources();
  std::vector<std::size_t> order;  // tensors first, as in every data file
  for (const bool values : {false, true}) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if ((sources[i].kind == manifest::TrailerItem::Kind::kValue) == values) order.push_back(i);
    }
  }
  const auto key_of = [&](std::size_t i) {
    return items.keys[i] < job.input->plan.keys.size() ? &job.input->plan.keys[items.keys[i]] : nullptr;
  };
  std::vector<plan::BalancedItem> balanced;
  balanced.reserve(order.size());
  for (const std::size_t i : order) {
    balanced.push_back({bytes_of(sources[i], key_of(i)), rows_of(sources[i])});
  }
  std::vector<FileContent> files;
  for (const auto& parts : plan::balance_files(balanced, job.options.file_count)) {
    FileContent& file = files.emplace_back();
    for (const plan::ItemPart& part : parts) {
      const std::size_t i = order[part.item];
      file.items.push_back(i);
      add_part(sources[i], key_of(i), part, items, file);
    }
  }
  return files;
}

Result<plan::LocalItem> describe_item(const ItemSource& source, ExtentsTable& strides) {
  manifest::TrailerItem described;
  CAIRN_TRY(data_file::describe(source, described));
  plan::LocalItem item;
  item.fqn = source.entry->fqn;
  item.kind = source.kind == manifest::TrailerItem::Kind::kValue              ? plan::LocalItem::Kind::kValue
              : source.kind == manifest::TrailerItem::Kind::kSerializedTensor ? plan::LocalItem::Kind::kSerializedTensor
                                                                              : plan::LocalItem::Kind::kTensor;
  item.dtype = described.dtype;
  item.requires_grad = described.requires_grad;
  if (const Extents* recorded = save_plan::strides_of(source)) item.strides = strides.number_of(*recorded);
  item.shape = described.global_shape;
  item.box = described.box;
  return item;
}

struct Layout {
  std::vector<StreamedImage> images;
  Catalog catalog;
};

// The keys have the plan's order, as after a save of the same state: a data file has its tensors before its values.
Result<Catalog> catalog_of(const ConvertJob& job, std::vector<PlacedItem> placed) {
  std::stable_sort(placed.begin(), placed.end(), [](const auto& a, const auto& b) { return a.item < b.item; });
  // A DCP checkpoint of a state that was never nested stays one.
  const bool has_paths = job.input->plan.has_paths || job.input->source->catalog().format != CheckpointFormat::kDcp;
  ExtentsTable strides;
  save_plan::CatalogBuilder builder(strides);
  for (const PlacedItem& it : placed) {
    CAIRN_TRY_ASSIGN(const plan::LocalItem item, describe_item(*it.source, strides));
    if (builder.add(item, item.box, it.location) && has_paths) builder.add_path(item.fqn, it.source->entry->path);
  }
  return std::move(builder.catalog());
}

Result<Layout> lay_out(const ConvertJob& job, const std::shared_ptr<Items>& items, const commit::SaveTicket& ticket) {
  Layout layout;
  std::vector<FileContent> files = divide(job, *items);
  std::vector<PlacedItem> placed;
  std::vector<std::string> names;
  for (FileContent& file : files) {
    const auto number = static_cast<std::uint32_t>(names.size());
    const data_file::ImageIdentity identity{ticket.identity.save_id, 0, number,
                                            static_cast<std::uint32_t>(files.size())};
    CAIRN_TRY_ASSIGN(FileImage image, FileImage::make(identity, file.sources));
    for (std::size_t i = 0; i < file.sources.size(); ++i) {
      placed.push_back(
          {file.items[i], &file.sources[i], {number, image.range(i).item_offset, image.range(i).item_length}});
    }
    names.push_back(commit::data_file_name(ticket, 0, number));
    layout.images.push_back(
        {names.back(), std::make_unique<FileImage>(std::move(image)), std::move(file.streams), items});
  }
  CAIRN_TRY_ASSIGN(layout.catalog, catalog_of(job, std::move(placed)));
  layout.catalog.files = std::move(names);
  layout.catalog.version = dcp::kMetadataVersion;
  layout.catalog.save_id = uuid_text(ticket.identity.save_id);
  layout.catalog.checkpoint_id = job.target.string();
  return layout;
}

// The keys that were copied decide, not the options: a pattern may select all keys, or leave out the optimizer.
bool is_exact_copy(const ConvertInput& input) {
  const Catalog& source = input.source->catalog();
  const bool had_shape = source.find_value(kNestedShapeKey) != nullptr;
  const auto has_its_name = [](const ConvertKey& key) { return key.name.fqn == key.source_fqn(); };
  return source.format == CheckpointFormat::kDcp && input.plan.conversions.empty() &&
         input.plan.keys.size() + (had_shape ? 1 : 0) == source.keys.size() && input.saves_shape == had_shape &&
         std::all_of(input.plan.keys.begin(), input.plan.keys.end(), has_its_name);
}

// A copy with all keys and values of a DCP checkpoint takes the original's place in the order of cairn::latest.
commit::SaveIdentity identity_of_copy(const ConvertJob& job) {
  const bool is_exact = is_exact_copy(*job.input);
  const auto& record = job.input->source->checkpoint().impl().record;
  if (!is_exact || !record || record->job_start == 0) return commit::copy_identity(commit::SaveForm::kCheckpoint);
  return commit::copy_identity(commit::SaveForm::kCheckpoint, record->job_start, record->save_number);
}

}  // namespace

Result<void> convert_to_dcp(ConvertJob& job) {
  CAIRN_TRY_ASSIGN(const std::shared_ptr<Items> items,
                   job.worker.run("reading the values of the source",
                                  [input = job.input](WorkerState&) { return make_items(input); }));
  job.as_saved = items->as_saved;
  CAIRN_TRY(job.worker.open(made_directory(job.target)));
  CAIRN_TRY_ASSIGN(
      const commit::SaveTicket ticket,
      job.worker.claim(identity_of_copy(job), {.overwrite = job.options.overwrite, .beside_a_model = false}));
  CAIRN_TRY_ASSIGN(Layout layout, lay_out(job, items, ticket));
  CAIRN_TRY(job.worker.expect(layout.catalog.files));
  CAIRN_TRY_ASSIGN(const dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(layout.catalog));
  std::string front = metadata.render(*layout.catalog.save_id, *layout.catalog.checkpoint_id, layout.catalog.files);
  if (const Result<std::string> notes = job.input->source->checkpoint().notes())
    front += manifest::encode_notes(*notes);
  RankPart part;
  part.ticket = ticket;
  CAIRN_TRY_ASSIGN(const std::vector<WrittenFile> written, write_streams(job, part, std::move(layout.images)));
  manifest::CommitRecord record;
  for (std::size_t i = 0; i < written.size(); ++i) {
    record.files.push_back({layout.catalog.files[i], written[i].size, written[i].trailer_checksum});
  }
  CAIRN_TRY(job.worker.hand_over_files());
  job.report.bytes_written += front.size();
  CAIRN_TRY_ASSIGN(commit::CommitReport committed,
                   job.worker.commit(std::move(front), std::move(record), job.options.durability));
  job.report.warnings = std::move(committed.warnings);
  job.report.directory = job.target;
  job.report.files = std::move(layout.catalog.files);
  job.report.files.emplace_back(kMetadataName);
  if (written.size() < job.options.file_count) {
    job.report.warnings.push_back("the tensors fill only " + std::to_string(written.size()) + " of " +
                                  std::to_string(job.options.file_count) + " files");
  }
  report_copies(job);
  return {};
}

}  // namespace cairn::checkpointer
