// A rank's part of the plan of an earlier save:
//
// 1. Find. The rank compares the fingerprint of its local plan and terms with the rank's fingerprint in each noted
//    commit record.
// 2. Read. The rank reads the trailers of the files that the rank of its number has written: they name the rank's
//    items, in order, with their places. The coordinator also decodes the whole `.metadata`, and makes its template.
//    The chunks of each tensor must cover the tensor, and a compact catalog must be equal to the pickle. Another rank
//    reads in `.metadata` the entries of its keys that its files do not hold.
// 3. Assign. Each item of a trailer is an item of this rank's state, or a part of one. The rank lays its items out
//    anew. Every place must be the place in the trailer.
// 4. Check. The metadata must have all keys of this rank's state.
//
// A rank that fails in a step has no plan, and votes so (vote.h); the save then plans anew. If all ranks vote for the
// plan, they compare the metadata with their files (plan_confirmation.h): fingerprints, trailers and metadata may be a
// stranger's, and each may be right by itself.
#include "save/resumed_plan.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/lazy_metadata.h"
#include "checkpoint/recorded_plans.h"
#include "core/attempt.h"
#include "core/checksum.h"
#include "core/seeded_hash.h"
#include "data_file/data_file.h"
#include "format/manifest/notes.h"
#include "os/call_within.h"
#include "plan/chunk_validation.h"
#include "save/plan_terms.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

