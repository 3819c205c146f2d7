// CommitOrder: lets saves into one directory commit in the order in which they began.
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
  // A save's place in the order; destroyed when the save has ended, in whatever way. Thread-safe.
  class Turn {
   public:
    Turn(std::shared_ptr<Directories> directories, std::string directory);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // Returns when no save that entered earlier is left, or once `interrupted`, asked every few milliseconds, says
    // true. kUnavailable if an earlier one hangs in its commit: it might commit after this one.
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

  // `directory` however it is written: links are followed, unless the storage hangs for longer than `limit`. Owned by
  // the save's thread, and by whoever gives the save up.
  std::shared_ptr<Turn> enter(const std::string& directory, std::chrono::milliseconds limit);

 private:
  std::shared_ptr<Directories> directories_ = std::make_shared<Directories>();
};

}  // namespace cairn::writer
