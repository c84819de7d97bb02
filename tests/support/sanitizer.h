// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace ops_transformer::test {

/// ThreadSanitizer forbids new threads in the forked child of a process with threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
  #if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
  #else
inline constexpr bool kThreadSanitizer = false;
  #endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

}  // namespace ops_transformer::test
