// Notes of checkpoints: saved in every way, read back, damaged, replaced, and copied by conversions.
#include <cairn/async_checkpointer.h>
#include <cairn/cairn.h>
#include <cairn/collectives.h>
#include <cairn/convert.h>
#include <gtest/gtest.h>
#include <sanitizers.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "coordination/testing/as_ranks.h"
#include "core/checksum.h"
#include "format/dcp/metadata_decoder.h"
#include "format/manifest/commit_record.h"
#include "format/manifest/notes.h"
#include "storage/testing/scratch_directory.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kKeysOfNoted = 5000;  // for a compact catalog

std::string notes_of_step(int step) {
  return "{\"metrics\": {\"loss\": " + std::to_string(step) + ".5}, \"who\": \"é\"}";
}

class NotedState {
 public:
  explicit NotedState(int step, std::size_t keys = 3) : elements_(keys, static_cast<float>(step)) {
    for (std::size_t i = 0; i < keys; ++i) {
      EXPECT_TRUE(state_.add_tensor("w" + std::to_string(i),
                                    TensorView::contiguous(elements_.data() + i, DType::kFloat32, {1})));
    }
  }
  StateDict& dict() { return state_; }
  float element() const { return elements_[0]; }

 private:
  std::vector<float> elements_;
  StateDict state_;
};

class CheckpointNotes : public testing::Test {
 protected:
  void save_step(int step, const std::string& notes, std::size_t keys = 3) {
    NotedState state(step, keys);
    SaveOptions options;
    options.notes = notes;
    const auto report = save(directory_, state.dict(), options);
    ASSERT_TRUE(report) << report.error().what();
    ASSERT_TRUE(report->catalog);
    EXPECT_EQ(report->catalog->keys.size(), keys);
  }

  std::string notes_in(const fs::path& directory) const {
    std::string found;
    for (const auto& opened : {open(directory), open_to_load(directory), open_to_inspect(directory)}) {
      EXPECT_TRUE(opened) << opened.error().what();
      const Result<std::string> notes = opened->notes();
      EXPECT_TRUE(notes) << notes.error().what();
      found = notes ? *notes : "damaged";
    }
    return found;
  }
  std::string notes() const { return notes_in(directory_); }

