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

std::string uuid_text(const SaveId& id) {
  std::string text = to_hex(id);
  for (const std::size_t place : {20u, 16u, 12u, 8u}) text.insert(place, 1, '-');
  return text;
}

}  // namespace cairn::checkpointer
