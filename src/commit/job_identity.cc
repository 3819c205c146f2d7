#include "commit/job_identity.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "format/manifest/commit_record.h"
#include "os/process_identity.h"
#include "os/process_state.h"

namespace cairn::commit {
namespace {

SaveId random_id() {
  const os::Random128 bits = os::random_128();
  return {bits.high, bits.low};
}

std::uint64_t nanoseconds_since_1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto count = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
  return count > 0 ? static_cast<std::uint64_t>(count) : 0;
}

// The job of this process.
struct Job {
  pid_t pid = -1;  // the process that drew `id`: a forked child draws a new id
  SaveId id;
  std::uint64_t start = 0;
  std::uint64_t start_min = 1;  // above the start of every job whose checkpoint this process has opened
  std::uint64_t save_number = 0;
};

os::ProcessState<Job>& this_job = os::ProcessState<Job>::instance();

}  // namespace

SaveIdentity next_save_identity(SaveForm form) {
  return this_job.use([form](Job& job) {
    if (job.pid != getpid()) {
      if (job.pid != -1) job.start_min = std::max(job.start_min, job.start + 1);  // orders the child after its parent
      job.pid = getpid();
      job.id = random_id();
      job.start = nanoseconds_since_1970();
      job.save_number = 0;
    }
    job.start = std::min(std::max(job.start, job.start_min), manifest::kJobStartMax);
    return SaveIdentity{random_id(), job.id, ++job.save_number, job.start, form};
  });
}

SaveIdentity copy_identity(SaveForm form, std::uint64_t job_start, std::uint64_t save_number) {
  return {random_id(), SaveId(), save_number, job_start, form};
}

void order_saves_after(std::string_view job_id, std::uint64_t job_start) {
  this_job.use([&](Job& job) {
    if (job_start == 0 || job_id == to_hex(job.id)) return;
    job.start_min = std::max(job.start_min, job_start + 1);
  });
}

}  // namespace cairn::commit