  std::string read_metadata() const {
    std::ifstream file(directory_ / ".metadata", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write_metadata(const std::string& bytes) const {
    std::ofstream(directory_ / ".metadata", std::ios::binary) << bytes;
  }
  static std::uint64_t front_bytes_of(const std::string& metadata) {
    return (*manifest::read_only_commit_record(MemorySource(std::as_bytes(std::span(metadata)))))->front_bytes;
  }

  storage::ScratchDirectory scratch_;
  fs::path directory_ = scratch_.path() / "checkpoint";
};

TEST_F(CheckpointNotes, ASaveReplacesTheNotes) {
  save_step(1, notes_of_step(1));
  EXPECT_EQ(notes(), notes_of_step(1));
  const auto metrics = open(directory_)->metrics();
  ASSERT_TRUE(metrics) << metrics.error().what();
  EXPECT_EQ(*metrics, (std::vector<std::pair<std::string, double>>{{"loss", 1.5}}));
  save_step(2, notes_of_step(2));
  EXPECT_EQ(notes(), notes_of_step(2));
  EXPECT_TRUE(verify(directory_)->problems.empty());
  save_step(3, "");
  EXPECT_EQ(notes(), "");
  EXPECT_TRUE(open(directory_)->metrics()->empty());
}

// A save without notes writes what versions of Cairn before the notes wrote: the pickle, or the compact catalog, then
// the record of the old version.
TEST_F(CheckpointNotes, LeaveNoByteInASaveWithoutNotes) {
  save_step(1, "");
  const std::string metadata = read_metadata();
  const auto decoded = dcp::decode_metadata(std::as_bytes(std::span(metadata)));
  ASSERT_TRUE(decoded) << decoded.error().what();
  EXPECT_EQ(front_bytes_of(metadata), decoded->pickle_bytes);
  constexpr std::size_t kVersionFromEnd = 12;
  EXPECT_EQ(metadata[metadata.size() - kVersionFromEnd], 2);
  save_step(1, "{}");
  const std::string noted = read_metadata();
  EXPECT_EQ(noted[noted.size() - kVersionFromEnd], 2);
  const auto pickle = dcp::decode_metadata(std::as_bytes(std::span(noted)));
  ASSERT_TRUE(pickle) << pickle.error().what();
  EXPECT_EQ(front_bytes_of(noted), pickle->pickle_bytes + manifest::encode_notes("{}").size());
}

TEST_F(CheckpointNotes, StandBesideACompactCatalog) {
  save_step(1, notes_of_step(1), kKeysOfNoted);
  EXPECT_EQ(notes(), notes_of_step(1));
  EXPECT_FALSE(open_to_inspect(directory_)->damage());
  EXPECT_TRUE(verify(directory_)->problems.empty());
  NotedState target(0, kKeysOfNoted);
  const auto report = load(directory_, target.dict());
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_TRUE(report->warnings.empty());
  EXPECT_EQ(target.element(), 1);
}

TEST_F(CheckpointNotes, InvalidTextFailsTheSave) {
  save_step(1, notes_of_step(1));
  NotedState state(2);
  for (const std::string& text : {std::string("[]"), std::string("{\"metrics\": 1}"), std::string("{\"a\": \"\xff\"}"),
                                  "{\"a\": \"" + std::string(manifest::kNotesBytesMax, 'x') + "\"}"}) {
    SaveOptions options;
    options.notes = text;
    EXPECT_EQ(save(directory_, state.dict(), options).error().code(), ErrorCode::kInvalidArgument);
    AsyncCheckpointer checkpointer;
    EXPECT_EQ(checkpointer.save(directory_, state.dict(), {.save = options}).error().code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(SaveClaim::make(directory_, options).error().code(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(notes(), notes_of_step(1));
}

TEST_F(CheckpointNotes, RefusedWithSafetensors) {
  NotedState state(1);
  SaveOptions options;
  options.safetensors.emplace();
  options.notes = "{}";
  EXPECT_EQ(save(directory_, state.dict(), options).error().code(), ErrorCode::kUnsupported);
  options.notes.clear();
  ASSERT_TRUE(save(directory_, state.dict(), options));
  EXPECT_EQ(open(directory_)->notes().value(), "");
}

TEST_F(CheckpointNotes, TakenFromTheCoordinator) {
  for (const std::size_t coordinator : {0u, 1u}) {
    for (const bool again : {false, true}) {  // a new plan, and the earlier one
      as_ranks(3, [&](std::size_t rank, Collectives& collectives) {
        NotedState state(static_cast<int>(rank));
        SaveOptions options;
        options.collectives = &collectives;
        options.coordinator_rank = coordinator;
        if (rank != 2) options.notes = notes_of_step(static_cast<int>(10 * rank) + (again ? 1 : 0));
        const auto report = save(directory_, state.dict(), options);
        EXPECT_TRUE(report) << report.error().what();
      });
      EXPECT_EQ(notes(), notes_of_step(static_cast<int>(10 * coordinator) + (again ? 1 : 0)));
    }
  }
}

TEST_F(CheckpointNotes, ErrorOnOneRankFailsAllRanks) {
  as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
    NotedState state(1);
    SaveOptions options;
    options.collectives = &collectives;
    options.notes = rank == 1 ? "no JSON" : "{}";
    const auto report = save(directory_, state.dict(), options);
    ASSERT_FALSE(report);
    EXPECT_EQ(report.error().code(), ErrorCode::kInvalidArgument) << report.error().what();
  });
  EXPECT_FALSE(fs::exists(directory_ / ".metadata"));
}

TEST_F(CheckpointNotes, RanksThatSaveAloneHaveTheirOwn) {
  for (const std::uint32_t rank : {0u, 1u}) {
    NotedState state(1);
    SaveOptions options;
    options.alone_as_rank = rank;
    options.notes = notes_of_step(static_cast<int>(rank));
    ASSERT_TRUE(save(directory_, state.dict(), options));
  }
  for (const std::uint32_t rank : {0u, 1u}) {
    EXPECT_EQ(open(directory_, metadata_name(rank))->notes().value(), notes_of_step(static_cast<int>(rank)));
  }
}

TEST_F(CheckpointNotes, TakenAtAnAsynchronousCall) {
  for (const bool process : {false, true}) {
    AsyncCheckpointerOptions how;
    if (process) how.process = CheckpointProcess::make();
    AsyncCheckpointer checkpointer(how);
    for (int step = 1; step <= 3; ++step) {
      NotedState state(step);
      AsyncSaveOptions options;
      if (step != 3) options.save.notes = notes_of_step(step);
      const auto pending = checkpointer.save(directory_, state.dict(), options);
      ASSERT_TRUE(pending) << pending.error().what();
      options.save.notes = "changed";
      ASSERT_TRUE(pending->write.get()) << pending->write.get().error().what();
      EXPECT_EQ(pending->write.get()->catalog()->keys.size(), 3u);
      EXPECT_EQ(notes(), step == 3 ? "" : notes_of_step(step));
    }
  }
}

TEST_F(CheckpointNotes, AsynchronousSaveOfTwoRanks) {
  for (const bool process : {false, true}) {
    as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
      AsyncCheckpointerOptions how;
      if (process) how.process = CheckpointProcess::make();
      AsyncCheckpointer checkpointer(how);
      NotedState state(1);
      AsyncSaveOptions options;
      options.save.collectives = &collectives;
      options.save.notes = notes_of_step(static_cast<int>(rank) + (process ? 5 : 0));
      const auto pending = checkpointer.save(directory_, state.dict(), options);
      ASSERT_TRUE(pending) << pending.error().what();
      EXPECT_TRUE(pending->write.get());
    });
    EXPECT_EQ(notes(), notes_of_step(process ? 5 : 0));
  }
}

// The next save of a job that has loaded a checkpoint takes its plan from `.metadata`.
TEST_F(CheckpointNotes, SavesGoOnWithTheLoadedPlan) {
  for (const std::size_t keys : {std::size_t{3}, kKeysOfNoted}) {
    as_ranks(2, [&](std::size_t rank, Collectives& collectives) {
      for (int step = 1; step <= 2; ++step) {
        NotedState state(step, keys);
        SaveOptions options;
        options.collectives = &collectives;
        options.notes = notes_of_step(step + static_cast<int>(rank));
        const auto report = save(directory_, state.dict(), options);
        ASSERT_TRUE(report) << report.error().what();
        NotedState target(0, keys);
        LoadOptions loading;
        loading.collectives = &collectives;
        ASSERT_TRUE(load(directory_, target.dict(), loading));
        EXPECT_EQ(target.element(), static_cast<float>(step));
      }
    });
    EXPECT_EQ(notes(), notes_of_step(2));
  }
}

TEST_F(CheckpointNotes, AnyDamageIsReported) {
  save_step(1, notes_of_step(1));
  const std::string metadata = read_metadata();
  const std::size_t front = front_bytes_of(metadata);
  const std::size_t section = manifest::encode_notes(notes_of_step(1)).size();
  for (std::size_t place = front - section; place < front; ++place) {
    std::string damaged = metadata;
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    write_metadata(damaged);
    EXPECT_EQ(open(directory_).error().code(), ErrorCode::kCorrupt) << place;
  }
}

TEST_F(CheckpointNotes, DamageLeavesTheCheckpoint) {
  save_step(1, notes_of_step(1), kKeysOfNoted);
  const std::string metadata = read_metadata();
  const std::size_t front = front_bytes_of(metadata);
  const std::size_t section = manifest::encode_notes(notes_of_step(1)).size();
  const std::array places{front - section, front - 24, front - 20, front - 14, front - 8, front - 1};
  for (std::size_t i = 0; i < places.size(); i += kSanitized ? 3 : 1) {
    const std::size_t place = places[i];
    std::string damaged = metadata;
    damaged[place] = static_cast<char>(damaged[place] ^ 1);
    write_metadata(damaged);
    NotedState target(0, kKeysOfNoted);
    const auto report = load(directory_, target.dict());
    ASSERT_TRUE(report) << report.error().what();
    EXPECT_EQ(target.element(), 1);
    for (const auto& opened : {open(directory_), open_to_inspect(directory_)}) {
      const Result<std::string> notes = opened->notes();
      ASSERT_FALSE(notes) << front - place << " bytes from the end";
      EXPECT_EQ(notes.error().code(), ErrorCode::kCorrupt);
      EXPECT_FALSE(opened->metrics());
    }
    EXPECT_FALSE(verify(directory_)->problems.empty()) << front - place;
  }
}

// True checksums are no help against a text that nobody checked.
TEST_F(CheckpointNotes, ForgedNotesAreDamage) {
  save_step(1, "");
  const std::string metadata = read_metadata();
  auto record = **manifest::read_only_commit_record(MemorySource(std::as_bytes(std::span(metadata))));
  const std::string front = metadata.substr(0, record.front_bytes) + manifest::encode_notes("not JSON");
  record.front_bytes = front.size();
  record.front_checksum = crc32(std::as_bytes(std::span(front)));
  write_metadata(front + manifest::encode_commit_record(record));
  const auto opened = open(directory_);
  ASSERT_TRUE(opened) << opened.error().what();
  EXPECT_EQ(opened->notes().error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(verify(directory_)->problems.size(), 1u);
}

TEST_F(CheckpointNotes, AConversionToDcpKeepsNotes) {
  save_step(1, notes_of_step(1));
  const fs::path copy = scratch_.path() / "copy";
  ConvertOptions options;
  options.to = CheckpointFormat::kDcp;
  const auto report = convert(directory_, copy, options);
  ASSERT_TRUE(report) << report.error().what();
  EXPECT_TRUE(report->warnings.empty());
  EXPECT_EQ(notes_in(copy), notes_of_step(1));
  EXPECT_TRUE(verify(copy)->problems.empty());
}

TEST_F(CheckpointNotes, OtherConversionsDropNotes) {
  save_step(1, notes_of_step(1));
  for (const auto& [format, name] :
       {std::pair(CheckpointFormat::kSafetensors, "model"), std::pair(CheckpointFormat::kTorchSave, "state.pt")}) {
    ConvertOptions options;
    options.to = format;
    const auto report = convert(directory_, scratch_.path() / name, options);
    ASSERT_TRUE(report) << report.error().what();
    ASSERT_EQ(report->warnings.size(), 1u);
    EXPECT_NE(report->warnings[0].find("notes"), std::string::npos) << report->warnings[0];
    EXPECT_EQ(open(scratch_.path() / name)->notes().value(), "");
  }
}

}  // namespace
}  // namespace cairn
