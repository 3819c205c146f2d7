// A rank's part of the plan of an earlier save:
//
// 1. Find. The rank compares the fingerprint of its local plan and terms with the rank's fingerprint in each noted
//    commit record.
// 2. Read. The rank reads the trailers of the files that the rank of its number has written: they name the rank's
//    items, in order, with their places. The coordinator also decodes the whole `.metadata`, and makes its template. A
//    rank without files has no items, and reads nothing.
// 3. Assign. Each item of a trailer is an item of this rank's state, or a part of one. The rank lays its items out
//    anew. Every place must be the place in the trailer: the coordinator's `.metadata` names the places of all ranks.
//
// A rank that fails in a step has no plan, and votes so (vote.h); the save then plans anew.
#include "checkpointer/resumed_plan.h"

#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpointer/lazy_metadata.h"
#include "checkpointer/plan_terms.h"
#include "core/attempt.h"
#include "data_file/data_file.h"
#include "os/call_within.h"
#include "storage/open_directory.h"

namespace cairn::checkpointer {
namespace {

// A job loads one checkpoint, or a few: a model, and an optimizer's state from elsewhere.
constexpr std::size_t kRecordsKept = 4;

struct NotedRecord {
  std::filesystem::path directory;  // absolute
  std::string metadata_name;
  manifest::CommitRecord record;
};

struct NotedRecords {
  std::mutex mutex;
  pid_t pid = -1;  // the process that opened the checkpoints: a forked child is a new job, and has loaded nothing
  std::vector<std::shared_ptr<const NotedRecord>> records;  // most recently noted first

  void forget_those_of_a_parent() {
    if (std::exchange(pid, getpid()) != getpid()) records.clear();
  }
};

NotedRecords& noted_records() {
  static NotedRecords noted;
  return noted;
}

// Step 1.
std::shared_ptr<const NotedRecord> find_record(const ResumeTerms& terms) {
  NotedRecords& noted = noted_records();
  const std::lock_guard lock(noted.mutex);
  noted.forget_those_of_a_parent();
  if (noted.records.empty()) return nullptr;
  const Fingerprint mine = plan_fingerprint(terms.local_plan, terms.terms);
  const auto found = std::ranges::find_if(noted.records, [&](const std::shared_ptr<const NotedRecord>& it) {
    const std::vector<manifest::RecordedPlan::Rank>& ranks = it->record.plan.ranks;
    return ranks.size() == terms.rank_count && ranks[terms.rank].local_plan == mine;
  });
  return found == noted.records.end() ? nullptr : *found;
}

struct RecordedFiles {
  std::vector<std::unique_ptr<data_file::DataFile>> own;  // with trailers
  std::shared_ptr<const commit::CommitPlan> commit_plan;  // the coordinator's
};

// The pickle is made anew from the catalog, not copied: stock torch will run the pickle of the next checkpoint, and the
// pickle in the file may be of a stranger.
Result<std::shared_ptr<const commit::CommitPlan>> read_commit_plan(const storage::Storage& storage,
                                                                   const NotedRecord& noted,
                                                                   std::string_view metadata_attributes) {
  CAIRN_TRY_ASSIGN(std::string bytes, storage::read_small(storage, noted.metadata_name, kMetadataBytesMax, true));
  CAIRN_TRY_ASSIGN(WholeMetadata whole, whole_metadata_of(std::as_bytes(std::span(bytes))));
  bytes = std::string();
  if (!whole.record || !(*whole.record == noted.record)) {
    return Error(ErrorCode::kReplaced, "the checkpoint was replaced");
  }
  Catalog& catalog = whole.catalog;
  if (!catalog.transforms.empty()) return Error(ErrorCode::kUnsupported, "the items went through stream transforms");
  CAIRN_TRY(number_files_by(noted.record, catalog));
  catalog.version = dcp::kMetadataVersion;
  CAIRN_TRY_ASSIGN(catalog.extra, extra_attributes_of(metadata_attributes));
  CAIRN_TRY_ASSIGN(dcp::MetadataTemplate metadata, dcp::MetadataTemplate::make(catalog));
  return std::make_shared<const commit::CommitPlan>(std::move(metadata), noted.record.plan.ranks);
}

// Step 2.
Result<RecordedFiles> read_files(const NotedRecord& noted, std::size_t rank, bool is_coordinator,
                                 std::string_view metadata_attributes) {
  RecordedFiles files;
  const std::vector<manifest::RecordedPlan::Rank>& ranks = noted.record.plan.ranks;
  const std::size_t count = ranks[rank].file_count;
  if (count == 0 && !is_coordinator) return files;
  CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::Storage> storage, storage::open_directory(noted.directory));
  std::size_t first = 0;
  for (std::size_t before = 0; before < rank; ++before) first += ranks[before].file_count;
  for (const manifest::CommitRecord::File& file : std::span(noted.record.files).subspan(first, count)) {
    CAIRN_TRY_ASSIGN(auto opened, data_file::DataFile::open(*storage, file.name, false, &file, noted.record.save_id));
    files.own.push_back(std::move(opened));
  }
  if (is_coordinator) {
    CAIRN_TRY_ASSIGN(files.commit_plan, read_commit_plan(*storage, noted, metadata_attributes));
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
      own.by_key_.emplace(sources[i].entry->fqn, static_cast<std::uint32_t>(i));
    }
    return own;
  }

