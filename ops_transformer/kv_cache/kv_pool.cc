// SPDX-License-Identifier: Apache-2.0
#include "ops_transformer/kv_cache/kv_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "ops_transformer/base/validate.h"

namespace ops_transformer {
namespace {

constexpr const char* kOp = "kv_pool";

void check_option(const char* name, std::int64_t value, std::int64_t limit) {
  if (value < 1 || value > limit) invalid(kOp, fmt::format("{} is {}, must be from 1 to {}", name, value, limit));
}

KvPoolOptions checked(KvPoolOptions options) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (options.value_dim == 0) options.value_dim = options.head_dim;
  check_option("num_layers", options.num_layers, kMost);
  check_option("num_kv_heads", options.num_kv_heads, kMost);
  check_option("head_dim", options.head_dim, kMost);
  check_option("value_dim", options.value_dim, kMost);
  check_option("page_size", options.page_size, kMost);
  check_option("num_pages", options.num_pages, kMost);
  if (options.dtype != DType::f32 && options.dtype != DType::bf16) {
    invalid(kOp, fmt::format("dtype is {}, must be f32 or bf16", dtype_name(options.dtype)));
  }
  // Of all layers, and a cache line for each of their planes: what layer_bytes and required_bytes compute is no more.
  std::ptrdiff_t bytes = (options.head_dim + options.value_dim) * std::ptrdiff_t(element_bytes(options.dtype)) +
                         2 * std::ptrdiff_t(kAlignment);
  bool lost = false;
  for (const std::int64_t factor : {options.num_pages, options.page_size, options.num_kv_heads, options.num_layers}) {
    lost |= __builtin_mul_overflow(bytes, factor, &bytes);
  }
  if (lost) {
    invalid(kOp, fmt::format("{} layers x {} pages x {} tokens x {} heads x {} + {} {} must have less than 2^63 bytes",
                             options.num_layers, options.num_pages, options.page_size, options.num_kv_heads,
                             options.head_dim, options.value_dim, dtype_name(options.dtype)));
  }
  return options;
}

// Bytes of K (or V, by its dim) of one layer; each starts at a cache line.
std::size_t plane_bytes(const KvPoolOptions& options, std::int64_t dim) {
  return align_up(std::size_t(options.num_pages * options.num_kv_heads * options.page_size * dim) *
                  element_bytes(options.dtype));
}

std::size_t layer_bytes(const KvPoolOptions& options) {
  return plane_bytes(options, options.head_dim) + plane_bytes(options, options.value_dim);
}

}  // namespace

std::size_t KvPool::required_bytes(const KvPoolOptions& wanted) {
  const KvPoolOptions options = checked(wanted);
  return std::size_t(options.num_layers) * layer_bytes(options);
}

KvPool::KvPool(const KvPoolOptions& options)
    : options_(checked(options)), memory_(required_bytes(options)), ref_counts_(std::size_t(options.num_pages), 0) {
  free_pages_.resize(std::size_t(options_.num_pages));
  for (std::size_t i = 0; i < free_pages_.size(); ++i) {
    free_pages_[i] = std::int32_t(free_pages_.size() - 1 - i);  // page 0 first: neighbours in time are neighbours
  }
}

const KvPool::Sequence& KvPool::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) invalid(kOp, fmt::format("sequence {} is not in the pool", id));
  return found->second;
}

std::int32_t KvPool::take_page() {
  const std::int32_t page = free_pages_.back();
  free_pages_.pop_back();
  ref_counts_[std::size_t(page)] = 1;
  return page;
}

void KvPool::release_page(std::int32_t page) {
  if (--ref_counts_[std::size_t(page)] == 0) free_pages_.push_back(page);
}

SequenceId KvPool::add_sequence() {
  sequences_.emplace(next_id_, Sequence{});
  return next_id_++;
}

void KvPool::remove_sequence(SequenceId id) {
  const Sequence& sequence = find(id);
  for (auto page = sequence.pages.rbegin(); page != sequence.pages.rend(); ++page) release_page(*page);
  sequences_.erase(id);
}

SequenceId KvPool::fork(SequenceId id) {
  Sequence copy = find(id);
  const std::size_t used = std::size_t((copy.length + options_.page_size - 1) / options_.page_size);
  copy.pages.resize(used);  // pages reserved but empty stay with the first sequence
  sequences_.emplace(next_id_, copy);
  for (std::int32_t page : copy.pages) ++ref_counts_[std::size_t(page)];
  return next_id_++;
}

std::int64_t KvPool::length(SequenceId id) const { return find(id).length; }

