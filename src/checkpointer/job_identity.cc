#include "checkpointer/job_identity.h"

#include <unistd.h>

#include <mutex>

#include "os/process_identity.h"

namespace cairn::checkpointer {
namespace {

SaveId random_id() {
  const os::Random128 bits = os::random_128();
  return {bits.high, bits.low};
}

}  // namespace

transfer::SaveIdentity next_save_identity() {
  static std::mutex mutex;
  static pid_t pid = -1;
  static SaveId job_id;
  static std::uint64_t save_number = 0;
  const std::lock_guard lock(mutex);
  if (pid != getpid()) {
    pid = getpid();
    job_id = random_id();
    save_number = 0;
  }
  return {random_id(), job_id, ++save_number};
}

}  // namespace cairn::checkpointer
