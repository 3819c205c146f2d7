#include "save_line.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

using Phase = SavePhase;

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;

SaveInFlightWriter writer(std::uint32_t rank, const SaveProgress& progress) {
  SaveInFlightWriter writer;
  writer.rank = rank;
  writer.state = SaveInFlightWriter::State::kAlive;
  writer.progress = progress;
  return writer;
}

SaveInFlight save_of(std::vector<SaveInFlightWriter> writers) {
  SaveInFlight save;
  save.directory = "run/step-4";
  save.writers = std::move(writers);
  return save;
}

TEST(SaveLine, SumsTheBytesOfTheWriters) {
  const SaveInFlight save =
      save_of({writer(0, {Phase::kSyncing, 2 * kGiB, 2 * kGiB}), writer(1, {Phase::kWriting, kGiB, 4 * kGiB})});
  const WatchedSave watched(save, {});
  EXPECT_EQ(watched.line(100), "step-4 writing [###############...............]  50%  3.0 GiB of 6.0 GiB  2 writers");
}

TEST(SaveLine, HasTheRateBetweenTheLooks) {
  const WatchedSave::Clock::time_point start{};
  WatchedSave watched(save_of({writer(0, {Phase::kWriting, kGiB, 4 * kGiB})}), start);
  watched.look(save_of({writer(0, {Phase::kWriting, 2 * kGiB, 4 * kGiB})}), start + std::chrono::seconds(4));
  watched.look(save_of({writer(0, {Phase::kWriting, 2 * kGiB, 4 * kGiB})}), start + std::chrono::seconds(6));
  EXPECT_NE(watched.line(100).find("50%  2.0 GiB of 4.0 GiB  256.0 MiB/s, 0:08 left  1 writer"), std::string::npos);
  EXPECT_DOUBLE_EQ(watched.seconds(), 6);
}

TEST(SaveLine, NamesTheLongestCall) {
  SaveInFlight save = save_of({writer(0, {Phase::kWriting, 1, 2}), writer(7, {Phase::kWriting, 1, 2})});
  save.writers[0].pending_call = "writing 'a'";
  save.writers[0].seconds_without_progress = 2;
  save.writers[1].pending_call = "syncing 'b\n'";
  save.writers[1].seconds_without_progress = 3;
  EXPECT_TRUE(WatchedSave(save, {}).line(100).ends_with("  2 writers  rank 7: syncing 'b\\n' for 3.0 s"));
  save.writers[1].seconds_without_progress = 0.5;
  save.writers[0].seconds_without_progress = 0.5;
  EXPECT_TRUE(WatchedSave(save, {}).line(100).ends_with("  2 writers"));
}

TEST(SaveLine, NamesASilentAndADeadWriter) {
  SaveInFlight save = save_of({writer(0, {Phase::kWriting, 1, 2}), writer(7, {Phase::kWriting, 1, 2})});
  save.writers[0].state = SaveInFlightWriter::State::kDead;
  save.writers[1].seconds_since_sign = 61;
  EXPECT_TRUE(WatchedSave(save, {}).line(100).ends_with("  2 writers, 1 dead, rank 7 silent for 61 s"));
}

TEST(SaveLine, NamesTheNextStepOfADeadSave) {
  SaveInFlight save = save_of({});
  save.is_leftover = true;
  EXPECT_EQ(WatchedSave(save, {}).line(100), "step-4  died: 'cairn clean run/step-4' removes its files");
}

}  // namespace
}  // namespace cairn::cli