void KvPool::reserve(SequenceId id, std::int64_t num_tokens) {
  Sequence& sequence = const_cast<Sequence&>(find(id));
  const std::int64_t page_size = options_.page_size;
  if (num_tokens < 0 || num_tokens > std::numeric_limits<std::int64_t>::max() - sequence.length - page_size) {
    invalid(kOp, fmt::format("num_tokens is {}, must be >= 0 and fit", num_tokens));
  }
  if (num_tokens == 0) return;
  const std::int64_t held = std::int64_t(sequence.pages.size());
  const std::int64_t wanted = (sequence.length + num_tokens + page_size - 1) / page_size;
  const std::int64_t in_last = sequence.length % page_size;
  const std::size_t last = std::size_t(sequence.length / page_size);
  const bool copy_last = in_last != 0 && ref_counts_[std::size_t(sequence.pages[last])] > 1;
  const std::int64_t needed = std::max<std::int64_t>(0, wanted - held) + copy_last;
  if (needed > num_free_pages()) {
    throw ResourceExhausted(
        fmt::format("kv_pool: sequence {} of {} tokens needs {} more pages of {} for {} more tokens, {} of {} are free",
                    id, sequence.length, needed, page_size, num_tokens, num_free_pages(), options_.num_pages));
  }
  sequence.pages.reserve(std::size_t(std::max(wanted, held)));  // may throw, before anything has changed
  if (copy_last) {
    const std::int32_t shared = sequence.pages[last];
    sequence.pages[last] = take_page();
    copy_page(shared, sequence.pages[last], in_last);
    release_page(shared);
  }
  for (std::int64_t i = held; i < wanted; ++i) sequence.pages.push_back(take_page());
}

void KvPool::append(SequenceId id, std::span<std::int64_t> slots) {
  reserve(id, std::int64_t(slots.size()));
  Sequence& sequence = const_cast<Sequence&>(find(id));
  write_slots(sequence, sequence.length, slots);
  sequence.length += std::int64_t(slots.size());
}

void KvPool::truncate(SequenceId id, std::int64_t new_length) {
  Sequence& sequence = const_cast<Sequence&>(find(id));
  if (new_length < 0 || new_length > sequence.length) {
    invalid(kOp, fmt::format("new_length is {}, must be from 0 to {}", new_length, sequence.length));
  }
  sequence.length = new_length;
  const std::size_t used = std::size_t((new_length + options_.page_size - 1) / options_.page_size);
  while (sequence.pages.size() > used) {
    release_page(sequence.pages.back());
    sequence.pages.pop_back();
  }
}

void KvPool::slots(SequenceId id, std::int64_t first, std::span<std::int64_t> slots) const {
  const Sequence& sequence = find(id);
  if (first < 0 || first > sequence.length || std::int64_t(slots.size()) > sequence.length - first) {
    invalid(kOp, fmt::format("tokens {} to {} are not all in sequence {} of {}", first,
                             first + std::int64_t(slots.size()), id, sequence.length));
  }
  write_slots(sequence, first, slots);
}

void KvPool::write_slots(const Sequence& sequence, std::int64_t first, std::span<std::int64_t> slots) const {
  const std::int64_t page_size = options_.page_size;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t token = first + std::int64_t(i);
    slots[i] = std::int64_t(sequence.pages[std::size_t(token / page_size)]) * page_size + token % page_size;
  }
}

void KvPool::check_layer(std::int64_t layer) const {
  if (layer < 0 || layer >= options_.num_layers) {
    invalid(kOp, fmt::format("layer is {}, must be from 0 to {}", layer, options_.num_layers - 1));
  }
}

KvPages KvPool::pages(std::int64_t layer) const {
  check_layer(layer);
  std::byte* k = memory_.data() + std::size_t(layer) * layer_bytes(options_);
  std::byte* v = k + plane_bytes(options_, options_.head_dim);
  const auto& o = options_;
  return {TensorView(k, o.dtype, {o.num_pages, o.num_kv_heads, o.page_size, o.head_dim}),
          TensorView(v, o.dtype, {o.num_pages, o.num_kv_heads, o.page_size, o.value_dim})};
}

void KvPool::copy_page(std::int32_t from, std::int32_t to, std::int64_t num_tokens) {
  const std::size_t element = element_bytes(options_.dtype);
  for (std::int64_t layer = 0; layer < options_.num_layers; ++layer) {
    const KvPages all = pages(layer);
    for (const TensorView* plane : {&all.k, &all.v}) {
      std::byte* base = static_cast<std::byte*>(plane->data());
      const std::size_t bytes = std::size_t(num_tokens * plane->stride(2)) * element;
      for (std::int64_t head = 0; head < options_.num_kv_heads; ++head) {
        std::memcpy(base + std::size_t(to * plane->stride(0) + head * plane->stride(1)) * element,
                    base + std::size_t(from * plane->stride(0) + head * plane->stride(1)) * element, bytes);
      }
    }
  }
}

PagedKvView KvPool::view(std::int64_t layer, std::span<const SequenceId> ids) const {
  PagedKvView view;
  select_layer(view, layer);
  view.sequences.reserve(ids.size());
  for (SequenceId id : ids) {
    const Sequence& sequence = find(id);
    view.sequences.push_back({sequence.pages.data(), std::int64_t(sequence.pages.size()), sequence.length});
  }
  return view;
}

void KvPool::select_layer(PagedKvView& view, std::int64_t layer) const {
  const KvPages all = pages(layer);
  view.k = all.k;
  view.v = all.v;
}

}  // namespace ops_transformer
