// Attempt: work whose exceptions are errors like any other, for those who must not leave in the middle.
#pragma once

#include <cairn/result.h>

#include <exception>
#include <new>

namespace cairn {

// What `work` returns, a Result; or the error that an exception out of it (memory ran out, most likely) comes to.
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
