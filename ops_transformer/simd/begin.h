// SPDX-License-Identifier: Apache-2.0
// Opens the target region of the level that a *.kernel.cc is being compiled for, and puts the vector layer into it.
// Include after every other header; close with simd/end.h. No include guard: one region per kernel file.

#if !defined(OPS_TRANSFORMER_ISA)
  #error "simd/begin.h belongs in a *.kernel.cc"
#endif

#include <cstddef>
#include <cstdint>

#include "ops_transformer/base/float16.h"
#include "ops_transformer/base/isa_features.h"
#if defined(__x86_64__)
  #include <immintrin.h>
#endif

#define OPS_TRANSFORMER_PRAGMA(x) _Pragma(#x)
#if defined(__clang__)
  #define OPS_TRANSFORMER_OPEN(features) \
    OPS_TRANSFORMER_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#else
  #define OPS_TRANSFORMER_OPEN(features) \
    OPS_TRANSFORMER_PRAGMA(GCC push_options) OPS_TRANSFORMER_PRAGMA(GCC target(features))
#endif

#if defined(OPS_TRANSFORMER_ISA_avx512_bf16)
OPS_TRANSFORMER_OPEN(OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512_bf16))
#elif defined(OPS_TRANSFORMER_ISA_avx512_vnni)
OPS_TRANSFORMER_OPEN(OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512_vnni))
#elif defined(OPS_TRANSFORMER_ISA_avx512)
OPS_TRANSFORMER_OPEN(OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx512))
#elif defined(OPS_TRANSFORMER_ISA_avx2_vnni)
OPS_TRANSFORMER_OPEN(OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx2_vnni))
#elif defined(OPS_TRANSFORMER_ISA_avx2)
OPS_TRANSFORMER_OPEN(OPS_TRANSFORMER_FEATURE_STRING(OPS_TRANSFORMER_FEATURES_avx2))
#endif

#if !defined(__clang__)
  #pragma GCC diagnostic push
  // gcc 12's AVX-512 intrinsics read their own undefined vectors.
  #pragma GCC diagnostic ignored "-Wuninitialized"
  #pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

namespace ops_transformer::OPS_TRANSFORMER_ISA {
namespace {
#include "ops_transformer/simd/simd.inl.h"
}
}  // namespace ops_transformer::OPS_TRANSFORMER_ISA
