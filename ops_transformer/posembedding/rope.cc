// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/posembedding/rope.h"

#include <fmt/format.h>

#include <cmath>

#include "ops_transformer/base/validate.h"
#include "ops_transformer/posembedding/rope_validate.h"
#include "ops_transformer/profiler/profiler.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "rotary_embedding";
constexpr long double kTwoPi = 6.283185307179586476925286766559005768L;
// Bounds the table: more angles than this are computed faster than memory delivers them.
constexpr std::int64_t kMaxTableElements = std::int64_t{1} << 31;

// Radians a position to 2^-64 turns a position. Long double, since 2^31 positions magnify what a double rounds off.
std::uint64_t to_turns(long double frequency) {
  const long double turns = frequency / kTwoPi, scaled = std::round(std::ldexp(turns - std::floor(turns), 64));
  return scaled >= 0x1p64L ? 0 : std::uint64_t(scaled);
}

void fill_cos_sin(std::span<const std::uint64_t> turns, std::int64_t position, double amplitude, float* cosines,
                  float* sines) {
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const double angle = double(std::int64_t(turn_at(turns[i], position))) * double(kTwoPi * 0x1p-64L);
    cosines[i] = float(amplitude * std::cos(angle));
    sines[i] = float(amplitude * std::sin(angle));
  }
}

void validate_options(const RopeOptions& options) {
  constexpr const char* kTable = "RopeTable";
  const auto check = [](bool good, std::string_view name, auto value, std::string_view limit) {
    if (!good) invalid(kTable, fmt::format("{} is {}, must be {}", name, value, limit));
  };
  check(options.rotary_dim >= 2 && options.rotary_dim % 2 == 0 && options.rotary_dim <= 1 << 20, "rotary_dim",
        options.rotary_dim, "even, from 2 to 2^20");
  check(options.theta >= 1.0 && std::isfinite(options.theta), "theta", options.theta, "finite and >= 1");
  check(options.table_len >= 0 && options.table_len <= kMaxTableElements / options.rotary_dim, "table_len",
        options.table_len, fmt::format("from 0 to {}", kMaxTableElements / options.rotary_dim));
  const double scale = options.position_scale;
  check(scale > 0 && scale <= 0x1p20, "position_scale", scale, "positive and at most 2^20");
  if (options.frequency_factors.empty()) {
    check(scale >= 0x1p-10, "position_scale", scale, "at least 1/1024");
    return;
  }
  check(std::int64_t(options.frequency_factors.size()) == options.rotary_dim / 2, "frequency_factors' length",
        options.frequency_factors.size(), fmt::format("rotary_dim / 2 = {}", options.rotary_dim / 2));
  for (const float factor : options.frequency_factors) {
    check(factor * scale >= 0x1p-10 && std::isfinite(factor), "a frequency factor", factor,
          fmt::format("finite and at least 1/1024 / position_scale = {}", 0x1p-10 / scale));
  }
}

void validate_tensors(const ConstTensorView& x, const ConstTensorView& positions, const TensorView& out,
                      std::int64_t rotary_dim) {
  check_rank(kOp, "x", x, 3);
  check_dtype(kOp, "x", x, {DType::f32, DType::bf16, DType::f16});
  check_rows(kOp, "x", x);
  check_rotation(kOp, x, positions, rotary_dim);
  check_shape(kOp, "out", out, {x.size(0), x.size(1), x.size(2)});
  check_dtype(kOp, "out", out, {x.dtype()});
  check_rows(kOp, "out", out);
  check_output(kOp, "out", out);
  check_in_place_or_apart(kOp, "out", out, "x", x);
  check_no_overlap(kOp, "out", out, "positions", positions);
}

void run(Context& context, const RopeArgs& args, std::int64_t tokens) {
  const std::int64_t token_elements = args.num_heads * args.head_dim;
  if (tokens == 0 || token_elements == 0) return;
  // Each rotated pair takes four products and two additions.
  Zone zone(context, kOp,
            {.bytes = tokens * token_elements * 2 * std::int64_t(element_bytes(args.dtype)),
             .flops = tokens * args.num_heads * args.angles.half * 6});
  CallScope call(context);
  RopeFn* kernel = rope_tokens.at(context.isa());
  const std::size_t scratch_len = align_up(std::size_t(2 * args.angles.half), 16);
  auto scratch = call.arena().allocate<float>(std::size_t(call.num_threads()) * scratch_len);
  call.parallel_rows(tokens, token_elements, [&](std::int64_t first, std::int64_t last, int worker) {
    kernel(args, first, last, scratch.data() + std::size_t(worker) * scratch_len);
  });
}

}  // namespace

