// kSanitized: whether the program is compiled with a sanitizer, which makes a test 5 to 20 times as slow.
//
// Tests that try every place of a fault, or every order of steps, then try a part of the seeds. The release build tries
// them all.
#pragma once

namespace cairn {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace cairn
