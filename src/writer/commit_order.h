// CommitOrder: lets saves into one directory commit in the order in which they began.
//
// Thread-safe. Turns may outlive the order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace cairn::writer {

class CommitOrder {
  struct Directories {
    std::mutex mutex;
    std::condition_variable left;
    std::uint64_t next = 0;
    std::map<std::string, std::set<std::uint64_t>> under_way;
  };

 public:
  // A save's place in the order; destroyed when the save has ended, in whatever way.
  class Turn {
   public:
    Turn(std::shared_ptr<Directories> directories, std::string directory);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // Returns when no save that entered earlier is left.
    void wait() const;

   private:
    std::shared_ptr<Directories> directories_;  // owned by the order and by its turns
    std::string directory_;
    std::uint64_t number_ = 0;
  };

  // `directory` however it is written: links are followed.
  std::unique_ptr<Turn> enter(const std::string& directory);

 private:
  std::shared_ptr<Directories> directories_ = std::make_shared<Directories>();
};

}  // namespace cairn::writer
