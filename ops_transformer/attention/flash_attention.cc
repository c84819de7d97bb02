// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/attention/flash_attention.h"

#include <fmt/format.h>

#include "ops_transformer/attention/attention_call.h"
#include "ops_transformer/attention/attention_run.h"
#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

// make_sequence(b) gives sequence b of the batch. Nothing has been written before it has been checked.
template <class MakeSequence>
void run(Context& context, const AttentionCall& call, std::int64_t batch, const MakeSequence& make_sequence,
         const PagedKvView* cache = nullptr) {
  const std::size_t prefixes = call.options.prefix_lens.size();
  if (prefixes != 0 && prefixes != std::size_t(batch)) {
    invalid(call.op,
            fmt::format("prefix_lens has {} entries, must have one for each of {} sequences", prefixes, batch));
  }
  for (std::int64_t b = 0; b < batch; ++b) call.check_sequence(make_sequence(b), b);
  if (call.nothing_to_write()) return;
  const AttentionProblem problem = call.problem();
  AttentionArgs args = call.args();
  if (cache) {
    args.page_size = cache->page_size();
    args.k_page_stride = cache->k.stride(0);
    args.v_page_stride = cache->v.stride(0);
  }
  Work work;
  for (std::int64_t b = 0; context.profiler() && b < batch; ++b) {
    const Work one = work_of(problem, args, make_sequence(b));
    work.bytes += one.bytes;
    work.flops += one.flops;
  }
  Zone zone(context, call.op, work);
  CallScope scope(context);
  const auto sequences = scope.arena().allocate<AttentionSequence>(std::size_t(batch));
  for (std::int64_t b = 0; b < batch; ++b) sequences[std::size_t(b)] = make_sequence(b);
  run_attention(scope, zone, problem, args, sequences);
}

void check_offsets(const char* op, const char* name, std::span<const std::int64_t> offsets, std::size_t batch,
                   std::int64_t total) {
  if (offsets.size() != batch + 1) {
    invalid(op, fmt::format("{} has {} entries, must have batch + 1 = {}", name, offsets.size(), batch + 1));
  }
  if (offsets[0] != 0) invalid(op, fmt::format("{}[0] is {}, must be 0", name, offsets[0]));
  for (std::size_t b = 0; b < batch; ++b) {
    if (offsets[b + 1] < offsets[b]) {
      invalid(op,
              fmt::format("{}[{}] is {}, less than the entry before it, {}", name, b + 1, offsets[b + 1], offsets[b]));
    }
  }
  if (offsets[batch] != total) {
    invalid(op, fmt::format("{}[{}] is {}, must be the number of rows, {}", name, batch, offsets[batch], total));
  }
}

// The sequence that options.outer_cut means; -1: there is none.
std::int64_t find_cut(OuterCut cut, std::span<const std::int64_t> q_offsets) {
  const auto has_queries = [&](std::int64_t b) { return q_offsets[std::size_t(b)] < q_offsets[std::size_t(b) + 1]; };
  const auto batch = std::int64_t(q_offsets.size()) - 1;
  for (std::int64_t i = 0; cut != OuterCut::none && i < batch; ++i) {
    const std::int64_t b = cut == OuterCut::first ? i : batch - 1 - i;
    if (has_queries(b)) return b;
  }
  return -1;
}

}  // namespace

void run_batched(Context& context, const AttentionCall& call) {
  run(context, call, call.q.size(0), [&](std::int64_t b) {
    AttentionSequence sequence{};
    sequence.k_offset = b * call.k.stride(0);
    sequence.v_offset = b * call.v.stride(0);
    sequence.code_page = b;
    sequence.q_len = call.q.size(2);
    sequence.kv_len = call.k.size(2);
    call.place_rows(sequence, b, 0);
    return sequence;
  });
}

void flash_attention(Context& context, const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                     const TensorView& out, const FlashAttentionOptions& options) {
  const AttentionCall call{"flash_attention", q, k, v, out, kBatchedAxes, kBatchedAxes, options, "q_len", "kv_len"};
  call.validate(false);
  run_batched(context, call);
}

void flash_attention_varlen(Context& context, const ConstTensorView& q, const ConstTensorView& k,
                            const ConstTensorView& v, const TensorView& out, std::span<const std::int64_t> q_offsets,
                            std::span<const std::int64_t> kv_offsets, const FlashAttentionOptions& options) {
  AttentionCall call{"flash_attention_varlen", q, k, v, out, kPackedAxes, kPackedAxes, options, "total_q", "total_kv"};
  call.validate(false);
  if (q_offsets.empty()) invalid(call.op, "q_offsets is empty, must have batch + 1 entries");
  const std::size_t batch = q_offsets.size() - 1;
  check_at_most(call.op, "batch", std::int64_t(batch), kMaxAttentionBatch);
  check_offsets(call.op, "q_offsets", q_offsets, batch, q.size(0));
  call.cut_sequence = find_cut(options.outer_cut, q_offsets);
  check_offsets(call.op, "kv_offsets", kv_offsets, batch, k.size(0));
  run(context, call, std::int64_t(batch), [&](std::int64_t index) {
    const auto b = std::size_t(index);
    AttentionSequence sequence{};
    sequence.k_offset = kv_offsets[b] * k.stride(0);
    sequence.v_offset = kv_offsets[b] * v.stride(0);
    sequence.code_row = kv_offsets[b];
    sequence.q_len = q_offsets[b + 1] - q_offsets[b];
    sequence.kv_len = kv_offsets[b + 1] - kv_offsets[b];
    call.place_rows(sequence, index, q_offsets[b]);
    return sequence;
  });
}

void flash_attention_paged(Context& context, const ConstTensorView& q, const PagedKvView& cache, const TensorView& out,
                           std::span<const std::int64_t> q_offsets, const FlashAttentionOptions& options) {
  AttentionCall call{
      "flash_attention_paged", q, cache.k, cache.v, out, kPackedAxes, kBatchedAxes, options, "total_q", "page_size"};
  check_paged_kv(call.op, cache);
  call.validate(true);
  const std::size_t batch = cache.sequences.size();
  check_at_most(call.op, "batch", std::int64_t(batch), kMaxAttentionBatch);
  check_offsets(call.op, "q_offsets", q_offsets, batch, q.size(0));
  call.cut_sequence = find_cut(options.outer_cut, q_offsets);
  for (const PagedSequence& sequence : cache.sequences) {
    check_at_most(call.op, "kv_len", sequence.kv_len, kMaxAttentionLen);
  }
  run(
      context, call, std::int64_t(batch),
      [&](std::int64_t index) {
        const auto b = std::size_t(index);
        // Without keys a sequence may have no table; then nothing is read, though it looks contiguous.
        AttentionSequence sequence{};
        sequence.pages = cache.sequences[b].pages;
        sequence.q_len = q_offsets[b + 1] - q_offsets[b];
        sequence.kv_len = cache.sequences[b].kv_len;
        call.place_rows(sequence, index, q_offsets[b]);
        return sequence;
      },
      &cache);
}

}  // namespace ops_transformer
