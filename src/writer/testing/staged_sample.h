// StagedSample: a save of a rank as a stager hands the save to a writer, and checks of the resulting checkpoint. For
// the tests of this folder.
#pragma once

#include <cairn/state_dict.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "commit/metadata_in_place.h"
#include "commit/save_ticket.h"
#include "core/checked.h"
#include "data_file/file_image.h"
#include "format/manifest/trailer.h"
#include "storage/posix/posix_storage.h"
#include "writer/save_writer.h"

namespace cairn::writer {

inline constexpr SaveId kSampleJob{7, 7};
inline constexpr std::chrono::seconds kGenerous{120};

class StagedSample {
 public:
  // The `number`-th save of its job, by `place.count` ranks: a tensor whose elements all equal `number`. The
  // `.metadata` names a value with a key of `key_bytes` bytes, if there are any.
  explicit StagedSample(std::uint64_t number, std::size_t elements = 100'000, commit::RankPlace place = {},
                        std::size_t key_bytes = 0)
      : number_(number), elements_(elements), place_(place), arena_(staging::Arena::make_shared().value()) {
    auto layout = std::make_shared<StagedLayout>();
    layout->id = 1000 * number + place.rank;
    const data_file::LaidOutFile file = lay_out(place.rank);
    layout->arena_bytes = align_up(file.file_bytes, 4096);
    layout->files.push_back({0, file.index});
    if (place.is_coordinator()) layout->commit_plan = commit_plan(place.count, key_bytes);
    layout_ = std::move(layout);
  }

  commit::SaveIdentity identity() const { return {{kSampleJob.high, number_}, kSampleJob, number_}; }
  ClaimRequest claim_request(const std::filesystem::path& directory) const {
    return {directory, identity(), place_.rank};
  }

  SaveRequest request(const std::filesystem::path& directory, const commit::SaveTicket& ticket) {
    EXPECT_TRUE(arena_->fit(layout_->arena_bytes));
    SaveRequest request;
    request.directory = directory;
    request.ticket = ticket;
    request.place = place_;
    request.arena = arena_;
    request.layout = layout_;
    request.names = {commit::data_file_name(ticket, place_.rank, 0)};
    request.deadlines = {kGenerous, kGenerous, kGenerous};
    request.checkpoint_id = directory.string();
    return request;
  }

  // Acts as the trainer's threads between begin() and staged().
  void stage() {
    const manifest::ItemRange& range = layout_->files.front().index.items.front().range;
    const auto value = static_cast<float>(number_);
    for (std::uint64_t at = 0; at < range.payload_length; at += sizeof value) {
      std::memcpy(arena_->bytes().data() + range.payload_offset + at, &value, sizeof value);
    }
  }

  const std::shared_ptr<staging::Arena>& arena() const { return arena_; }

 private:
  // A file for each rank.
  static std::shared_ptr<const commit::CommitPlan> commit_plan(std::uint32_t rank_count, std::size_t key_bytes) {
    Catalog catalog;
    if (key_bytes != 0) {
      catalog.values.push_back({std::string(key_bytes, 'k'), {}});
      catalog.keys.push_back({false, 0});
    }
    for (std::uint32_t rank = 0; rank < rank_count; ++rank) catalog.files.push_back("of rank " + std::to_string(rank));
    return std::make_shared<const commit::CommitPlan>(dcp::MetadataTemplate::make(catalog).value(),
                                                      std::vector<manifest::RecordedPlan::Rank>(rank_count, {1, {}}));
  }

  data_file::LaidOutFile lay_out(std::uint32_t rank) const {
    StateDict state;
    const Extents sizes{static_cast<std::int64_t>(elements_)};
    const float nowhere = 0;  // the layout reads no element
    EXPECT_TRUE(
        state.add_tensor(Path{"t", std::to_string(rank)}, TensorView::contiguous(&nowhere, DType::kFloat32, sizes)));
    data_file::ItemSource source;
    source.entry = &state.entries().front();
    source.tensor = std::get_if<TensorEntry>(&source.entry->content);
    return data_file::FileImage::lay_out({{}, rank, 0, place_.count}, std::array{source}).value();
  }

  std::uint64_t number_;
  std::size_t elements_;
  commit::RankPlace place_;
  std::shared_ptr<staging::Arena> arena_;
  std::shared_ptr<const StagedLayout> layout_;
};

// The end of a save, and a wait for the end.
class End {
 public:
  SaveWriter::Ended callback() {
    return [promise = promise_](Result<commit::RankSaveReport> result) { promise->set_value(std::move(result)); };
  }
  bool is_here() { return future_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  Result<commit::RankSaveReport> wait() {
    if (future_.wait_for(kGenerous) != std::future_status::ready) return Error(ErrorCode::kInternal, "it never ends");
    return future_.get();
  }

 private:
  using Promise = std::promise<Result<commit::RankSaveReport>>;
  std::shared_ptr<Promise> promise_ = std::make_shared<Promise>();  // shared with the callback
  std::future<Result<commit::RankSaveReport>> future_ = promise_->get_future();
};

// Claims and begins.
inline Result<void> begin_save(WriterSave& save, StagedSample& sample, const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(const commit::SaveTicket ticket, save.claim(sample.claim_request(directory), {}));
  return save.begin(sample.request(directory, ticket));
}

// A whole save.
inline Result<commit::RankSaveReport> save_now(SaveWriter& writer, StagedSample& sample,
                                               const std::filesystem::path& directory) {
  End end;
  CAIRN_TRY_ASSIGN(const auto save, writer.start(end.callback()));
  CAIRN_TRY(begin_save(*save, sample, directory));
  sample.stage();
  CAIRN_TRY(save->staged());
  return end.wait();
}

inline std::vector<std::string> names_in(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The number of the save in place, after reading every element; 0: no checkpoint; -1: a broken checkpoint, or
// unexpected files.
inline int checkpoint_in(const std::filesystem::path& directory) {
  const auto storage = storage::PosixStorage::open_directory(directory).value();
  const auto now = commit::read_metadata_in_place(*storage).value();
  if (!now.present) return names_in(directory).empty() ? 0 : -1;
  if (!now.record || names_in(directory).size() != 1 + now.record->files.size()) return -1;
  for (const auto& file : now.record->files) {
    const auto opened = storage->open(file.name, false).value();
    const auto trailer = manifest::read_trailer(*opened).value();
    if (opened->size() != file.size || !trailer || trailer->save_id() != now.record->save_id) return -1;
    std::vector<float> elements(trailer->range(0).payload_length / sizeof(float));
    EXPECT_TRUE(opened->read_at(trailer->range(0).payload_offset, std::as_writable_bytes(std::span(elements))));
    const auto wrong = [&](float element) { return element != static_cast<float>(now.record->save_number); };
    if (elements.empty() || std::any_of(elements.begin(), elements.end(), wrong)) return -1;
  }
  return static_cast<int>(now.record->save_number);
}

}  // namespace cairn::writer