RopeTable::RopeTable(const RopeOptions& options)
    : rotary_dim_((validate_options(options), options.rotary_dim)),
      table_len_(options.table_len),
      style_(options.style),
      amplitude_(1.0),
      turns_(std::size_t(options.rotary_dim / 2)),
      table_(std::size_t(options.table_len * options.rotary_dim) * sizeof(float)) {
  const RopeFrequencies frequencies = rope_frequencies(options.theta, rotary_dim_, options.scaling);
  amplitude_ = frequencies.amplitude;
  for (std::size_t i = 0; i < turns_.size(); ++i) {
    const long double factor = options.frequency_factors.empty() ? 1.0L : options.frequency_factors[i];
    turns_[i] = to_turns(frequencies.radians[i] / (factor * options.position_scale));
  }
  for (std::int64_t position = 0; position < table_len_; ++position) {
    float* row = table_.as<float>() + position * rotary_dim_;
    fill_cos_sin(turns_, position, amplitude_, row, row + turns_.size());
  }
}

void RopeTable::cos_sin(std::int64_t position, std::span<float> cosines, std::span<float> sines) const {
  if (position < -kMaxPosition || position > kMaxPosition) {
    invalid("RopeTable", fmt::format("position is {}, must be from {} to {}", position, -kMaxPosition, kMaxPosition));
  }
  if (cosines.size() != turns_.size() || sines.size() != turns_.size()) {
    invalid("RopeTable", fmt::format("cosines and sines have {} and {} elements, must have rotary_dim / 2 = {}",
                                     cosines.size(), sines.size(), turns_.size()));
  }
  fill_cos_sin(turns_, position, amplitude_, cosines.data(), sines.data());
}

RopeAngles RopeTable::angles() const noexcept {
  const auto half = std::int64_t(turns_.size());
  return {.cosines = table_.as<const float>(),
          .sines = table_.as<const float>() + half,
          .row_stride = rotary_dim_,
          .table_len = table_len_,
          .turns = turns_.data(),
          .amplitude = float(amplitude_),
          .half = half,
          .interleaved = style_ == RopeStyle::interleaved};
}

void rotary_embedding(Context& context, const ConstTensorView& x, const ConstTensorView& positions,
                      const RopeTable& table, const TensorView& out) {
  validate_tensors(x, positions, out, table.rotary_dim());
  check_positions(kOp, positions, -RopeTable::kMaxPosition, RopeTable::kMaxPosition);
  run(context, rope_args(x, positions, out, table.angles()), x.size(0));
}

void rotary_embedding(Context& context, const ConstTensorView& x, const ConstTensorView& positions,
                      const ConstTensorView& cosines, const ConstTensorView& sines, RopeStyle style,
                      const TensorView& out) {
  check_rank(kOp, "cosines", cosines, 2);
  check_dtype(kOp, "cosines", cosines, {DType::f32});
  check_rows(kOp, "cosines", cosines);
  check_shape(kOp, "sines", sines, {cosines.size(0), cosines.size(1)});
  check_dtype(kOp, "sines", sines, {DType::f32});
  check_rows(kOp, "sines", sines);
  if (cosines.stride(0) != sines.stride(0)) {
    invalid(kOp,
            fmt::format("sines have row stride {}, must have that of cosines, {}", sines.stride(0), cosines.stride(0)));
  }
  validate_tensors(x, positions, out, 2 * cosines.size(1));
  check_no_overlap(kOp, "out", out, "cosines", cosines);
  check_no_overlap(kOp, "out", out, "sines", sines);
  const RopeAngles angles{.cosines = cosines.as<float>(),
                          .sines = sines.as<float>(),
                          .row_stride = cosines.stride(0),
                          .table_len = cosines.size(0),
                          .turns = nullptr,
                          .amplitude = 1.0f,
                          .half = cosines.size(1),
                          .interleaved = style == RopeStyle::interleaved};
  if (cosines.size(0) == 0 && x.size(0) > 0) {
    invalid(kOp, fmt::format("cosines are {}, must have a row for each of {} positions", describe(cosines), x.size(0)));
  }
  check_positions(kOp, positions, 0, cosines.size(0) - 1);
  run(context, rope_args(x, positions, out, angles), x.size(0));
}

}  // namespace ops_transformer
