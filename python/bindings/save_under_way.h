// SaveUnderWay: an asynchronous save as Python follows it, and the memory that it is staged from.
//
// While bytes are being copied, the engine reads what Python objects own, without Python's lock. Those objects stay
// alive until the copying has ended, whatever becomes of the Python code that started it.
//
// 1. The copying thread has copied everything and asks whether the memory was there all the time; it waits.
// 2. Python, told by wait_copied(), looks, and answers with confirm(). Without an answer within the deadline the save
//    fails.
// 3. The writer may commit. wait_staged() tells how the staging ended, and Python calls release().
//
// An object that is destroyed before step 2 is over answers that nobody follows the save, and waits for the copying
// thread, unless leave() was called.
#pragma once

#include <cairn/async_checkpointer.h>
#include <nanobind/nanobind.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

namespace nb = nanobind;

namespace cairn::python {

class SaveUnderWay {
 public:
  // `kept` owns what is read; null if the call stages before it returns: then there are no steps 1 and 2.
  SaveUnderWay(nb::object kept, std::chrono::milliseconds deadline);
  ~SaveUnderWay();
  SaveUnderWay(const SaveUnderWay&) = delete;
  SaveUnderWay& operator=(const SaveUnderWay&) = delete;

  // For AsyncSaveOptions::confirm_sources; empty if there is nothing to confirm.
  std::function<Result<void>()> confirmation() const;
  void began(AsyncSave save) { save_ = std::move(save); }
  const AsyncSave& save() const { return *save_; }

  // Whether step 1 is reached, or the staging has ended without it. Without Python's lock.
  bool wait_copied(std::chrono::milliseconds timeout) const;
  // Step 2. Only the first answer counts.
  void confirm(Result<void> answer);
  // Once the staging has ended: lets go of what was kept.
  void release() { kept_.reset(); }
  // The program ends and waits for nothing: what is kept stays until its end.
  void leave();

 private:
  // Shared with the copying thread.
  struct Question {
    std::mutex mutex;
    std::condition_variable changed;
    bool asked = false;
    std::optional<Result<void>> answer;
  };
  bool is_staged_within(std::chrono::milliseconds timeout) const;

  nb::object kept_;
  std::chrono::milliseconds deadline_;
  std::shared_ptr<Question> question_;
  std::optional<AsyncSave> save_;  // none if it failed to begin
};

}  // namespace cairn::python
