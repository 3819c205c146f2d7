#include "save/model_layout.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "commit/model/model_files.h"
#include "core/seeded_hash.h"
#include "format/dcp/metadata_template.h"
#include "format/safetensors/header.h"
#include "save/file_numbers.h"
#include "save/model_image.h"
#include "save_plan/catalog_builder.h"

namespace cairn::checkpointer {
namespace {

using plan::LocalItem;
using safetensors::FileSet;

bool is_whole(const LocalItem& item) { return item.box.sizes() == item.shape; }

// A file of a model, and the indices of its items in the plan of its rank.
struct PlannedFile {
  std::uint32_t number = 1;
  std::size_t repeat = 0;  // 0: the first chunk of each tensor; k: the chunk after k chunks of the tensor
  std::vector<std::size_t> writes;
};

class ModelLayoutMaker {
 public:
  ModelLayoutMaker(const save_plan::PlannedSave& planned, const SafetensorsForm& form, const commit::SaveTicket& ticket)
      : planned_(planned), numbers_(form), ticket_(ticket), sharded_(form.sharded) {}

  Result<SaveLayout> make() {
    const std::size_t rank_count = planned_.global.ranks.size();
    std::vector<std::vector<PlannedFile>> files(rank_count);
    for (std::size_t rank = 0; rank < rank_count; ++rank) {
      CAIRN_TRY_ASSIGN(files[rank], files_of(rank));
      file_count_ += static_cast<std::uint32_t>(files[rank].size());
    }
    next_shard_ = static_cast<std::uint32_t>(rank_count) + 1;
    for (std::size_t rank = 0; rank < rank_count; ++rank) CAIRN_TRY(add_rank(rank, files[rank]));
    layout_.catalog = std::move(builder_.catalog());
    layout_.catalog.files = std::move(names_);
    layout_.catalog.format = CheckpointFormat::kSafetensors;
    return std::move(layout_);
  }

 private:
  Result<std::vector<PlannedFile>> files_of(std::size_t rank) const {
    std::map<std::pair<std::size_t, std::uint32_t>, PlannedFile> files;  // by repeat and number
    std::unordered_map<std::string_view, std::size_t> chunks;            // by key
    const std::vector<plan::WriteItem>& writes = planned_.global.ranks[rank];
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const LocalItem& item = planned_.local.plans()[rank][writes[i].item];
      CAIRN_TRY_ASSIGN(const std::uint32_t number, numbers_.of(item.fqn));
      const std::size_t repeat = chunks[item.fqn]++;
      PlannedFile& file = files[{repeat, number}];
      file.number = number;
      file.repeat = repeat;
      file.writes.push_back(i);
    }
    std::vector<PlannedFile> ordered;
    ordered.reserve(files.size());
    for (auto& [place, file] : files) ordered.push_back(std::move(file));
    return ordered;
  }

  Result<void> add_rank(std::size_t rank, const std::vector<PlannedFile>& files) {
    SaveAssignment& assignment = layout_.assignments.emplace_back();
    assignment.ticket = ticket_;
    assignment.file_count = file_count_;
    layout_.file_counts.push_back(static_cast<std::uint32_t>(files.size()));
    std::map<std::size_t, std::uint32_t> shards{{0, static_cast<std::uint32_t>(rank) + 1}};  // by repeat
    for (const PlannedFile& file : files) {
      const auto [shard, is_new] = shards.try_emplace(file.repeat, next_shard_);
      if (is_new) ++next_shard_;
      const std::optional<std::uint32_t> number = sharded_ ? std::optional(shard->second) : std::nullopt;
      std::string name = commit::model_file_name(ticket_, {file.number, numbers_.max(), number});
      assignment.files.push_back({name, static_cast<std::uint32_t>(file.writes.size())});
      names_.push_back(std::move(name));
      CAIRN_TRY(add_file(rank, file, assignment));
    }
    return {};
  }

  Result<void> add_file(std::size_t rank, const PlannedFile& file, SaveAssignment& assignment) {
    const plan::LocalPlan& items = planned_.local.plans()[rank];
    std::vector<TensorView> tensors;
    std::vector<ModelItem> model_items;
    tensors.reserve(file.writes.size());
    for (const std::size_t i : file.writes) {
      const plan::WriteItem& write = planned_.global.ranks[rank][i];
      const LocalItem& item = items[write.item];
      const Box& box = planned_.global.box_of(write, item);
      const bool is_part = write.cut != plan::WriteItem::kWhole;
      assignment.items.push_back({write.item, is_part ? std::make_shared<const Box>(box) : nullptr});
      tensors.push_back(TensorView::contiguous(static_cast<void*>(nullptr), item.dtype, box.sizes()));
      model_items.push_back({item.fqn, &tensors.back(), &box.offsets()});
    }
    const FileSet set{sharded_ ? FileSet::Kind::kShards : FileSet::Kind::kIndexed, file_count_};
    Result<data_file::SafetensorsImage> image = make_model_image(ticket_.identity, model_items, set);
    if (!image) return std::move(image).error().file(names_.back());
    std::vector<ItemLocation> places(file.writes.size());
    for (std::size_t payload = 0; payload < image->payload_count(); ++payload) {
      places[image->item_of(payload)] = {static_cast<std::uint32_t>(names_.size() - 1), image->payload_begin(payload),
                                         image->payload_length(payload)};
    }
    for (std::size_t i = 0; i < file.writes.size(); ++i) {
      const plan::WriteItem& write = planned_.global.ranks[rank][file.writes[i]];
      const LocalItem& item = items[write.item];
      const bool is_first = builder_.add(item, planned_.global.box_of(write, item), places[i]);
      if (is_first) builder_.add_path(item.fqn, planned_.local.path_of(item.fqn));
    }
    return {};
  }

