// Attempt: turns exceptions of work into errors, for callers that must run on to their end.
#pragma once

#include <cairn/result.h>

#include <exception>
#include <new>

namespace cairn {

// The result of `work`, which is a Result. An exception of `work` (most likely bad_alloc) becomes an error.
template <typename Work>
auto attempt(Work&& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kUnavailable, "out of memory");
  } catch (const std::exception& exception) {
    return Error(ErrorCode::kInternal, exception.what());
  }
}

}  // namespace cairn
