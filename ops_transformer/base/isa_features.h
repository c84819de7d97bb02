// SPDX-License-Identifier: Apache-2.0
#pragma once

// The features of each level, in the compiler's names: simd/begin.h opens the target region with them, isa.cc asks the
// CPU for the same list.
// clang-format off: a space would become part of the compiler's option
#define OPS_TRANSFORMER_FEATURES_generic
#define OPS_TRANSFORMER_FEATURES_avx2 avx2,fma,f16c,bmi2
#define OPS_TRANSFORMER_FEATURES_avx2_vnni OPS_TRANSFORMER_FEATURES_avx2,avxvnni
#define OPS_TRANSFORMER_FEATURES_avx512 OPS_TRANSFORMER_FEATURES_avx2,avx512f,avx512bw,avx512dq,avx512vl
#define OPS_TRANSFORMER_FEATURES_avx512_vnni OPS_TRANSFORMER_FEATURES_avx512,avx512vnni
#define OPS_TRANSFORMER_FEATURES_avx512_bf16 OPS_TRANSFORMER_FEATURES_avx512_vnni,avx512bf16
// clang-format on

#define OPS_TRANSFORMER_FEATURE_STRING(...) OPS_TRANSFORMER_STRINGIFY(__VA_ARGS__)
#define OPS_TRANSFORMER_STRINGIFY(...) #__VA_ARGS__
