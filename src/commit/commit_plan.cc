#include "commit/commit_plan.h"

#include <cassert>
#include <limits>
#include <numeric>
#include <utility>

namespace cairn::commit {
namespace {

std::uint64_t sum_of(const std::vector<std::uint32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

CommitPlan::CommitPlan(dcp::MetadataTemplate metadata, std::vector<std::uint32_t> file_counts)
    : metadata_(std::move(metadata)), file_counts_(std::move(file_counts)) {
  assert(sum_of(file_counts_) == metadata_.file_count());
}

std::vector<std::vector<std::string>> CommitPlan::files(const SaveTicket& ticket, const RankPlace& place) const {
  std::vector<std::vector<std::string>> files;
  files.reserve(file_counts_.size());
  std::uint32_t rank = place.count == 1 ? place.rank : 0;  // a rank that saves alone may have any number
  for (const std::uint32_t count : file_counts_) {
    std::vector<std::string>& of_rank = files.emplace_back();
    for (std::uint32_t number = 0; number < count; ++number) {
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
  CommitRequest commit_request{{}, files(ticket, place)};
  commit_request.pickle = render(ticket, checkpoint_id, commit_request.files);
  return commit_request;
}

void CommitPlan::append_to(std::string& out) const {
  metadata_.append_to(out);
  manifest::append_varint(out, file_counts_.size());
  for (const std::uint32_t count : file_counts_) manifest::append_varint(out, count);
}

Result<CommitPlan> CommitPlan::read(manifest::CodedReader& reader) {
  CAIRN_TRY_ASSIGN(dcp::MetadataTemplate metadata, dcp::MetadataTemplate::read(reader));
  CAIRN_TRY_ASSIGN(const std::uint64_t rank_count, reader.count());
  std::vector<std::uint32_t> file_counts;
  for (std::uint64_t rank = 0; rank < rank_count; ++rank) {
    CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.varint());
    if (count > std::numeric_limits<std::uint32_t>::max()) return reader.damaged("a rank with more than 2^32 files");
    file_counts.push_back(static_cast<std::uint32_t>(count));
  }
  if (sum_of(file_counts) != metadata.file_count())
    return reader.damaged("numbers of files that differ from the metadata");
  return CommitPlan(std::move(metadata), std::move(file_counts));
}

}  // namespace cairn::commit
