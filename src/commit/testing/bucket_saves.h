// BucketSaves: saves of several processes into one checkpoint of an object store in memory. For tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "commit/testing/one_save.h"
#include "commit/testing/store_client.h"
#include "storage/bucket/bucket_storage.h"
#include "storage/testing/memory_object_store.h"

namespace cairn::commit {

inline constexpr std::string_view kPrefix = "run/step_7";
// Longer than a lease may be silent, and longer than a write may be in doubt.
inline constexpr double kSilentSeconds = 301;
inline constexpr double kOutOfDoubt = 3601;

// The number of the save in place, if the checkpoint is whole; 0: no checkpoint; -1: a broken checkpoint; -2: a stock
// checkpoint that is whole.
inline int number_in(const storage::Storage& storage) {
  const auto now = read_metadata_in_place(storage);
  if (!now) return -1;
  if (!now->present) return 0;
  if (!now->record) return storage.open("__0_0.distcp", false) ? -2 : -1;
  for (const auto& file : now->record->files) {
    const auto opened = storage.open(file.name, false);
    if (!opened || (*opened)->size() != file.size) return -1;
    const auto footer = manifest::read_trailer_footer(**opened);
    if (!footer || !*footer || (*footer)->save_id != now->record->save_id) return -1;
  }
  return static_cast<int>(now->record->save_number);
}

// A process with its own connection. Its save is the number of the process, of the job.
struct BucketProcess {
  BucketProcess(const std::shared_ptr<storage::MemoryObjectStore>& store, const SaveIdentity& save)
      : client(std::make_shared<StoreClient>(store)), disk(client, "s3://b", std::string(kPrefix)), identity(save) {}

  // Claims, writes and commits; nullopt if the process has died.
  Result<CommitReport> save(const ClaimOptions& options = {}) {
    const Result<CommitReport> report = claim_and_commit(options);
    transaction.reset();
    files.reset();
    return report;
  }
  Result<void> claim(const ClaimOptions& options = {}) {
    CAIRN_TRY_ASSIGN(transaction, claim_checkpoint(disk, identity, options));
    name = data_file_name(transaction->ticket(), options.alone_as_rank.value_or(0), 0);
    transaction->expect({name});
    return {};
  }
  Result<void> write() {
    files.emplace(disk, identity);
    CAIRN_TRY_ASSIGN(const std::string private_name, files->private_name(name));
    CAIRN_TRY(disk.create_whole(private_name, data_file_of(identity.save_id), Durability::kDurable));
    return files->publish({name}, Durability::kDurable);
  }
  Result<CommitReport> commit() {
    files->hand_over();
    const std::string data = data_file_of(identity.save_id);
    manifest::CommitRecord record;
    record.files.push_back({name, data.size(), checksum_of_trailer(data)});
    return transaction->commit("pickle", record, Durability::kDurable);
  }
  Result<CommitReport> claim_and_commit(const ClaimOptions& options = {}) {
    CAIRN_TRY(claim(options));
    CAIRN_TRY(write());
    return commit();
  }
  void end() {
    files.reset();
    transaction.reset();
  }

  std::shared_ptr<StoreClient> client;  // shared with the storage
  storage::BucketStorage disk;
  SaveIdentity identity;
  std::unique_ptr<SaveTransaction> transaction;
  std::optional<RankFiles> files;
  std::string name;
};

inline std::string keys_of(const std::map<std::string, std::string>& contents) {
  std::string keys;
  for (const auto& [key, bytes] : contents) keys += "\n  " + key;
  return keys;
}

class BucketSaves : public testing::Test {
 protected:
  BucketProcess process(std::uint64_t number, SaveId job = kJob) const { return {store_, save_number(number, job)}; }
  void save_well(std::uint64_t number, SaveId job = kJob) const {
    BucketProcess saver = process(number, job);
    const Result<CommitReport> report = saver.save();
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_TRUE(report->warnings.empty()) << report->warnings.front();
  }
  // The checkpoint of the save is in place, and the store holds no other object.
  void expect_only(int number, std::size_t files = 1) const {
    EXPECT_EQ(number_in(disk_), number);
    const auto contents = store_->contents();
    EXPECT_EQ(contents.size(), files + 1) << keys_of(contents);
    EXPECT_EQ(store_->upload_count(), 0u);
  }

  const std::shared_ptr<storage::MemoryObjectStore> store_ = std::make_shared<storage::MemoryObjectStore>();
  storage::BucketStorage disk_{store_, "s3://b", std::string(kPrefix)};
};

}  // namespace cairn::commit
