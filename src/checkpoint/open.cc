#include <cairn/bucket_url.h>
#include <cairn/checkpoint.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/missing_checkpoint.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/open_calls.h"
#include "checkpoint/recorded_plans.h"
#include "checkpoint/safetensors_model.h"
#include "checkpoint/torch_checkpointing_directory.h"
#include "checkpoint/torch_save_file.h"
#include "checkpoint/wanted_entries.h"
#include "commit/job_identity.h"
#include "commit/metadata_in_place.h"
#include "core/byte_source.h"
#include "core/checksum.h"
#include "core/lfs_pointer.h"
#include "data_file/archive_check.h"
#include "format/safetensors/index.h"
#include "format/torch_file/value_archive.h"
#include "format/zip/directory.h"
#include "storage/open_directory.h"
#include "storage/watched_storage.h"

namespace cairn {

using checkpointer::WantedEntries;
Result<const data_file::DataFile*> Checkpoint::Impl::file_of(const ItemLocation& location, std::string_view fqn,
                                                             bool follow_links) {
  if (location.length == 0) return Error(ErrorCode::kCorrupt, "the metadata names no bytes for a key").key(fqn);
  if (const auto transform = catalog.transforms.find(std::string(fqn)); transform != catalog.transforms.end()) {
    return Error(ErrorCode::kUnsupported, "the item went through a stream transform")
        .key(fqn)
        .actual(transform->second);
  }
  auto opened = file(location.file, follow_links);
  if (!opened) return std::move(opened).error().key(fqn);
  return opened;
}

Result<const data_file::DataFile*> Checkpoint::Impl::file(std::uint32_t index, bool follow_links) {
  const std::lock_guard lock(mutex_);
  if (files_.empty()) {
    files_.resize(catalog.files.size());
    if (record) {
      for (const auto& file : record->files) recorded_.emplace(file.name, &file);
    }
  }
  if (!files_[index]) {
    const std::string& name = catalog.files[index];
    if (catalog.format == CheckpointFormat::kTorchCheckpointing) {
      CAIRN_TRY_ASSIGN(files_[index], checkpointer::open_again(*storage, name, item_places[index]));
      return files_[index].get();
    }
    const auto recorded = recorded_.find(name);
    const bool known = recorded != recorded_.end();
    if (record && !known) return Error(ErrorCode::kCorrupt, "the commit record does not list the data file").file(name);
    const std::optional<SaveId> save_id = record ? std::optional(record->save_id) : std::nullopt;
    auto opened = data_file::DataFile::open(*storage, name, follow_links, known ? recorded->second : nullptr, save_id);
    if (!opened) return std::move(opened).error().file(name).while_doing("opening a data file of the checkpoint");
    files_[index] = std::move(*opened);
  }
  return files_[index].get();
}

std::string identity_of(const commit::MetadataInPlace& metadata) {
  if (metadata.record) return "save " + to_hex(metadata.record->save_id);
  return "stock checkpoint of " + std::to_string(metadata.size) + " bytes, " + crc_text(metadata.checksum);
}

bool Checkpoint::Impl::replaced() const {
  if (catalog.format == CheckpointFormat::kSafetensors) {
    const Result<std::string> now = checkpointer::identity_of_safetensors(*storage, metadata_name);
    return now && *now != identity;
  }
  if (catalog.format == CheckpointFormat::kTorchSave) {
    const Result<std::string> now = checkpointer::identity_of_torch_save(*storage, metadata_name);
    return now && *now != identity;
  }
  if (catalog.format == CheckpointFormat::kTorchCheckpointing) {
    const Result<std::string> now = checkpointer::identity_of_torch_checkpointing(*storage);
    return now && *now != identity;
  }
  const auto now = commit::read_metadata_in_place(*storage, metadata_name);
  return now && (!now->present || identity_of(*now) != identity);
}

Result<void> Checkpoint::Impl::check_read(std::string_view fqn) const {
  const auto unread = unread_keys.find(fqn);
  if (unread == unread_keys.end()) return {};
  return Error(ErrorCode::kUnsupported, unread->second.reason).key(fqn).actual(unread->second.found);
}

Result<Value> Checkpoint::Impl::value_in_torch_save(std::string_view fqn) {
  const data_file::DataFile* opened = nullptr;
  CAIRN_TRY_ASSIGN(opened, file(0, true));
  const torch_file::StateFile::Entry* entry = opened->state_file()->find(fqn);
  if (entry == nullptr) return Error(ErrorCode::kMissingKey, "no such key in the checkpoint").key(fqn);
  Result<Value> value = opened->state_file()->value(*entry);
  if (!value) return std::move(value).error().key(fqn).file(opened->name());
  return value;
}

Result<Value> Checkpoint::Impl::value_of_item(const CatalogValue& value) {
  CAIRN_TRY(check_read(value.fqn));
  if (const auto held = held_values.find(value.fqn); held != held_values.end()) return held->second;
  const data_file::DataFile* opened = nullptr;
  CAIRN_TRY_ASSIGN(opened, file(value.location.file, false));
  if (opened->state_file() == nullptr) {  // a raw item
    CAIRN_TRY_ASSIGN(data_file::DataFile::Item item, opened->read_item(value.location, false));
    return Value(Bytes{std::move(item.bytes)});
  }
  const torch_file::StateFile::Entry* entry = opened->state_file()->find(value.fqn);
  if (entry == nullptr) return Error(ErrorCode::kInternal, "the file lacks a value of its catalog").key(value.fqn);
  Result<Value> decoded = opened->state_file()->value(*entry);
  if (!decoded) return std::move(decoded).error().key(value.fqn).file(opened->name());
  return decoded;
}

Error Checkpoint::Impl::replaced_or(Error error) const {
  const bool may_be = error.code() == ErrorCode::kNotFound || error.code() == ErrorCode::kCorrupt;
  return may_be ? replaced_while_read(std::move(error)) : error;
}

Error Checkpoint::Impl::replaced_while_read(Error error) const {
  if (!replaced()) return error;
  return Error(ErrorCode::kReplaced, "the checkpoint was replaced or removed while it was being read")
      .expected(identity)
      .actual(error.what());
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const Catalog& Checkpoint::catalog() const { return *impl_->whole_catalog().value(); }

// Only DCP checkpoints have a compact catalog, and the format of an empty catalog is that of DCP.
CheckpointFormat Checkpoint::format() const noexcept { return impl_->catalog.format; }

// A compact catalog has no transformed items.
bool Checkpoint::has_transforms() const noexcept { return !impl_->catalog.transforms.empty(); }

Result<bool> Checkpoint::holds_any(std::span<const std::string> fqns) const {
  CAIRN_TRY_ASSIGN(const WantedEntries entries, WantedEntries::of_keys(*impl_, fqns));
  return std::ranges::any_of(fqns, [&](const std::string& fqn) { return entries.tensor(fqn) || entries.value(fqn); });
}

std::optional<std::string> Checkpoint::damage() const { return impl_->damage(); }

Result<std::vector<std::pair<std::string, double>>> Checkpoint::metrics() const {
  CAIRN_TRY_ASSIGN(const std::string text, notes());
  return manifest::metrics_in(text);
}

Result<std::string> Checkpoint::notes() const {
  Result<std::string> notes = impl_->metadata ? impl_->metadata->notes() : impl_->notes;
  if (!notes) return std::move(notes).error().file(impl_->metadata_name).while_doing("reading the checkpoint's notes");
  return notes;
}

Result<const Catalog*> Checkpoint::Impl::whole_catalog() {
  if (!metadata) return &catalog;
  Result<const Catalog*> whole = metadata->whole(*record);
  if (!whole) return std::move(whole).error().file(metadata_name);
  return whole;
}

void Checkpoint::Impl::note_damage(const Error& damage) {
  const std::lock_guard lock(mutex_);
  if (!damage_) damage_ = Error(damage).file(metadata_name).what();
}

std::optional<std::string> Checkpoint::Impl::damage() const {
  const std::lock_guard lock(mutex_);
  return damage_;
}

std::shared_ptr<const Catalog> Checkpoint::Impl::last_entry(std::string_view fqn) const {
  const std::lock_guard lock(mutex_);
  return last_entry_ && last_key_ == fqn ? last_entry_ : nullptr;
}

void Checkpoint::Impl::keep_last_entry(std::string_view fqn, std::shared_ptr<const Catalog> entry) {
  const std::lock_guard lock(mutex_);
  last_key_ = fqn;
  last_entry_ = std::move(entry);
}

std::optional<SaveId> Checkpoint::save_id() const noexcept {
  return impl_->record ? std::optional(impl_->record->save_id) : std::nullopt;
}

namespace {

Checkpoint opened_with(std::unique_ptr<Checkpoint::Impl> impl, const commit::MetadataInPlace& in_place) {
  impl->identity = identity_of(in_place);
  if (impl->record) commit::order_saves_after(to_hex(impl->record->job_id), impl->record->job_start);
  return Checkpoint(std::move(impl));
}

// Nullopt if the whole metadata is to be decoded.
std::optional<Checkpoint> open_lazily(std::unique_ptr<storage::Storage>& storage, const std::string& metadata_name,
                                      std::optional<Error>& damage) {
  using checkpointer::LazyMetadata;
  Result<std::optional<LazyMetadata::Opened>> opened = LazyMetadata::open(*storage, metadata_name);
  if (!opened) {
    damage = std::move(opened).error();
    return std::nullopt;
  }
  if (!*opened) return std::nullopt;
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->storage = std::move(storage);
  impl->metadata_name = metadata_name;
  impl->metadata = std::move((*opened)->metadata);
  impl->record = std::move((*opened)->record);
  for (const auto& file : impl->record->files) impl->catalog.files.push_back(file.name);
  const commit::MetadataInPlace in_place{true, impl->record};
  return opened_with(std::move(impl), in_place);
}

}  // namespace

Result<Checkpoint> checkpointer::open_in(std::unique_ptr<storage::Storage> storage, const std::string& metadata_name,
                                         Decoding decoding) {
  std::optional<Error> damage;
  if (decoding == Decoding::kWanted) {
    if (std::optional<Checkpoint> lazy = open_lazily(storage, metadata_name, damage)) return *std::move(lazy);
  }
  CAIRN_TRY_ASSIGN(const std::string bytes, storage::read_small(*storage, metadata_name, kMetadataBytesMax, true));
  const auto span = std::as_bytes(std::span(bytes));
  if (std::optional<Error> pointer = lfs_pointer_error(MemorySource(span))) {
    return std::move(*pointer).file(metadata_name);
  }
  Result<WholeMetadata> metadata = whole_metadata_of(span);
  if (!metadata) return std::move(metadata).error().file(metadata_name);
  auto impl = std::make_unique<Checkpoint::Impl>();
  impl->storage = std::move(storage);
  impl->catalog = std::move(metadata->catalog);
  impl->record = std::move(metadata->record);
  impl->notes = std::move(metadata->notes);
  impl->metadata_name = metadata_name;
  if (metadata->catalog_damage) damage = std::move(metadata->catalog_damage);
  if (damage) impl->note_damage(*damage);
  const commit::MetadataInPlace in_place{true, impl->record, bytes.size(), impl->record ? 0 : crc32(span)};
  return opened_with(std::move(impl), in_place);
}

namespace {

using checkpointer::OpenDirectory;

bool is_safetensors_name(const std::filesystem::path& file) {
  return checkpointer::model_directory::has_model_suffix(file.filename().string());
}

// `only_file`: as of open_safetensors().
Result<Checkpoint> open_safetensors_at(const OpenDirectory& open_directory, const std::filesystem::path& directory,
                                       const std::string& only_file) {
  const std::filesystem::path opened = directory.empty() ? std::filesystem::path(".") : directory;
  const auto explain = [&](Error error) {
    return std::move(error).while_doing("opening the safetensors model in '" + opened.string() + "'");
  };
  auto storage = open_directory(opened);
  if (!storage) return explain(std::move(storage).error());
  Result<Checkpoint> checkpoint = checkpointer::open_safetensors(std::move(*storage), only_file);
  if (!checkpoint) return explain(std::move(checkpoint).error());
  checkpoint->impl().directory = opened.string();
  return checkpoint;
}

// The error for a pointer of Git LFS in place of the file.
std::optional<Error> lfs_pointer_at(const storage::Storage& storage, const std::string& name) {
  const Result<std::unique_ptr<storage::ReadableFile>> file = storage.open(name, true);
  std::optional<Error> pointer = file ? lfs_pointer_error(**file) : std::nullopt;
  if (pointer) pointer = std::move(*pointer).file(name);
  return pointer;
}

// The checkpoint in a file that is no safetensors file by its name. Nullopt if the file begins like no file of
// torch.save.
std::optional<Result<Checkpoint>> open_torch_save_at(const OpenDirectory& open_directory,
                                                     const std::filesystem::path& file) {
  const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : std::filesystem::path(".");
  const std::string name = file.filename().string();
  auto storage = open_directory(parent);
  if (!storage) return std::nullopt;
  if (std::optional<Error> pointer = lfs_pointer_at(**storage, name)) {
    return std::move(*pointer).while_doing("opening '" + file.string() + "'");
  }
  if (!checkpointer::is_torch_save(**storage, name)) return std::nullopt;
  Result<Checkpoint> checkpoint = checkpointer::open_torch_save(std::move(*storage), name);
  if (checkpoint) {
    checkpoint->impl().directory = parent.string();
    return checkpoint;
  }
  return std::move(checkpoint).error().while_doing("opening the torch.save file '" + file.string() + "'");
}

// Whether an object has the name. In a file system the opening of a file as a directory fails with ENOTDIR; a bucket
// has no directories, and the opening of a prefix never fails.
bool is_object(const OpenDirectory& open_directory, const std::filesystem::path& place) {
  if (!is_bucket_url(place) || !place.has_filename()) return false;
  const auto storage = open_directory(place.parent_path());
  return storage && (*storage)->open(place.filename().string(), false);
}

std::optional<Result<Checkpoint>> open_file_at(const OpenDirectory& open_directory, const std::filesystem::path& file) {
  if (!is_safetensors_name(file)) return open_torch_save_at(open_directory, file);
  return open_safetensors_at(open_directory, file.parent_path(), file.filename().string());
}

Result<Checkpoint> open_items_at(std::unique_ptr<storage::Storage> storage, const std::filesystem::path& directory) {
  Result<Checkpoint> checkpoint = checkpointer::open_torch_checkpointing(std::move(storage));
  if (checkpoint) {
    checkpoint->impl().directory = directory.string();
    return checkpoint;
  }
  return std::move(checkpoint)
      .error()
      .while_doing("opening the torch_checkpointing checkpoint in '" + directory.string() + "'");
}

}  // namespace

Result<Checkpoint> checkpointer::open_with(const OpenDirectory& open_directory, const std::filesystem::path& directory,
                                           const std::string& metadata_name, Decoding decoding) {
  const auto explain = [&](Error error) {
    if (checkpointer::means_no_checkpoint(error, directory, metadata_name)) {
      return checkpointer::missing_checkpoint(error, directory, metadata_name);
    }
    return std::move(error).while_doing("opening the checkpoint in '" + directory.string() + "'");
  };
  auto storage = open_directory(directory);
  if (!storage && storage.error().error_number() == ENOTDIR) {
    if (std::optional<Result<Checkpoint>> opened = open_file_at(open_directory, directory)) return *std::move(opened);
  }
  if (!storage) return explain(std::move(storage).error());
  if (metadata_name == safetensors::kIndexName) return open_safetensors_at(open_directory, directory, {});
  Result<Checkpoint> checkpoint = checkpointer::open_in(std::move(*storage), metadata_name, decoding);
  if (checkpoint) {
    checkpoint->impl().directory = directory.string();
    return checkpoint;
  }
  if (metadata_name == kMetadataName && checkpoint.error().error_number() == ENOENT) {
    if (is_object(open_directory, directory)) {
      if (std::optional<Result<Checkpoint>> opened = open_file_at(open_directory, directory)) return *std::move(opened);
    }
    storage = open_directory(directory);
    if (storage && checkpointer::holds_torch_checkpointing(**storage)) {
      return open_items_at(*std::move(storage), directory);
    }
    if (storage && checkpointer::holds_model_alone(**storage)) {
      return open_safetensors_at(open_directory, directory, {});
    }
  }
  return explain(std::move(checkpoint).error());
}

checkpointer::OpenDirectory checkpointer::watched_directories(std::shared_ptr<storage::OperationWatch> operations) {
  return [operations = std::move(operations)](const std::filesystem::path& directory) {
    return storage::open_watched([&] { return storage::open_directory(directory); }, operations, directory.string(),
                                 directory);
  };
}

Result<Checkpoint> open(const std::filesystem::path& directory, const std::string& metadata_name) {
  const auto open_directory = [](const std::filesystem::path& path) { return storage::open_directory(path); };
  return checkpointer::open_with(open_directory, directory, metadata_name);
}

Result<Checkpoint> open_to_inspect(const std::filesystem::path& directory, const std::string& metadata_name) {
  const auto open_directory = [](const std::filesystem::path& path) { return storage::open_directory(path); };
  return checkpointer::open_with(open_directory, directory, metadata_name, checkpointer::Decoding::kWanted);
}

// A job that loads a checkpoint goes on with its plan.
Result<Checkpoint> open_to_load(const std::filesystem::path& directory, const std::string& metadata_name) {
  Result<Checkpoint> checkpoint = open_to_inspect(directory, metadata_name);
  if (!checkpoint || !checkpoint->impl().record) return checkpoint;
  checkpointer::note_recorded_plan(directory, metadata_name, *checkpoint->impl().record);
  return checkpoint;
}

Result<std::uint64_t> Checkpoint::file_bytes(std::string_view file) const {
  const bool follows_links = impl_->catalog.format != CheckpointFormat::kDcp;
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::ReadableFile> opened, impl_->storage->open(file, follows_links));
  return opened->size();
}

namespace {

template <class T>
Result<T> or_replaced(const Checkpoint::Impl& impl, Result<T> read) {
  if (!read) return impl.replaced_or(std::move(read).error());
  return read;
}

}  // namespace

Result<std::string> Checkpoint::read_payload(std::string_view fqn, const LoadOptions& options) const {
  CAIRN_TRY_ASSIGN(const WantedEntries entries, WantedEntries::of_key(*impl_, fqn));
  return or_replaced(*impl_, impl_->payload_of(entries, fqn, options));
}

Result<std::string> Checkpoint::Impl::payload_of(const WantedEntries& entries, std::string_view fqn,
                                                 const LoadOptions& options) {
  const CatalogValue* value = entries.value(fqn);
  const CatalogTensor* tensor = entries.tensor(fqn);
  if (value == nullptr && tensor == nullptr) {
    return Error(ErrorCode::kMissingKey, "no such key in the checkpoint").key(fqn);
  }
  if (tensor != nullptr && tensor->chunk_count() != 1) {
    return Error(ErrorCode::kUnsupported, "a tensor in several chunks has no single payload")
        .key(fqn)
        .actual(std::to_string(tensor->chunk_count()) + " chunks");
  }
  if (tensor != nullptr) return chunk_payload(fqn, tensor->locations[0], options);
  CAIRN_TRY(check_read(fqn));
  if (catalog.format == CheckpointFormat::kTorchCheckpointing) return item_payload(*value);
  const data_file::DataFile* file = nullptr;
  CAIRN_TRY_ASSIGN(file, file_of(value->location, fqn, options.follow_links));
  if (options.verify != Verify::kNone && file->state_file() == nullptr) CAIRN_TRY(file->check_value(*value));
  return chunk_payload(fqn, value->location, options);
}

// As saved, because the class of the value may be one that only the caller's consent builds.
Result<std::string> Checkpoint::Impl::item_payload(const CatalogValue& value) {
  const data_file::DataFile* opened = nullptr;
  CAIRN_TRY_ASSIGN(opened, file(value.location.file, false));
  if (opened->state_file() != nullptr) return chunk_payload(value.fqn, value.location, {});
  CAIRN_TRY_ASSIGN(const Value held, value_of_item(value));
  return encode_value(held);
}

Result<std::string> Checkpoint::read_chunk_payload(std::string_view fqn, std::size_t chunk,
                                                   const LoadOptions& options) const {
  CAIRN_TRY_ASSIGN(const WantedEntries entries, WantedEntries::of_key(*impl_, fqn));
  const CatalogTensor* tensor = entries.tensor(fqn);
  if (tensor == nullptr || chunk >= tensor->chunk_count()) {
    return Error(ErrorCode::kMissingKey, "no such chunk in the checkpoint").key(fqn).actual(std::to_string(chunk));
  }
  return or_replaced(*impl_, impl_->chunk_payload(fqn, tensor->locations[chunk], options));
}

Result<std::string> Checkpoint::Impl::chunk_payload(std::string_view fqn, const ItemLocation& location,
                                                    const LoadOptions& options) {
  const data_file::DataFile* file = nullptr;
  CAIRN_TRY_ASSIGN(file, file_of(location, fqn, options.follow_links));
  if (file->has_parts(fqn)) {
    return Error(ErrorCode::kUnsupported, "a chunk that is a part of the tensor of its rank")
        .key(fqn)
        .file(file->name());
  }
  if (const torch_file::StateFile* state = file->state_file()) {
    Result<std::string> payload = state->payload(*state->find(fqn));
    if (!payload) return std::move(payload).error().key(fqn).file(file->name());
    return payload;
  }
  const auto explain = [&](Error error) {
    return std::move(error).key(fqn).file(file->name()).offset(location.offset);
  };
  Result<data_file::DataFile::Item> item = file->read_item(location, options.verify != Verify::kNone);
  if (!item) return explain(std::move(item).error());
  if (options.verify != Verify::kNone && !item->checked && catalog.format == CheckpointFormat::kDcp) {
    const MemorySource archive(std::as_bytes(std::span(item->bytes)));
    // The first bytes of an archive may be damaged.
    const Result<bool> ends_as_zip = zip::has_end_record(archive);
    const bool is_zip = item->bytes.starts_with("PK") || (ends_as_zip && *ends_as_zip);
    if (!is_zip) return std::move(item->bytes);
    if (auto checked = data_file::check_archive(archive); !checked) return explain(std::move(checked).error());
  }
  return std::move(item->bytes);
}

Result<Value> Checkpoint::read_value(std::string_view fqn, const LoadOptions& options) const {
  CAIRN_TRY_ASSIGN(const WantedEntries entries, WantedEntries::of_key(*impl_, fqn));
  return or_replaced(*impl_, impl_->value_of(entries, fqn, options));
}

Result<Value> Checkpoint::Impl::value_of(const WantedEntries& entries, std::string_view fqn,
                                         const LoadOptions& options) {
  if (catalog.format == CheckpointFormat::kTorchSave) return value_in_torch_save(fqn);
  if (catalog.format == CheckpointFormat::kTorchCheckpointing) {
    if (const CatalogValue* const value = entries.value(fqn)) return value_of_item(*value);
  }
  CAIRN_TRY_ASSIGN(const std::string payload, payload_of(entries, fqn, options));
  Result<Value> value = decode_value(std::as_bytes(std::span(payload)));
  if (!value) return std::move(value).error().key(fqn);
  return value;
}

Result<std::string> encode_value(const Value& value) { return torch_file::encode_value(value); }

Result<Value> decode_value(std::span<const std::byte> archive, TensorForm tensors) {
  const MemorySource source(archive);
  return tensors == TensorForm::kElements ? torch_file::decode_value(source) : torch_file::describe_value(source);
}

}  // namespace cairn
