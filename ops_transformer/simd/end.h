// SPDX-License-Identifier: Apache-2.0
// Closes what simd/begin.h opened.

#if defined(__clang__)
  #if !defined(OPS_TRANSFORMER_ISA_generic)
    #pragma clang attribute pop
  #endif
#else
  #pragma GCC diagnostic pop
  #if !defined(OPS_TRANSFORMER_ISA_generic)
    #pragma GCC pop_options
  #endif
#endif
