#include "async_save.h"

#include <utility>

namespace cairn::python {
namespace {

constexpr std::chrono::milliseconds kPollInterval{20};

}  // namespace

PythonAsyncSave::PythonAsyncSave(nb::object kept, std::chrono::milliseconds deadline)
    : kept_(std::move(kept)), deadline_(deadline) {
  if (kept_.is_valid()) question_ = std::make_shared<Question>();
}

PythonAsyncSave::~PythonAsyncSave() {
  if (!kept_.is_valid() || !save_) return;
  confirm(Error(ErrorCode::kCancelled, "the save was dropped before its bytes were staged"));
  const nb::gil_scoped_release released;
  save_->staging.wait();
}

std::function<Result<void>()> PythonAsyncSave::confirmation() const {
  if (!question_) return {};
  return [question = question_, deadline = deadline_]() -> Result<void> {
    std::unique_lock lock(question->mutex);
    question->asked = true;
    question->changed.notify_all();
    if (question->changed.wait_for(lock, deadline, [&] { return question->answer.has_value(); })) {
      return *question->answer;
    }
    return Error(ErrorCode::kUnavailable, "no confirm() from Python within deadline_seconds after the copy")
        .expected("an answer within " + std::to_string(deadline.count()) + " ms");
  };
}

bool PythonAsyncSave::is_staged_within(std::chrono::milliseconds timeout) const {
  return save_->staging.wait_for(timeout) == std::future_status::ready;
}

bool PythonAsyncSave::wait_copied(std::chrono::milliseconds timeout) const {
  if (!question_) return true;
  const auto until = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(question_->mutex);
  while (!question_->asked) {
    question_->changed.wait_for(lock, kPollInterval);
    if (question_->asked || is_staged_within(std::chrono::milliseconds(0))) break;
    if (std::chrono::steady_clock::now() >= until) return false;
  }
  return true;
}

void PythonAsyncSave::confirm(Result<void> answer) {
  if (!question_) return;
  const std::lock_guard lock(question_->mutex);
  if (!question_->answer) question_->answer = std::move(answer);
  question_->changed.notify_all();
}

void PythonAsyncSave::leave() {
  nb::set_leak_warnings(false);
  (void)kept_.release();
}

}  // namespace cairn::python