// The other ranks wait meanwhile, and planning anew takes seconds. The metadata of 16,384 ranks is decoded in 10 s.
constexpr std::chrono::milliseconds kReadMax{60'000};

// Metadata without a compact catalog has few chunks and values: each rank decodes all of it.
constexpr std::uint64_t kSmallMetadataBytesMax = std::uint64_t{64} << 20;

// Step 1.
std::shared_ptr<const NotedPlan> find_record(const ResumeTerms& terms) {
  const std::vector<std::shared_ptr<const NotedPlan>> noted = noted_plans();
  if (noted.empty()) return nullptr;
  const Fingerprint mine = plan_fingerprint(terms.local_plan, terms.terms);
  const auto found = std::ranges::find_if(noted, [&](const std::shared_ptr<const NotedPlan>& it) {
    const std::vector<manifest::RecordedPlan::Rank>& ranks = it->record.plan.ranks;
    return ranks.size() == terms.rank_count && ranks[terms.rank].local_plan == mine;
  });
  return found == noted.end() ? nullptr : *found;
}

// What a rank reads, and what it needs for that: the reading may outlive the save.
struct ReadRequest {
  std::shared_ptr<const NotedPlan> noted;
  std::size_t rank = 0;
  bool is_coordinator = false;
  std::string metadata_attributes;
  std::vector<std::string> keys;  // of this rank's state, each once
};
struct RecordedFiles {
  std::vector<std::unique_ptr<data_file::DataFile>> own;  // with trailers
  std::shared_ptr<const commit::CommitPlan> commit_plan;  // the coordinator's
  std::shared_ptr<const ResumedMetadata> metadata;        // the coordinator's
  Catalog others;  // of the remaining ranks: the entries of the keys that no own file holds, without chunks
  const Catalog& entries() const { return metadata ? metadata->catalog : others; }
};

Error replaced_checkpoint() { return Error(ErrorCode::kReplaced, "the checkpoint was replaced"); }

// Every element of every tensor must lie in exactly one chunk.
Result<void> check_coverage(const Catalog& catalog) {
  for (const CatalogTensor& tensor : catalog.tensors) {
    CAIRN_TRY(plan::validate_chunks({tensor.fqn, tensor.shape, tensor.boxes, {}}, plan::Coverage::kWhole));
  }
  return {};
}

// The coordinator's part. The pickle is made anew from the catalog, not copied: stock torch will run the pickle of the
// next checkpoint, and the pickle in the file may be of a stranger.
Result<void> read_metadata(const storage::Storage& storage, const ReadRequest& request, RecordedFiles& files) {
  const NotedPlan& noted = *request.noted;
  CAIRN_TRY_ASSIGN(std::string bytes, storage::read_small(storage, noted.metadata_name, kMetadataBytesMax, true));
  CAIRN_TRY_ASSIGN(WholeMetadata whole, whole_metadata_of(std::as_bytes(std::span(bytes))));
  if (!whole.record || !(*whole.record == noted.record)) return replaced_checkpoint();
  CAIRN_TRY_ASSIGN(const manifest::NotesPlace notes,
                   manifest::find_notes(MemorySource(std::as_bytes(std::span(bytes))), noted.record.front_bytes));
  const std::uint64_t front_bytes = noted.record.front_bytes - notes.section_bytes;
  if (whole.pickle_bytes > front_bytes) return Error(ErrorCode::kCorrupt, "the pickle has no end");
  const std::string_view pickle = std::string_view(bytes).substr(0, whole.pickle_bytes);
  const compact_catalog::PickleIdentity identity{pickle.size(), crc32(std::as_bytes(std::span(pickle)))};
  const std::string compact = bytes.substr(pickle.size(), front_bytes - pickle.size());
  bytes = std::string();
  Catalog& catalog = whole.catalog;
  if (!catalog.transforms.empty()) return Error(ErrorCode::kUnsupported, "the items went through stream transforms");
  CAIRN_TRY(check_coverage(catalog));
  CAIRN_TRY(number_files_by(noted.record, catalog));
  catalog.version = dcp::kMetadataVersion;
  CAIRN_TRY_ASSIGN(catalog.extra, save_plan::extra_attributes_of(request.metadata_attributes));
  CAIRN_TRY_ASSIGN(dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(catalog));
  if (!metadata.is_compact_catalog(compact, identity)) {
    return Error(ErrorCode::kCorrupt, "the compact catalog of the plan's metadata differs from its pickle");
  }
  files.commit_plan = std::make_shared<const commit::CommitPlan>(std::move(metadata), noted.record.plan.ranks);
  auto resumed = std::make_shared<ResumedMetadata>();
  resumed->catalog = std::move(catalog);
  for (const manifest::RecordedPlan::Rank& rank : noted.record.plan.ranks) {
    resumed->file_counts.push_back(rank.file_count);
  }
  files.metadata = std::move(resumed);
  return {};
}

// The entries of `keys` in `.metadata`, without chunks.
Result<Catalog> read_entries(const storage::Storage& storage, const NotedPlan& noted,
                             const std::vector<std::string>& keys) {
  CAIRN_TRY_ASSIGN(const std::optional<LazyMetadata::Opened> opened, LazyMetadata::open(storage, noted.metadata_name));
  if (!opened) {
    CAIRN_TRY_ASSIGN(const std::string bytes,
                     storage::read_small(storage, noted.metadata_name, kSmallMetadataBytesMax, true));
    CAIRN_TRY_ASSIGN(WholeMetadata whole, whole_metadata_of(std::as_bytes(std::span(bytes))));
    if (!whole.record || !(*whole.record == noted.record)) return replaced_checkpoint();
    return std::move(whole.catalog);
  }
  if (!(opened->record == noted.record)) return replaced_checkpoint();
  std::vector<compact_catalog::WantedKey> wanted;
  wanted.reserve(keys.size());
  for (const std::string& key : keys) wanted.push_back({key, false, {}});
  return opened->metadata->compact().find(wanted);
}

// Step 2.
Result<RecordedFiles> read_files(const ReadRequest& request) {
  RecordedFiles files;
  const NotedPlan& noted = *request.noted;
  const std::vector<manifest::RecordedPlan::Rank>& ranks = noted.record.plan.ranks;
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(noted.directory));
  std::size_t first = 0;
  for (std::size_t before = 0; before < request.rank; ++before) first += ranks[before].file_count;
  std::unordered_set<std::string, SeededHash> held;  // keys
  std::unordered_set<std::string_view, SeededHash> names;
  for (const auto& file : std::span(noted.record.files).subspan(first, ranks[request.rank].file_count)) {
    if (!names.insert(file.name).second) return Error(ErrorCode::kCorrupt, "a file twice in the commit record");
    CAIRN_TRY_ASSIGN(auto opened, data_file::DataFile::open(*storage, file.name, false, &file, noted.record.save_id));
    for (std::size_t i = 0; i < opened->trailer()->item_count(); ++i) held.insert(opened->trailer()->item(i).fqn);
    files.own.push_back(std::move(opened));
  }
  if (request.is_coordinator) {
    CAIRN_TRY(read_metadata(*storage, request, files));
    return files;
  }
  std::vector<std::string> others;
  std::ranges::copy_if(request.keys, std::back_inserter(others), [&](const auto& key) { return !held.contains(key); });
  if (!others.empty()) {
    CAIRN_TRY_ASSIGN(files.others, read_entries(*storage, noted, others));
  }
  return files;
}