  const save_plan::PlannedSave& planned_;
  FileNumbers numbers_;
  const commit::SaveTicket& ticket_;
  bool sharded_;
  std::uint32_t file_count_ = 0;
  std::uint32_t next_shard_ = 1;
  save_plan::CatalogBuilder builder_{planned_.local.strides()};
  std::vector<std::string> names_;
  SaveLayout layout_;
};

// The tensors of a file, over all ranks.
struct WholeFile {
  std::vector<std::string_view> keys;
  std::vector<std::size_t> held;  // by rank: the number of keys that the rank holds whole
  std::uint64_t bytes = 0;
};

Error held_by_no_rank(const WholeFile& file, const save_plan::PlannedSave& planned) {
  Error error(ErrorCode::kInvalidArgument,
              "no rank holds all tensors of the file whole, so no rank can write the file: save shards "
              "(save_distributed=True), with enable_consolidation=True for whole tensors");
  for (const std::string_view key : file.keys) {
    const bool whole = std::any_of(planned.local.plans().begin(), planned.local.plans().end(), [&](const auto& items) {
      return std::any_of(items.begin(), items.end(), [&](const LocalItem& i) { return i.fqn == key && is_whole(i); });
    });
    if (!whole) return std::move(error).key(key);
  }
  return std::move(error).key(file.keys.front());
}

}  // namespace

Result<void> check_model_state(std::span<const Entry> entries, const SafetensorsForm& form) {
  const FileNumbers numbers(form);
  for (const Entry& entry : entries) {
    const auto* tensor = std::get_if<TensorEntry>(&entry.content);
    if (tensor == nullptr) {
      const bool is_tensor = std::holds_alternative<SerializedTensor>(entry.content);
      return Error(ErrorCode::kInvalidArgument,
                   is_tensor ? "safetensors can't hold this form of tensor: leave the entry out"
                             : "safetensors holds tensors only: leave the value out, or save it elsewhere")
          .key(entry.fqn);
    }
    if (!safetensors::type_name(tensor->local.dtype)) {
      return Error(ErrorCode::kUnsupported, "safetensors has no such type")
          .key(entry.fqn)
          .actual(name_of(tensor->local.dtype));
    }
    if (const auto number = numbers.of(entry.fqn); !number) return number.error();
  }
  return {};
}

Result<void> assign_whole_files(save_plan::PlannedSave& planned, const SafetensorsForm& form) {
  const FileNumbers numbers(form);
  const auto& plans = planned.local.plans();
  std::map<std::uint32_t, WholeFile> files;  // by number
  std::unordered_map<std::string_view, std::uint32_t> seen;
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    for (const LocalItem& item : plans[rank]) {
      CAIRN_TRY_ASSIGN(const std::uint32_t number, numbers.of(item.fqn));
      WholeFile& file = files[number];
      file.held.resize(plans.size());
      if (seen.emplace(item.fqn, number).second) {
        file.keys.push_back(item.fqn);
        file.bytes += item.bytes;
      }
      if (is_whole(item)) ++file.held[rank];
    }
  }
  std::vector<std::uint64_t> bytes(plans.size());
  std::map<std::uint32_t, std::size_t> writers;  // by number: the rank
  for (const auto& [number, file] : files) {
    std::optional<std::size_t> writer;
    for (std::size_t rank = 0; rank < plans.size(); ++rank) {
      if (file.held[rank] == file.keys.size() && (!writer || bytes[rank] < bytes[*writer])) writer = rank;
    }
    if (!writer) return held_by_no_rank(file, planned);
    bytes[*writer] += file.bytes;
    writers[number] = *writer;
  }
  for (std::size_t rank = 0; rank < plans.size(); ++rank) {
    std::vector<plan::WriteItem>& writes = planned.global.ranks[rank];
    writes.clear();
    for (std::size_t i = 0; i < plans[rank].size(); ++i) {
      const LocalItem& item = plans[rank][i];
      const bool is_writer = writers[seen[item.fqn]] == rank;
      if (is_writer && is_whole(item)) writes.push_back({static_cast<std::uint32_t>(i), plan::WriteItem::kWhole});
    }
  }
  planned.global.cuts.clear();
  return {};
}

Result<SaveLayout> lay_out_model(const save_plan::PlannedSave& planned, const SafetensorsForm& form,
                                 const commit::SaveTicket& ticket) {
  CAIRN_TRY_ASSIGN(SaveLayout layout, ModelLayoutMaker(planned, form, ticket).make());
  layout.catalog.version = dcp::kMetadataVersion;
  layout.catalog.save_id = uuid_text(ticket.identity.save_id);
  return layout;
}

commit::ModelContent content_of(const Catalog& catalog) {
  commit::ModelContent content;
  content.files = catalog.files;
  for (const CatalogTensor& tensor : catalog.tensors) {
    content.index.files.emplace_back(tensor.fqn, catalog.files[tensor.locations[0].file]);
    for (const ItemLocation& location : tensor.locations) content.tensor_bytes += location.length;
  }
  return content;
}

}  // namespace cairn::checkpointer
