#include "save/save_layout.h"

#include <utility>

namespace cairn::checkpointer {

Result<SaveLayout> lay_out_save(save_plan::PlannedSave planned, const commit::SaveTicket& ticket,
                                std::uint32_t first_rank, std::string checkpoint_id,
                                std::string_view metadata_attributes) {
  CAIRN_TRY_ASSIGN(save_plan::JointLayout joint, save_plan::lay_out_together(std::move(planned), metadata_attributes));
  SaveLayout layout;
  layout.catalog = std::move(joint.catalog);
  const auto file_count = static_cast<std::uint32_t>(layout.catalog.files.size());
  std::uint32_t file = 0;
  std::uint32_t number = first_rank;
  for (save_plan::RankLayout& rank : joint.ranks) {
    for (std::uint32_t i = 0; i < rank.file_count; ++i) {
      layout.catalog.files[file++] = commit::data_file_name(ticket, number, i);
    }
    layout.file_counts.push_back(rank.file_count);
    SaveAssignment& assignment = layout.assignments.emplace_back();
    assignment.ticket = ticket;
    assignment.file_count = file_count;
    assignment.items = std::move(rank.items);
    ++number;
  }
  layout.catalog.save_id = uuid_text(ticket.identity.save_id);
  layout.catalog.checkpoint_id = std::move(checkpoint_id);
  return layout;
}

}  // namespace cairn::checkpointer
