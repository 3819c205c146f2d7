// Findings: the problems and the counts of bytes that the threads of verify() find.
#pragma once

#include <cairn/inspect.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>

namespace cairn::checkpointer {

// The report names at most kProblemsMax problems: a failing disk may have millions of damaged chunks.
inline constexpr std::size_t kProblemsMax = 1000;

// Collects the findings of all threads. Thread-safe.
class Findings {
 public:
  explicit Findings(VerifyReport& report) : report_(report) {}
  void add(Error problem) {
    const std::lock_guard lock(mutex_);
    if (report_.problems.size() < kProblemsMax) report_.problems.push_back(std::move(problem));
  }
  void count(std::uint64_t checked, std::uint64_t unchecked) {
    const std::lock_guard lock(mutex_);
    report_.bytes_checked += checked;
    report_.bytes_unchecked += unchecked;
  }

 private:
  std::mutex mutex_;
  VerifyReport& report_;
};

}  // namespace cairn::checkpointer
