// The sanitizers that the program is compiled with, by g++ or by clang: for a test that can't do its work under one.
#pragma once

#ifdef __has_feature  // clang
#define CAIRN_HAS_FEATURE(feature) __has_feature(feature)
#else
#define CAIRN_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || CAIRN_HAS_FEATURE(address_sanitizer)
#define CAIRN_ADDRESS_SANITIZER 1
#else
#define CAIRN_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__) || CAIRN_HAS_FEATURE(thread_sanitizer)
#define CAIRN_THREAD_SANITIZER 1
#else
#define CAIRN_THREAD_SANITIZER 0
#endif

namespace cairn {

inline constexpr bool kAddressSanitized = CAIRN_ADDRESS_SANITIZER != 0;
inline constexpr bool kThreadSanitized = CAIRN_THREAD_SANITIZER != 0;

// A sanitizer makes a test 5 to 20 times as slow. Tests that try every place of a fault, or every order of steps, then
// try a part of the seeds. The release build tries them all.
inline constexpr bool kSanitized = kAddressSanitized || kThreadSanitized;

}  // namespace cairn
