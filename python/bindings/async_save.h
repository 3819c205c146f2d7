// PythonAsyncSave: Python's handle of an asynchronous save. Owns the staged memory's Python objects.
//
// During the copy the engine reads memory of Python objects, without Python's lock. PythonAsyncSave keeps these objects
// alive until the copy has ended, also if the Python code that started the save has failed.
//
// 1. The copying thread has copied all bytes, asks whether the memory was valid all the time, and waits.
// 2. wait_copied() returns. Python checks the storages and answers with confirm(). Without an answer within the
//    deadline the save fails.
// 3. The writer may commit. wait_staged() returns the outcome of the staging, and Python calls release().
//
// If the object is destroyed before the end of step 2, the destructor answers with an error and waits for the copying
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

class PythonAsyncSave {
 public:
  // `kept` owns the memory that the engine reads. Null if the call stages before the return, without steps 1 and 2.
  PythonAsyncSave(nb::object kept, std::chrono::milliseconds deadline);
  ~PythonAsyncSave();
  PythonAsyncSave(const PythonAsyncSave&) = delete;
  PythonAsyncSave& operator=(const PythonAsyncSave&) = delete;

  // For AsyncSaveOptions::confirm_sources; empty if `kept` is null.
  std::function<Result<void>()> confirmation() const;
  void began(AsyncSave save) { save_ = std::move(save); }
  const AsyncSave& save() const { return *save_; }

  // Whether step 1 is reached, or the staging has ended without step 1. Called without Python's lock.
  bool wait_copied(std::chrono::milliseconds timeout) const;
  // Step 2. Only the first answer counts.
  void confirm(Result<void> answer);
  // Releases `kept`. To be called after the end of the staging.
  void release() { kept_.reset(); }
  // For a program that ends without waiting: `kept` stays alive until the end of the process.
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
  std::optional<AsyncSave> save_;  // nullopt if the save failed to begin
};

}  // namespace cairn::python
