// OneSave: a save of a file without items, step by step. For tests of the commit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "commit/metadata_commit.h"
#include "commit/metadata_in_place.h"
#include "commit/rank_files.h"
#include "commit/save_transaction.h"
#include "format/manifest/trailer.h"
#include "storage/storage.h"

namespace cairn::commit {

inline constexpr SaveId kJob{7, 7};
inline constexpr SaveId kOtherJob{8, 8};

inline SaveIdentity save_number(std::uint64_t number, SaveId job = kJob) { return {{job.high, number}, job, number}; }

inline std::vector<std::string> names_in(const storage::Storage& disk) {
  std::vector<std::string> names;
  for (const storage::ListedFile& file : disk.list().value()) names.push_back(file.name);
  return names;
}

inline bool holds(const storage::Storage& disk, const std::string& name) {
  const auto names = names_in(disk);
  return std::find(names.begin(), names.end(), name) != names.end();
}

// A data file without items: only the trailer.
inline std::string data_file_of(const SaveId& save_id) {
  manifest::TrailerIndex index;
  index.save_id = save_id;
  const auto layout = manifest::TrailerLayout::make(index, 0).value();
  std::string file(layout.file_bytes(), '\0');
  const std::vector<std::uint32_t> checksums(layout.checksum_count());
  layout.render(checksums, std::as_writable_bytes(std::span(file)));
  return file;
}

inline std::uint32_t checksum_of_trailer(const std::string& data_file) {
  return manifest::read_trailer_footer(MemorySource(std::as_bytes(std::span(data_file)))).value().value().checksum;
}

// A save of one file, up to the commit.
class OneSave {
 public:
  OneSave(storage::Storage& disk, const SaveIdentity& identity, const ClaimOptions& options = {})
      : transaction_(claim_checkpoint(disk, identity, options).value()),
        files_(std::in_place, disk, identity),
        name_(data_file_name(transaction_->ticket(), options.alone_as_rank.value_or(0), 0)) {
    transaction_->expect({name_});
    const std::string data = data_file_of(identity.save_id);
    recorded_ = {name_, data.size(), checksum_of_trailer(data)};
    EXPECT_TRUE(disk.create_whole(files_->private_name(name_).value(), data, Durability::kDurable));
  }

  const std::string& name() const { return name_; }
  Result<void> publish() { return files_->publish({name_}, Durability::kDurable); }
  Result<CommitReport> commit() {
    files_->hand_over();
    manifest::CommitRecord record;
    record.files.push_back(recorded_);
    return transaction_->commit("pickle", record, Durability::kDurable);
  }
  void withdraw() {
    files_.reset();
    transaction_.reset();
  }

 private:
  std::unique_ptr<SaveTransaction> transaction_;
  std::optional<RankFiles> files_;
  std::string name_;
  manifest::CommitRecord::File recorded_;
};

inline void commit_one(storage::Storage& disk, const SaveIdentity& identity, const ClaimOptions& options = {}) {
  OneSave save(disk, identity, options);
  ASSERT_TRUE(save.publish());
  const auto committed = save.commit();
  ASSERT_TRUE(committed) << committed.error().what();
  EXPECT_TRUE(committed->warnings.empty());
}

}  // namespace cairn::commit
