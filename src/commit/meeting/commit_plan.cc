#include "commit/meeting/commit_plan.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "format/manifest/notes.h"

namespace cairn::commit {
namespace {

using manifest::RecordedPlan;
using save_plan::SharedPlans;

std::uint64_t file_count_of(const std::vector<RecordedPlan::Rank>& ranks) {
  return std::accumulate(ranks.begin(), ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RecordedPlan::Rank& rank) { return sum + rank.file_count; });
}

Result<dcp::MetadataTemplate> make_template(SharedPlans plans, std::string_view metadata_attributes,
                                            const std::vector<RecordedPlan::Rank>& ranks) {
  CAIRN_TRY_ASSIGN(save_plan::JointLayout layout, save_plan::lay_out_shared(std::move(plans), metadata_attributes));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (layout.ranks[rank].file_count == ranks[rank].file_count) continue;
    return Error(ErrorCode::kInternal, "the joint plan has another number of files of the rank")
        .rank(static_cast<std::int64_t>(rank))
        .expected(std::to_string(ranks[rank].file_count))
        .actual(std::to_string(layout.ranks[rank].file_count));
  }
  layout.ranks.clear();
  return dcp::MetadataTemplate::make(layout.catalog);
}

}  // namespace

// The ranks, and the template or the plans from which it is made.
class CommitPlan::Metadata {
 public:
  Metadata(dcp::MetadataTemplate made, std::vector<RecordedPlan::Rank> ranks)
      : ranks_(std::move(ranks)), template_(std::move(made)) {
    assert(file_count_of(ranks_) == template_->file_count());
  }
  Metadata(SharedPlans plans, std::string attributes, std::vector<RecordedPlan::Rank> ranks)
      : ranks_(std::move(ranks)), plans_(std::move(plans)), attributes_(std::move(attributes)) {}

  const std::vector<RecordedPlan::Rank>& ranks() const { return ranks_; }

  std::vector<std::vector<std::string>> files(const SaveTicket& ticket, const RankPlace& place) const {
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

  Result<std::string> render(const SaveTicket& ticket, const RankPlace& place, std::string_view checkpoint_id) {
    CAIRN_TRY_ASSIGN(const dcp::MetadataTemplate* const metadata, made());
    std::vector<std::string> names;
    names.reserve(metadata->file_count());
    for (auto& of_rank : files(ticket, place)) std::ranges::move(of_rank, std::back_inserter(names));
    return metadata->render(uuid_text(ticket.identity.save_id), checkpoint_id, names);
  }

  void append_to(std::string& out) {
    const std::lock_guard lock(mutex_);
    out.push_back(template_ ? 1 : 0);
    if (template_) return template_->append_to(out);
    manifest::append_text(out, attributes_);
    manifest::append_texts(out, plans_.local_plans);
    manifest::append_varint(out, plans_.shares.size());
    for (const save_plan::CommonShare& share : plans_.shares) save_plan::append_common_share(out, share);
  }

 private:
  // The template, which stays as it is from then on.
  Result<const dcp::MetadataTemplate*> made() {
    const std::lock_guard lock(mutex_);
    if (template_) return &*template_;
    CAIRN_TRY_ASSIGN(template_, make_template(plans_, attributes_, ranks_));  // of a copy: the next save may try again
    plans_ = SharedPlans();
    return &*template_;
  }

  const std::vector<RecordedPlan::Rank> ranks_;
  std::mutex mutex_;
  std::optional<dcp::MetadataTemplate> template_;
  SharedPlans plans_;  // empty once the template is made
  const std::string attributes_;
};

CommitPlan::CommitPlan(dcp::MetadataTemplate metadata, std::vector<RecordedPlan::Rank> ranks)
    : metadata_(std::make_shared<Metadata>(std::move(metadata), std::move(ranks))) {}

CommitPlan::CommitPlan(SharedPlans plans, std::string metadata_attributes, std::vector<RecordedPlan::Rank> ranks)
    : metadata_(std::make_shared<Metadata>(std::move(plans), std::move(metadata_attributes), std::move(ranks))) {}

Result<std::string> CommitPlan::pickle(const SaveTicket& ticket, const RankPlace& place,
                                       std::string_view checkpoint_id) const {
  return metadata_->render(ticket, place, checkpoint_id);
}

CommitRequest CommitPlan::commit_request(const SaveTicket& ticket, const RankPlace& place,
                                         std::string_view checkpoint_id, std::string_view notes) const {
  CommitRequest request;
  request.files = metadata_->files(ticket, place);
  if (place.count > 1) request.plan = {metadata_->ranks()};
  request.render = [metadata = metadata_, ticket, place, id = std::string(checkpoint_id),
                    section = manifest::encode_notes(notes)]() -> Result<std::string> {
    CAIRN_TRY_ASSIGN(std::string front, metadata->render(ticket, place, id));
    front += section;
    return front;
  };
  return request;
}

// A byte: 1 if the template follows; 0 if the extra attributes, the local plans, and the number of shares and the
// shares follow. Then the number of files and the ranks.
void CommitPlan::append_to(std::string& out) const {
  metadata_->append_to(out);
  manifest::append_varint(out, file_count_of(metadata_->ranks()));
  manifest::append_recorded_plan(out, {metadata_->ranks()});
}

Result<CommitPlan> CommitPlan::read(manifest::CodedReader& reader) {
  std::optional<dcp::MetadataTemplate> metadata;
  SharedPlans plans;
  std::string attributes;
  CAIRN_TRY_ASSIGN(const std::uint8_t is_made, reader.byte());
  if (is_made > 1) return reader.damaged("neither a template nor local plans");
  if (is_made == 1) {
    CAIRN_TRY_ASSIGN(metadata, dcp::MetadataTemplate::read(reader));
  } else {
    CAIRN_TRY_ASSIGN(attributes, reader.counted_text());
    CAIRN_TRY_ASSIGN(plans.local_plans, reader.counted_texts());
    CAIRN_TRY_ASSIGN(const std::uint64_t shares, reader.count());
    if (shares != 0 && shares != plans.local_plans.size()) return reader.damaged("shares of other ranks");
    for (std::uint64_t i = 0; i < shares; ++i) {
      CAIRN_TRY_ASSIGN(save_plan::CommonShare share, save_plan::read_common_share(reader));
      plans.shares.push_back(std::move(share));
    }
  }
  CAIRN_TRY_ASSIGN(const std::uint64_t file_count, reader.varint());
  if (metadata && metadata->file_count() != file_count) return reader.damaged("a template of other files");
  CAIRN_TRY_ASSIGN(RecordedPlan plan, manifest::read_recorded_plan(reader, file_count));
  if (metadata) return CommitPlan(std::move(*metadata), std::move(plan.ranks));
  if (plan.ranks.size() != plans.local_plans.size()) return reader.damaged("local plans of other ranks");
  return CommitPlan(std::move(plans), std::move(attributes), std::move(plan.ranks));
}

}  // namespace cairn::commit