// The items of this rank's state, by key.
class OwnItems {
 public:
  static Result<OwnItems> of(const std::vector<data_file::ItemSource>& sources) {
    OwnItems own;
    own.items_.resize(sources.size());
    for (std::size_t i = 0; i < sources.size(); ++i) {
      CAIRN_TRY(data_file::describe(sources[i], own.items_[i]));
      own.elements_left_.push_back(elements_of(own.items_[i].box));
      own.by_key_.emplace(sources[i].entry->fqn, static_cast<std::uint32_t>(i));
    }
    return own;
  }

  // Fails with kMissingKey for a key that neither `held` nor `entries` has, and for an entry of another dtype or shape.
  Result<void> expect_in(const Catalog& entries, const std::unordered_set<std::string_view, SeededHash>& held) const {
    for (const manifest::TrailerItem& item : items_) {
      if (held.contains(item.fqn)) continue;
      const CatalogTensor* const tensor = entries.find_tensor(item.fqn);
      const bool is_there = item.kind == manifest::TrailerItem::Kind::kValue
                                ? entries.find_value(item.fqn) != nullptr
                                : tensor != nullptr && tensor->dtype == item.dtype &&
                                      tensor->shape == item.global_shape && tensor->requires_grad == item.requires_grad;
      if (!is_there) return Error(ErrorCode::kMissingKey, "the metadata of the plan lacks the entry").key(item.fqn);
    }
    return {};
  }

  // The item of the state that holds `stored`, or a part of the item. Nullopt if there is none, and for elements that
  // an earlier call has taken: a forged trailer may name an item a million times.
  std::optional<AssignedItem> take(const manifest::TrailerItem& stored) {
    std::optional<AssignedItem> item = find(stored);
    if (!item) return std::nullopt;
    std::uint64_t& left = elements_left_[item->index];
    const std::uint64_t wanted = item->part ? elements_of(*item->part) : left;
    if (wanted == 0 || wanted > left) return std::nullopt;
    if (!item->part && wanted != elements_of(items_[item->index].box)) return std::nullopt;
    left -= wanted;
    return item;
  }

 private:
  // 1 for a box without elements, and for a value, whose box has no dimensions.
  static std::uint64_t elements_of(const Box& box) {
    return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(box.element_count()));
  }

  std::optional<AssignedItem> find(const manifest::TrailerItem& stored) const {
    const auto [begin, end] = by_key_.equal_range(stored.fqn);
    std::optional<AssignedItem> part;
    for (auto at = begin; at != end; ++at) {
      const manifest::TrailerItem& item = items_[at->second];
      if (item.kind != stored.kind) continue;
      const bool is_value = item.kind == manifest::TrailerItem::Kind::kValue;
      if (is_value || item.box == stored.box) return AssignedItem{at->second, nullptr};
      const bool may_be_cut = item.kind == manifest::TrailerItem::Kind::kTensor;
      if (may_be_cut && !part && intersection(item.box, stored.box) == stored.box) {
        part = {at->second, std::make_shared<const Box>(stored.box)};
      }
    }
    return part;
  }

  std::vector<manifest::TrailerItem> items_;
  std::vector<std::uint64_t> elements_left_;                         // of each item
  std::unordered_multimap<std::string_view, std::uint32_t> by_key_;  // views into the entries of the state
};