  // Nullopt if no item of the state holds `stored`.
  std::optional<AssignedItem> find(const manifest::TrailerItem& stored) const {
    const auto [begin, end] = by_key_.equal_range(stored.fqn);
    std::optional<AssignedItem> part;
    for (auto at = begin; at != end; ++at) {
      const manifest::TrailerItem& item = items_[at->second];
      if (item.kind != stored.kind) continue;
      const bool is_chunk = item.kind == manifest::TrailerItem::Kind::kTensor;
      if (!is_chunk || item.box == stored.box) return AssignedItem{at->second, nullptr};
      if (!part && intersection(item.box, stored.box) == stored.box) {
        part = {at->second, std::make_shared<const Box>(stored.box)};
      }
    }
    return part;
  }

 private:
  std::vector<manifest::TrailerItem> items_;
  std::unordered_multimap<std::string_view, std::uint32_t> by_key_;  // views into the entries of the state
};

bool is_laid_out_as(const manifest::TrailerIndex& index, const manifest::Trailer& stored) {
  if (index.items.size() != stored.item_count()) return false;
  for (std::size_t i = 0; i < index.items.size(); ++i) {
    if (!(index.items[i].range == stored.range(i)) || index.items[i].fqn != stored.item(i).fqn) return false;
  }
  return true;
}

// Step 3.
Result<std::shared_ptr<const StagedPlan>> assign(SaveItems& items, const ResumeTerms& terms, const NotedRecord& noted,
                                                 RecordedFiles files) {
  auto plan = std::make_shared<StagedPlan>();
  plan->id = noted.record.save_id.low | 1;
  plan->local_plan = terms.local_plan;
  plan->terms = terms.terms;
  CAIRN_TRY_ASSIGN(const OwnItems own, OwnItems::of(items.sources()));
  for (const auto& file : files.own) {
    for (std::size_t i = 0; i < file->trailer()->item_count(); ++i) {
      std::optional<AssignedItem> item = own.find(file->trailer()->item(i));
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
  return std::shared_ptr<const StagedPlan>(std::move(plan));
}

}  // namespace

void note_recorded_plan(const std::filesystem::path& directory, const std::string& metadata_name,
                        const manifest::CommitRecord& record) {
  if (record.plan.ranks.empty()) return;
  std::error_code failure;
  std::filesystem::path absolute = std::filesystem::absolute(directory, failure);
  if (failure) return;
  NotedRecords& noted = noted_records();
  const std::lock_guard lock(noted.mutex);
  noted.forget_those_of_a_parent();
  std::erase_if(noted.records, [&](const auto& it) { return it->record.save_id == record.save_id; });
  noted.records.insert(noted.records.begin(),
                       std::make_shared<const NotedRecord>(NotedRecord{std::move(absolute), metadata_name, record}));
  if (noted.records.size() > kRecordsKept) noted.records.pop_back();
}

std::shared_ptr<const StagedPlan> resume_plan(SaveItems& items, const ResumeTerms& terms) {
  const auto plan = attempt([&]() -> Result<std::shared_ptr<const StagedPlan>> {
    const std::shared_ptr<const NotedRecord> noted = find_record(terms);  // (1)
    if (!noted) return std::shared_ptr<const StagedPlan>();
    auto files = os::call_within(terms.limit, [noted, rank = terms.rank, is_coordinator = terms.is_coordinator,
                                               attributes = std::string(terms.metadata_attributes)] {
      return attempt([&] { return read_files(*noted, rank, is_coordinator, attributes); });  // (2)
    });
    if (!files) return Error(ErrorCode::kUnavailable, "the storage of the plan hangs");
    if (!*files) return std::move(*files).error();
    return assign(items, terms, *noted, **std::move(files));  // (3)
  });
  return plan ? *plan : nullptr;
}

}  // namespace cairn::checkpointer
