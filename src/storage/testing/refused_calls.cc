#include "storage/testing/refused_calls.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cstddef>
#include <cstdint>
#include <thread>

namespace cairn::storage {
namespace {

constexpr std::uint32_t kArgumentBytes = 8;

sock_filter load(std::size_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset)); }

// The seccomp program for `calls`. A jump states how many instructions to skip if true and if false.
std::vector<sock_filter> program_of(const std::vector<RefusedCall>& calls) {
  std::vector<sock_filter> program;
  for (const RefusedCall& call : calls) {
    const auto number = static_cast<std::uint32_t>(call.number);
    const std::uint8_t rest = call.argument ? 3 : 1;
    program.push_back(load(offsetof(seccomp_data, nr)));
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, rest));
    if (call.argument) {
      program.push_back(load(offsetof(seccomp_data, args) + *call.argument * kArgumentBytes));  // the lower half
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, call.bits, 0, 1));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(call.error)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  return program;
}

}  // namespace

bool run_with_refused(const std::vector<RefusedCall>& calls, const std::function<void()>& work) {
  std::vector<sock_filter> filters = program_of(calls);
  const sock_fprog program{static_cast<unsigned short>(filters.size()), filters.data()};
  bool filtered = false;
  // A filter applies to its thread, and can't be removed.
  std::jthread([&] {
    filtered = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
    if (filtered) work();
  }).join();
  return filtered;
}

}  // namespace cairn::storage