bool is_laid_out_as(const manifest::TrailerIndex& index, const manifest::Trailer& stored) {
  if (index.items.size() != stored.item_count()) return false;
  for (std::size_t i = 0; i < index.items.size(); ++i) {
    if (!(index.items[i].range == stored.range(i)) || index.items[i].fqn != stored.item(i).fqn) return false;
  }
  return true;
}

// Steps 3 and 4.
Result<std::shared_ptr<const StagedPlan>> assign(SaveItems& items, const ResumeTerms& terms, const NotedPlan& noted,
                                                 RecordedFiles files) {
  auto plan = std::make_shared<StagedPlan>();
  plan->id = unconfirmed_plan_id(noted.record.save_id.low);
  plan->is_confirmed = false;
  plan->resumed = files.metadata;
  plan->local_plan = terms.local_plan;
  plan->terms = terms.terms;
  CAIRN_TRY_ASSIGN(OwnItems own, OwnItems::of(items.sources()));
  for (const auto& file : files.own) {
    for (std::size_t i = 0; i < file->trailer()->item_count(); ++i) {
      std::optional<AssignedItem> item = own.take(file->trailer()->item(i));
      if (!item) return Error(ErrorCode::kMissingKey, "the state lacks an item of the plan").file(file->name());
      plan->items.push_back(*std::move(item));
    }
  }
  CAIRN_TRY_ASSIGN(const std::vector<data_file::ItemSource> sources, items.take(plan->items));
  const data_file::ImageIdentity identity{noted.record.save_id, static_cast<std::uint32_t>(terms.rank), 0,
                                          static_cast<std::uint32_t>(noted.record.files.size())};
  CAIRN_TRY(lay_out_staged(sources, identity, terms.file_per_item, std::move(files.commit_plan), *plan));
  const std::vector<writer::StagedLayout::File>& laid_out = plan->layout->files;
  const bool is_equal = std::ranges::equal(laid_out, files.own, [](const auto& mine, const auto& stored) {
    return is_laid_out_as(mine.index, *stored->trailer());
  });
  if (!is_equal) return Error(ErrorCode::kCorrupt, "the plan's files are laid out differently");
  std::unordered_set<std::string_view, SeededHash> held;
  for (const data_file::ItemSource& source : sources) held.insert(source.entry->fqn);
  CAIRN_TRY(own.expect_in(files.entries(), held));  // (4)
  return std::shared_ptr<const StagedPlan>(std::move(plan));
}

std::vector<std::string> keys_of(const SaveItems& items) {
  std::vector<std::string> keys;
  std::unordered_set<std::string_view, SeededHash> known;
  for (const data_file::ItemSource& source : items.sources()) {
    if (known.insert(source.entry->fqn).second) keys.push_back(source.entry->fqn);
  }
  return keys;
}

}  // namespace

std::shared_ptr<const StagedPlan> resume_plan(SaveItems& items, const ResumeTerms& terms) {
  const auto plan = attempt([&]() -> Result<std::shared_ptr<const StagedPlan>> {
    const std::shared_ptr<const NotedPlan> noted = find_record(terms);  // (1)
    if (!noted) return std::shared_ptr<const StagedPlan>();
    ReadRequest request{noted, terms.rank, terms.is_coordinator, std::string(terms.metadata_attributes),
                        keys_of(items)};
    auto files = os::call_within(std::min(terms.limit, kReadMax), [request = std::move(request)] {
      return attempt([&] { return read_files(request); });  // (2)
    });
    if (!files) {
      forget_noted_plan(*noted);  // each save would wait again
      return Error(ErrorCode::kUnavailable, "the storage of the plan hangs");
    }
    if (!*files) return std::move(*files).error();
    return assign(items, terms, *noted, **std::move(files));  // (3, 4)
  });
  return plan ? *plan : nullptr;
}

}  // namespace cairn::checkpointer
