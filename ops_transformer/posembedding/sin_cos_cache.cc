// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/sin_cos_cache.h"

#include <fmt/format.h>

#include <numeric>
#include <string>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rope_kernel.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rope_with_sin_cos_cache";
constexpr std::size_t kMaxSections = 4;

std::int64_t position_of(const ConstTensorView& positions, std::int64_t section, std::int64_t token) {
  const bool by_section = positions.rank() == 2;
  return position_at(positions.data(), positions.dtype(),
                     (by_section ? section * positions.stride(0) : 0) + token * positions.stride(by_section ? 1 : 0));
}

void check_rows_of(const char* name, const ConstTensorView& x, const char* out_name, const TensorView& out,
                   std::int64_t tokens, const ConstTensorView& cache, const ConstTensorView& positions) {
  check_shape(kOp, name, x, {tokens, -1, -1});
  check_dtype(kOp, name, x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, name, x);
  if (x.size(2) < cache.size(1)) {
    invalid(kOp, fmt::format("{} has heads of {}, must be at least rotary_dim = {}", name, x.size(2), cache.size(1)));
  }
  check_shape(kOp, out_name, out, {tokens, x.size(1), x.size(2)});
  check_dtype(kOp, out_name, out, {x.dtype()});
  check_rows(kOp, out_name, out);
  check_output(kOp, out_name, out);
  check_in_place_or_apart(kOp, out_name, out, name, x);
  check_no_overlap(kOp, out_name, out, "cache", cache);
  check_no_overlap(kOp, out_name, out, "positions", positions);
}

void validate(const ConstTensorView& positions, const ConstTensorView& cache, const SinCosCacheOptions& options) {
  check_rank(kOp, "cache", cache, 2);
  check_dtype(kOp, "cache", cache, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "cache", cache);
  const std::int64_t rotary_dim = cache.size(1), half = rotary_dim / 2;
  if (rotary_dim < 2 || rotary_dim % 2 != 0) {
    invalid(kOp, fmt::format("cache has rows of {}, must be even and at least 2", rotary_dim));
  }
  const auto& sections = options.sections;
  if (sections.size() > kMaxSections || sections.size() == 1) {
    invalid(kOp, fmt::format("sections has {} entries, must have none or 2 to {}", sections.size(), kMaxSections));
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i] < 0 || sections[i] > half) {
      invalid(kOp, fmt::format("sections[{}] is {}, must be from 0 to rotary_dim / 2 = {}", i, sections[i], half));
    }
    total += sections[i];
  }
  if (!sections.empty() && total != half) {
    invalid(kOp, fmt::format("sections add up to {}, must to rotary_dim / 2 = {}", total, half));
  }
  if (options.interleaved_sections && sections.size() != 3) {
    invalid(kOp, fmt::format("sections has {} entries, must have 3 where they are interleaved", sections.size()));
  }
  if (sections.empty()) {
    check_rank(kOp, "positions", positions, 1);
  } else {
    check_shape(kOp, "positions", positions, {std::int64_t(sections.size()), -1});
  }
  check_dtype(kOp, "positions", positions, {DType::i32, DType::i64});
  const std::int64_t tokens = positions.size(positions.rank() - 1);
  for (std::int64_t row = 0; row < (positions.rank() == 2 ? positions.size(0) : 1); ++row) {
    for (std::int64_t token = 0; token < tokens; ++token) {
      const std::int64_t position = position_of(positions, row, token);
      if (position < 0 || position >= cache.size(0)) {
        const std::string at = positions.rank() == 2 ? fmt::format("{}, {}", row, token) : fmt::format("{}", token);
        invalid(kOp, fmt::format("positions[{}] is {}, must be from 0 to {}", at, position, cache.size(0) - 1));
      }
    }
  }
}

float value_at(const ConstTensorView& view, std::int64_t i) {
  if (view.dtype() == DType::f32) return view.as<float>()[i];
  return view.dtype() == DType::bf16 ? to_float(view.as<BFloat16>()[i]) : to_float(view.as<Float16>()[i]);
}

// Which row of positions a pair turns by.
std::int64_t section_of(std::int64_t pair, const SinCosCacheOptions& options) {
  const auto& sections = options.sections;
  if (sections.empty()) return 0;
  if (options.interleaved_sections) {
    const std::int64_t turn = pair % 3;
    return turn > 0 && pair < 3 * sections[std::size_t(turn)] ? turn : 0;
  }
  std::int64_t section = 0;
  for (std::int64_t end = sections[0]; pair >= end; end += sections[std::size_t(++section)]) continue;
  return section;
}

}  // namespace

void rope_with_sin_cos_cache(Context& context, const ConstTensorView& positions, const ConstTensorView& cache,
                             const ConstTensorView& q, const TensorView& q_out, const ConstTensorView& k,
                             const TensorView& k_out, const SinCosCacheOptions& options) {
  validate(positions, cache, options);
  const std::int64_t tokens = positions.size(positions.rank() - 1), half = cache.size(1) / 2;
  check_rows_of("q", q, "q_out", q_out, tokens, cache, positions);
  check_rows_of("k", k, "k_out", k_out, tokens, cache, positions);
  check_no_overlap(kOp, "q_out", q_out, "k", k);
  check_no_overlap(kOp, "k_out", k_out, "q", q);
  check_no_overlap(kOp, "q_out", q_out, "k_out", k_out);
  if (tokens == 0) return;
  // Each token's factors as a row of its own, which the kernel then finds by the token's number.
  CallScope call(context);
  const auto factors = call.arena().allocate<float>(std::size_t(tokens * 2 * half));
  const auto numbers = call.arena().allocate<std::int64_t>(std::size_t(tokens));
  std::iota(numbers.begin(), numbers.end(), 0);
  {
    const Zone zone(context, kOp,
                    {.bytes = tokens * 2 * half * std::int64_t(sizeof(float) + element_bytes(cache.dtype()))});
    call.parallel_rows(tokens, 2 * half, [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t token = first; token < last; ++token) {
        float* const row = factors.data() + token * 2 * half;
        for (std::int64_t pair = 0; pair < half; ++pair) {
          const std::int64_t at = position_of(positions, section_of(pair, options), token) * cache.stride(0) + pair;
          row[pair] = value_at(cache, at);
          row[half + pair] = value_at(cache, at + half);
        }
      }
    });
  }
  const ConstTensorView cosines(factors.data(), DType::f32, {tokens, half}, {2 * half, 1}),
      sines(factors.data() + half, DType::f32, {tokens, half}, {2 * half, 1}),
      token_numbers(numbers.data(), DType::i64, {tokens});
  if (q.num_elements() > 0) rotary_embedding(context, q, token_numbers, cosines, sines, options.style, q_out);
  if (k.num_elements() > 0) rotary_embedding(context, k, token_numbers, cosines, sines, options.style, k_out);
}

}  // namespace ops_transformer
