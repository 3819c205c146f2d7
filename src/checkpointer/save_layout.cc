#include "checkpointer/save_layout.h"

#include <span>
#include <utility>

#include "checkpointer/catalog_builder.h"
#include "data_file/item_placement.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "os/freed_memory.h"
#include "plan/file_assignment.h"

namespace cairn::checkpointer {
namespace {

// A file name has six digits for the number of the file.
constexpr std::size_t kFilesOfRankMax = 1'000'000;

// The plans of fewer items take less than 200 MB.
constexpr std::size_t kFewItems = 1'000'000;

class LayoutMaker {
 public:
  LayoutMaker(PlannedSave& planned, const commit::SaveTicket& ticket)
      : local_(planned.local), global_(planned.global), ticket_(ticket) {}

  Result<SaveLayout> make(std::uint32_t first_rank) {
    for (std::size_t rank = 0; rank < global_.ranks.size(); ++rank) {
      CAIRN_TRY(add_rank(rank, first_rank + static_cast<std::uint32_t>(rank)));
      local_.drop(rank);  // the catalog grows meanwhile: two copies at a time are never in memory
      global_.ranks[rank] = std::vector<plan::WriteItem>();
    }
    if (item_count_ > kFewItems) os::return_freed_memory();
    layout_.catalog = std::move(builder_.catalog());
    layout_.catalog.files = std::move(names_);
    for (SaveAssignment& assignment : layout_.assignments) {
      assignment.file_count = static_cast<std::uint32_t>(layout_.catalog.files.size());
    }
    return std::move(layout_);
  }

 private:
  Result<void> add_rank(std::size_t index, std::uint32_t rank) {
    const plan::LocalPlan& items = local_.plans()[index];
    const std::vector<plan::WriteItem>& writes = global_.ranks[index];
    item_count_ += items.size();
    std::vector<bool> is_value;
    is_value.reserve(writes.size());
    for (const plan::WriteItem& write : writes) {
      is_value.push_back(items[write.item].kind == plan::LocalItem::Kind::kValue);
    }
    const plan::FileAssignment files = plan::assign_files(is_value, local_.file_per_item(index));
    if (files.size() > kFilesOfRankMax) {
      return Error(ErrorCode::kInvalidArgument, "more than a million files of one rank").rank(rank);
    }
    std::vector<ItemLocation> locations(writes.size());
    for (std::size_t number = 0; number < files.size(); ++number) {
      CAIRN_TRY(place(items, writes, files[number], locations));
      names_.push_back(commit::data_file_name(ticket_, rank, static_cast<std::uint32_t>(number)));
    }
    layout_.file_counts.push_back(static_cast<std::uint32_t>(files.size()));
    SaveAssignment& assignment = layout_.assignments.emplace_back();
    assignment.ticket = ticket_;
    assignment.items.reserve(writes.size());
    builder_.begin_rank();
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const plan::LocalItem& item = items[writes[i].item];
      const Box& box = global_.box_of(writes[i], item);
      const bool is_archive = item.kind == plan::LocalItem::Kind::kSerializedTensor;
      const bool is_first = builder_.add(item, is_archive ? whole_of(item) : box, locations[i]);
      if (is_first) builder_.add_path(item.fqn, local_.path_of(item.fqn));
      const bool is_part = writes[i].cut != plan::WriteItem::kWhole;
      assignment.items.push_back({writes[i].item, is_part ? std::make_shared<const Box>(box) : nullptr});
    }
    return {};
  }

  // Places the items of the next file, whose index in the catalog is names_.size().
  Result<void> place(const plan::LocalPlan& items, const std::vector<plan::WriteItem>& writes,
                     const std::vector<std::size_t>& file, std::vector<ItemLocation>& locations) const {
    std::uint64_t end = 0;
    for (const std::size_t i : file) {
      const plan::LocalItem& item = items[writes[i].item];
      manifest::ItemRange range;
      if (item.kind == plan::LocalItem::Kind::kTensor) {
        CAIRN_TRY_ASSIGN(const data_file::PlacedTensor placed,
                         data_file::place_tensor({item.dtype, global_.box_of(writes[i], item).sizes()}, end));
        range = placed.range;
      } else {
        CAIRN_TRY_ASSIGN(range, data_file::place_bytes(item.bytes, end));
      }
      end = range.item_offset + range.item_length;
      locations[i] = {static_cast<std::uint32_t>(names_.size()), range.item_offset, range.item_length};
    }
    return {};
  }

  static Box whole_of(const plan::LocalItem& item) { return Box::whole(item.shape).value(); }

  LocalPlans& local_;
  plan::GlobalSavePlan& global_;
  const commit::SaveTicket& ticket_;
  CatalogBuilder builder_;
  std::vector<std::string> names_;
  std::size_t item_count_ = 0;
  SaveLayout layout_;
};

}  // namespace

Result<PlannedSave> plan_together(std::vector<std::string> local_plans, bool dedup_to_lowest_rank) {
  PlannedSave planned;
  for (std::string& local_plan : local_plans) {
    CAIRN_TRY(planned.local.add(local_plan));
    local_plan = std::string();
  }
  const plan::Coverage coverage = local_plans.size() > 1 ? plan::Coverage::kWhole : plan::Coverage::kPart;
  CAIRN_TRY_ASSIGN(planned.global, plan::plan_save(planned.local.plans(), {dedup_to_lowest_rank, coverage}));
  return planned;
}

Result<std::vector<std::pair<std::string, Value>>> extra_attributes_of(std::string_view metadata_attributes) {
  if (metadata_attributes.empty()) return std::vector<std::pair<std::string, Value>>();
  Result<dcp::DecodedMetadata> decoded = dcp::decode_metadata(std::as_bytes(std::span(metadata_attributes)));
  if (!decoded) return std::move(decoded).error().while_doing("reading metadata_attributes");
  return std::move(decoded->catalog.extra);
}

Result<SaveLayout> lay_out_save(PlannedSave planned, const commit::SaveTicket& ticket, std::uint32_t first_rank,
                                std::string checkpoint_id, std::string_view metadata_attributes) {
  CAIRN_TRY_ASSIGN(SaveLayout layout, LayoutMaker(planned, ticket).make(first_rank));
  layout.catalog.version = dcp::kMetadataVersion;
  layout.catalog.save_id = uuid_text(ticket.identity.save_id);
  layout.catalog.checkpoint_id = std::move(checkpoint_id);
  CAIRN_TRY_ASSIGN(layout.catalog.extra, extra_attributes_of(metadata_attributes));
  return layout;
}

}  // namespace cairn::checkpointer
