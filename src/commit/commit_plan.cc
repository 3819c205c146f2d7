#include "commit/commit_plan.h"

#include <cassert>
#include <numeric>
#include <utility>

namespace cairn::commit {
namespace {

using manifest::RecordedPlan;

[[maybe_unused]] std::uint64_t file_count_of(const std::vector<RecordedPlan::Rank>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RecordedPlan::Rank& rank) { return sum + rank.file_count; });
}

}  // namespace

CommitPlan::CommitPlan(dcp::MetadataTemplate metadata, std::vector<RecordedPlan::Rank> ranks)
    : metadata_(std::move(metadata)), ranks_(std::move(ranks)) {
  assert(file_count_of(ranks_) == metadata_.file_count());
}

std::vector<std::vector<std::string>> CommitPlan::files(const SaveTicket& ticket, const RankPlace& place) const {
  std::vector<std::vector<std::string>> files;
  files.reserve(ranks_.size());
  std::uint32_t rank = place.count == 1 ? place.rank : 0;  // a rank that saves alone may have any number
  for (const RecordedPlan::Rank& planned : ranks_) {
    std::vector<std::string>& of_rank = files.emplace_back();
    for (std::uint32_t number = 0; number < planned.file_count; ++number) {
      of_rank.push_back(data_file_name(ticket, rank, number));
    }
    ++rank;
  }
  return files;
}

std::string CommitPlan::render(const SaveTicket& ticket, std::string_view checkpoint_id,
                               const std::vector<std::vector<std::string>>& files) const {
  std::vector<std::string> names;
  names.reserve(metadata_.file_count());
  for (const auto& of_rank : files) names.insert(names.end(), of_rank.begin(), of_rank.end());
  return metadata_.render(uuid_text(ticket.identity.save_id), checkpoint_id, names);
}

std::string CommitPlan::pickle(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) const {
  return render(ticket, checkpoint_id, files(ticket, place));
}

CommitRequest CommitPlan::commit_request(const SaveTicket& ticket, const RankPlace& place,
                                         std::string_view checkpoint_id) const {
  CommitRequest commit_request{{}, files(ticket, place), {}};
  if (place.count > 1) commit_request.plan = {ranks_};
  commit_request.pickle = render(ticket, checkpoint_id, commit_request.files);
  return commit_request;
}

void CommitPlan::append_to(std::string& out) const {
  metadata_.append_to(out);
  manifest::append_recorded_plan(out, {ranks_});
}

Result<CommitPlan> CommitPlan::read(manifest::CodedReader& reader) {
  CAIRN_TRY_ASSIGN(dcp::MetadataTemplate metadata, dcp::MetadataTemplate::read(reader));
  CAIRN_TRY_ASSIGN(RecordedPlan plan, manifest::read_recorded_plan(reader, metadata.file_count()));
  return CommitPlan(std::move(metadata), std::move(plan.ranks));
}

}  // namespace cairn::commit
