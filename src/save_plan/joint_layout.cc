#include "save_plan/joint_layout.h"

#include <span>
#include <utility>

#include "data_file/item_placement.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"
#include "os/freed_memory.h"
#include "plan/file_assignment.h"
#include "save_plan/catalog_builder.h"

namespace cairn::save_plan {
namespace {

// A file name has six digits for the number of the file.
constexpr std::size_t kFilesOfRankMax = 1'000'000;

// The plans of fewer items take less than 200 MB.
constexpr std::size_t kFewItems = 1'000'000;

class LayoutMaker {
 public:
  explicit LayoutMaker(PlannedSave& planned)
      : local_(planned.local), global_(planned.global), builder_(planned.local.strides()) {}

  Result<JointLayout> make() {
    for (std::size_t rank = 0; rank < global_.ranks.size(); ++rank) {
      CAIRN_TRY(add_rank(rank));
      local_.drop(rank);  // the catalog grows meanwhile: two copies at a time are never in memory
      global_.ranks[rank] = std::vector<plan::WriteItem>();
    }
    if (item_count_ > kFewItems) os::return_freed_memory();
    layout_.catalog = std::move(builder_.catalog());
    layout_.catalog.files.resize(file_count_);
    return std::move(layout_);
  }

 private:
  Result<void> add_rank(std::size_t rank) {
    const plan::LocalPlan& items = local_.plans()[rank];
    const std::vector<plan::WriteItem>& writes = global_.ranks[rank];
    item_count_ += items.size();
    std::vector<bool> is_value;
    is_value.reserve(writes.size());
    for (const plan::WriteItem& write : writes) {
      is_value.push_back(items[write.item].kind == plan::LocalItem::Kind::kValue);
    }
    const plan::FileAssignment files = plan::assign_files(is_value, local_.file_per_item(rank));
    if (files.size() > kFilesOfRankMax) {
      return Error(ErrorCode::kInvalidArgument, "more than a million files of one rank")
          .rank(static_cast<std::int64_t>(rank));
    }
    std::vector<ItemLocation> locations(writes.size());
    for (const std::vector<std::size_t>& file : files) CAIRN_TRY(place(items, writes, file, locations));
    RankLayout& laid_out = layout_.ranks.emplace_back();
    laid_out.file_count = static_cast<std::uint32_t>(files.size());
    laid_out.items.reserve(writes.size());
    builder_.begin_rank();
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const plan::LocalItem& item = items[writes[i].item];
      const Box& box = global_.box_of(writes[i], item);
      const bool is_first = builder_.add(item, box, locations[i]);
      if (is_first) builder_.add_path(item.fqn, local_.path_of(item.fqn));
      const bool is_part = writes[i].cut != plan::WriteItem::kWhole;
      laid_out.items.push_back({writes[i].item, is_part ? std::make_shared<const Box>(box) : nullptr});
    }
    return {};
  }

  // Places the items of the next file.
  Result<void> place(const plan::LocalPlan& items, const std::vector<plan::WriteItem>& writes,
                     const std::vector<std::size_t>& file, std::vector<ItemLocation>& locations) {
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
      locations[i] = {file_count_, range.item_offset, range.item_length};
    }
    ++file_count_;
    return {};
  }

  LocalPlans& local_;
  plan::GlobalSavePlan& global_;
  CatalogBuilder builder_;
  std::uint32_t file_count_ = 0;
  std::size_t item_count_ = 0;
  JointLayout layout_;
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

Result<JointLayout> lay_out_together(PlannedSave planned, std::string_view metadata_attributes) {
  CAIRN_TRY_ASSIGN(JointLayout layout, LayoutMaker(planned).make());
  layout.catalog.version = dcp::kMetadataVersion;
  CAIRN_TRY_ASSIGN(layout.catalog.extra, extra_attributes_of(metadata_attributes));
  return layout;
}

}  // namespace cairn::save_plan
