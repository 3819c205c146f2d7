#include "commit/meeting/save_member.h"

#include <utility>

namespace cairn::commit {

SaveMember::SaveMember(std::unique_ptr<storage::Storage> taken_storage, const SaveTicket& given_ticket,
                       Operations watched, std::string given_name)
    : storage(std::move(taken_storage)),
      operations(std::move(watched)),
      ticket(given_ticket),
      directory_name(std::move(given_name)),
      marks(*storage, ticket.identity.save_id),
      files(*storage, ticket.identity, RankFiles::FolderMaker::kCoordinator) {
  files.hand_over();
}

Lease::Progress SaveMember::report() const {
  return [this] { return progress.report(operations.get()); };
}

// Steps 3 and 4.
Result<std::vector<std::uint32_t>> SaveMember::write(std::vector<data_file::ImageFile> images,
                                                     const data_file::WriteOptions& options) {
  progress.phase = ProgressTracker::Phase::kWriting;
  std::vector<manifest::CommitRecord::File> report;
  for (data_file::ImageFile& image : images) {
    names.push_back(image.name);
    report.push_back({"", image.image->file_bytes(), 0});
    CAIRN_TRY_ASSIGN(image.name, files.private_name(image.name));
  }
  data_file::WriteOptions counted = options;
  counted.bytes_written = &progress.bytes_written;
  CAIRN_TRY_ASSIGN(std::vector<std::uint32_t> trailers, data_file::write_images(*storage, images, counted));
  progress.phase = ProgressTracker::Phase::kPublishing;
  // A follower agrees to the commit with its last file in place. The coordinator's decisive step is its own commit.
  if (!place.is_coordinator() && fence != nullptr) CAIRN_TRY(fence->begin_decisive_step());
  CAIRN_TRY(files.publish(names, options.durability));
  if (!storage->has_rename() && !place.is_coordinator() && !names.empty()) {
    for (std::size_t i = 0; i < report.size(); ++i) report[i].trailer_checksum = trailers[i];
    CAIRN_TRY(marks.write_files(place.rank, report));
  }
  if (written) written(progress.bytes_written);
  return trailers;
}

void SaveMember::remove_private_files() {
  for (const std::string& name : names) (void)storage->remove(storage->has_rename() ? marks.path_of(name) : name);
}

Error SaveMember::of_this_rank(Error error) const {
  if (place.count == 1 || !error.causes().empty()) return error;
  return Error::of_ranks({std::move(error).rank(place.rank)});
}

}  // namespace cairn::commit
