// Exceptions in the middle of an asynchronous save (bad_alloc, most likely): the save releases the arena and the
// directory at once, not after a deadline.
#include "save/async_save_operation.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <thread>

#include "save/testing/sample_state.h"
#include "storage/testing/scratch_directory.h"
#include "writer/thread_writer.h"

namespace cairn::checkpointer {
namespace {

// A writer whose saves throw bad_alloc at one call.
class ThrowingWriter final : public writer::SaveWriter {
 public:
  enum class Call : std::uint8_t { kBegin, kStaged };
  explicit ThrowingWriter(Call call) : call_(call) {}
  Result<std::unique_ptr<writer::WriterSave>> start(Ended ended, Written /*written*/) override {
    CAIRN_TRY_ASSIGN(auto save, writer_.start(std::move(ended)));
    return std::unique_ptr<writer::WriterSave>(std::make_unique<Save>(std::move(save), call_));
  }

 private:
  class Save final : public writer::WriterSave {
   public:
    Save(std::unique_ptr<writer::WriterSave> save, Call call) : save_(std::move(save)), call_(call) {}
    Result<commit::SaveTicket> claim(const writer::ClaimRequest& request,
                                     const std::function<void()>& meanwhile) override {
      return save_->claim(request, meanwhile);
    }
    Result<void> begin(const writer::SaveRequest& request) override {
      if (call_ == Call::kBegin) throw std::bad_alloc();
      return save_->begin(request);
    }
    Result<void> staged() override {
      if (call_ == Call::kStaged) throw std::bad_alloc();
      return save_->staged();
    }
    void abandon(const Error& reason) override { save_->abandon(reason); }
    commit::ProgressReport progress() const override { return save_->progress(); }

   private:
    std::unique_ptr<writer::WriterSave> save_;
    Call call_;
  };

  writer::ThreadWriter writer_;
  Call call_;
};

class AsyncSaveOperations : public testing::Test {
 protected:
  using Work = std::function<void()>;

  Result<AsyncSave> save(writer::SaveWriter& writer, const std::function<Result<void>(Work)>& in_background = {}) {
    const AsyncSaveResources resources{&arenas_, &writer, &plans_, in_background};
    AsyncSaveOptions options;
    options.asynchronous_staging = static_cast<bool>(in_background);
    return AsyncSaveOperation(resources, directory_, options).run(&state_.dict());
  }

  // The pool has one arena: if the failed save had kept the arena, the next save would wait for the deadline.
  void expect_to_save_well() {
    writer::ThreadWriter writer;
    const auto saved = save(writer);
    ASSERT_TRUE(saved) << saved.error().what();
    ASSERT_TRUE(saved->write.get()) << saved->write.get().error().what();
    const std::filesystem::directory_iterator files(directory_);
    EXPECT_EQ(std::distance(begin(files), end(files)), 2);  // a data file and `.metadata`
  }

  storage::ScratchDirectory scratch_;
  std::filesystem::path directory_ = scratch_.path() / "checkpoint";
  SampleState state_{1};
  staging::ArenaPool arenas_{1};
  StagedPlans plans_;
};

TEST_F(AsyncSaveOperations, EndWhenNoThreadCanBeStarted) {
  writer::ThreadWriter writer;
  const auto saved = save(writer, [](const Work&) -> Result<void> { throw std::bad_alloc(); });
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::kUnavailable);
  expect_to_save_well();
}

TEST_F(AsyncSaveOperations, EndWhenTheWriterCannotBegin) {
  ThrowingWriter writer(ThrowingWriter::Call::kBegin);
  const auto saved = save(writer);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::kUnavailable);
  expect_to_save_well();
}

// Although staged() throws, the writer sees in the arena that all bytes have arrived.
TEST_F(AsyncSaveOperations, ContinueWhenTheWriterThrows) {
  ThrowingWriter writer(ThrowingWriter::Call::kStaged);
  std::jthread background;
  const auto saved = save(writer, [&](Work work) -> Result<void> {
    background = std::jthread(std::move(work));
    return {};
  });
  ASSERT_TRUE(saved) << saved.error().what();
  EXPECT_TRUE(saved->staging.get());
  EXPECT_TRUE(saved->write.get());
  expect_to_save_well();
}

}  // namespace
}  // namespace cairn::checkpointer
