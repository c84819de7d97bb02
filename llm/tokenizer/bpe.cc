// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"

namespace ops_transformer::llm {
namespace {

constexpr std::uint32_t kNoRank = std::numeric_limits<std::uint32_t>::max();
constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();

}  // namespace

BytePairEncoder::BytePairEncoder(const Vocabulary& vocabulary, const StringList& merges,
                                 std::optional<Fallback> fallback)
    : vocabulary_(&vocabulary), fallback_(std::move(fallback)), seed_(hash_seed()) {
  for (int byte = 0; byte < 256; ++byte) {
    const char text = static_cast<char>(byte);
    byte_tokens_[static_cast<std::size_t>(byte)] = vocabulary.find_text({&text, 1});
  }
  table_.assign(std::bit_ceil(merges.size() * 2 + 1), Merge{kNoToken, kNoToken, kNoRank, kNoToken});
  std::string bytes;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const std::size_t space = merge.find(' ', 1);
    const auto refuse = [&](std::string_view why) {
      throw InvalidFile(fmt::format("key 'tokenizer.ggml.merges': merge {} '{}' {}", rank, shown(merge), why));
    };
    if (space == std::string_view::npos || space + 1 == merge.size()) refuse("is not two tokens with a space between");
    bytes.clear();
    vocabulary.append_bytes(merge.substr(0, space), bytes);
    const std::size_t left_len = bytes.size();
    vocabulary.append_bytes(merge.substr(space + 1), bytes);
    const std::string_view both = bytes;
    const TokenId left = vocabulary.find(both.substr(0, left_len));
    const TokenId right = vocabulary.find(both.substr(left_len));
    const TokenId result = vocabulary.find(both);
    if (left == kNoToken || right == kNoToken || result == kNoToken) {
      refuse(fmt::format("needs a {} token that the vocabulary lacks", left == kNoToken    ? "left"
                                                                       : right == kNoToken ? "right"
                                                                                           : "merged"));
    }
    if (vocabulary.is_special(result)) continue;
    auto& entry = const_cast<Merge&>(find(left, right));
    if (entry.rank == kNoRank) entry = {left, right, static_cast<std::uint32_t>(rank), result};
  }
}

const BytePairEncoder::Merge& BytePairEncoder::find(TokenId left, TokenId right) const noexcept {
  const std::size_t mask = table_.size() - 1;
  std::uint64_t hash =
      (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right)) ^ seed_;
  hash *= 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  hash *= 0xbf58476d1ce4e5b9u;
  std::size_t at = (hash >> 24) & mask;
  while (table_[at].rank != kNoRank && (table_[at].left != left || table_[at].right != right)) at = (at + 1) & mask;
  return table_[at];
}

std::size_t BytePairEncoder::begin(std::string_view piece, Scratch& scratch) const {
  std::vector<TokenId>& id = scratch.id;
  id.clear();
  std::size_t left_out = 0;
  if (!fallback_) {
    for (const char c : piece) {
      const TokenId token = byte_tokens_[static_cast<unsigned char>(c)];
      if (token != kNoToken) id.push_back(token);
    }
    return piece.size() - id.size();
  }
  while (!piece.empty()) {
    const Utf8Step step = utf8_step(piece);
    const std::string_view character = piece.substr(0, step.kind == Utf8Step::Kind::valid ? step.len : 1);
    const TokenId token = vocabulary_->find_text(character);
    if (token != kNoToken) {
      id.push_back(token);
    } else {
      left_out += fallback_->append(character, id, 0);
    }
    piece.remove_prefix(character.size());
  }
  return left_out;
}

std::size_t BytePairEncoder::encode(std::string_view piece, Scratch& scratch, std::vector<TokenId>& out) const {
  const std::size_t left_out = begin(piece, scratch);
  auto& [id, next, previous, heap] = scratch;
  const auto num = static_cast<std::uint32_t>(id.size());
  if (num < 2) {
    out.insert(out.end(), id.begin(), id.end());
    return left_out;
  }
  next.resize(num);
  previous.resize(num);
  heap.clear();
  // Smallest first: rank, then position. An entry is stale when its pair has changed since; its rank tells.
  const auto offer = [&](std::uint32_t at) {
    const Merge& merge = find(id[at], id[next[at]]);
    if (merge.rank == kNoRank) return false;
    heap.push_back(static_cast<std::uint64_t>(merge.rank) << 32 | at);
    return true;
  };
  for (std::uint32_t i = 0; i < num; ++i) {
    next[i] = i + 1 < num ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
  }
  for (std::uint32_t i = 0; i + 1 < num; ++i) offer(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const std::uint64_t best = heap.back();
    heap.pop_back();
    const auto at = static_cast<std::uint32_t>(best);
    if (id[at] == kNoToken || next[at] == kEnd) continue;
    const std::uint32_t right = next[at];
    const Merge& merge = find(id[at], id[right]);
    if (merge.rank != best >> 32) continue;
    id[at] = merge.result;
    id[right] = kNoToken;
    next[at] = next[right];
    if (next[at] != kEnd) {
      previous[next[at]] = at;
      if (offer(at)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    if (previous[at] != kEnd && offer(previous[at])) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (std::uint32_t i = 0; i != kEnd; i = next[i]) out.push_back(id[i]);
  return left_out;
}

}  // namespace ops_transformer::llm
