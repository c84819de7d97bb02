// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "ops_transformer/base/memory.h"
#include "ops_transformer/kv_cache/paged_kv_view.h"

namespace ops_transformer {

struct KvPoolOptions {
  std::int64_t num_layers = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;   // 0: head_dim
  std::int64_t page_size = 64;  // tokens in a page
  std::int64_t num_pages = 0;
  DType dtype = DType::bf16;  // f32 | bf16
};

using SequenceId = std::int64_t;

/// Where the rows of one layer lie; slot s is page s / page_size, row s % page_size.
struct KvPages {
  TensorView k;  // [num_pages, num_kv_heads, page_size, head_dim]
  TensorView v;  // [num_pages, num_kv_heads, page_size, value_dim]
};

/// A fixed number of pages shared by sequences. A page holds page_size tokens of every layer; sequences made by fork
/// share pages by reference count, and a shared page that is about to be written is copied first. Ids are never used
/// twice. Not thread-safe; memory is mapped at once and paid for when first written.
class OPS_TRANSFORMER_API KvPool {
 public:
  /// Throws InvalidArgument (an option out of range, or all together past 2^63 bytes), std::bad_alloc.
  explicit KvPool(const KvPoolOptions& options);

  /// Bytes that a pool with these options maps. Throws InvalidArgument.
  static std::size_t required_bytes(const KvPoolOptions& options);

  const KvPoolOptions& options() const noexcept { return options_; }
  std::int64_t num_free_pages() const noexcept { return std::int64_t(free_pages_.size()); }
  std::int64_t num_sequences() const noexcept { return std::int64_t(sequences_.size()); }

  // Every function below throws InvalidArgument for an id that is not in the pool.

  SequenceId add_sequence();
  void remove_sequence(SequenceId id);

  /// A new sequence with the same tokens, all pages shared.
  SequenceId fork(SequenceId id);

  /// Tokens in the sequence.
  std::int64_t length(SequenceId id) const;

  /// Makes room for num_tokens more, so that the next append of up to that many can't fail; copies a shared last page.
  /// Throws ResourceExhausted where pages run out; then nothing has changed and every sequence is usable as before.
  void reserve(SequenceId id, std::int64_t num_tokens);

  /// Lengthens the sequence (reserving what is missing, with reserve's errors) by slots.size() tokens and gives the
  /// slot of each: what kv_write and rope_kv_write take. What the slots hold is undefined until written.
  void append(SequenceId id, std::span<std::int64_t> slots);

  /// Drops the tokens from `new_length` on, and reserved pages with them. new_length in [0, length].
  void truncate(SequenceId id, std::int64_t new_length);

  /// Slots of tokens [first, first + slots.size()), which must be in the sequence.
  void slots(SequenceId id, std::int64_t first, std::span<std::int64_t> slots) const;

  /// The pages of one layer, [num_pages, num_kv_heads, page_size, dim].
  KvPages pages(std::int64_t layer) const;

  /// What attention reads: valid until one of the sequences changes.
  PagedKvView view(std::int64_t layer, std::span<const SequenceId> ids) const;
  /// Turns a view of this pool to another layer, without allocating.
  void select_layer(PagedKvView& view, std::int64_t layer) const;

 private:
  struct Sequence {
    std::vector<std::int32_t> pages;
    std::int64_t length = 0;
  };
  const Sequence& find(SequenceId id) const;
  void check_layer(std::int64_t layer) const;
  std::int32_t take_page();
  void release_page(std::int32_t page);
  void copy_page(std::int32_t from, std::int32_t to, std::int64_t num_tokens);
  void write_slots(const Sequence& sequence, std::int64_t first, std::span<std::int64_t> slots) const;

  KvPoolOptions options_;
  Buffer memory_;
  std::vector<std::int32_t> ref_counts_;
  std::vector<std::int32_t> free_pages_;  // the last one is taken next
  std::unordered_map<SequenceId, Sequence> sequences_;
  SequenceId next_id_ = 0;
};

}  // namespace ops_transformer
