// CommitOrder: lets saves into one directory commit in the order in which the saves began.
//
// Thread-safe. Turns may outlive the order.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace cairn::writer {

class CommitOrder {
  struct Directories {
    std::mutex mutex;
    std::condition_variable changed;
    std::uint64_t next = 0;
    // By directory and number: whether the save hangs in its commit.
    std::map<std::string, std::map<std::uint64_t, bool>> in_flight;
  };

 public:
  // A save's place in the order. The owner destroys the turn when the save has ended, with or without success.
  // Thread-safe.
  class Turn {
   public:
    Turn(std::shared_ptr<Directories> directories, std::string directory);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // Returns once every earlier save has left the order, or once `interrupted`, called every few milliseconds, returns
    // true. kUnavailable if an earlier save hangs in its commit: the earlier save might commit after this save.
    Result<void> wait(const std::function<bool()>& interrupted) const;
    // The save will not commit any more.
    void leave();
    // The save hangs in its commit, and may still commit.
    void note_stuck();

   private:
    std::shared_ptr<Directories> directories_;  // owned by the order and by its turns
    std::string directory_;
    std::uint64_t number_ = 0;
  };

  // Enters a save into `directory`. Links in the path are resolved, unless the storage hangs for longer than `limit`.
  // The turn is owned by the save's thread, and by the thread that gives the save up.
  std::shared_ptr<Turn> enter(const std::string& directory, std::chrono::milliseconds limit);

 private:
  std::shared_ptr<Directories> directories_ = std::make_shared<Directories>();
};

}  // namespace cairn::writer
