// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/sentencepiece_bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {
namespace {

constexpr std::uint32_t kEnd = std::numeric_limits<std::uint32_t>::max();

/// Larger floats give smaller integers.
std::uint32_t descending(float score) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(score == 0 ? 0.0f : score);
  return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

struct Symbol {
  std::uint32_t begin, len;  // len 0: joined to the one before
  std::uint32_t previous, next;
};

}  // namespace

SentencePieceBpe::SentencePieceBpe(const Vocabulary& vocabulary, const std::vector<double>& scores,
                                   const Fallback& fallback)
    : vocabulary_(&vocabulary), fallback_(fallback), order_(scores.size()) {
  std::transform(scores.begin(), scores.end(), order_.begin(),
                 [](double score) { return descending(static_cast<float>(score)); });
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (vocabulary.is_text(id)) max_len_ = std::max(max_len_, vocabulary.bytes(id).size());
  }
}

std::size_t SentencePieceBpe::encode(std::string_view text, std::vector<TokenId>& out) const {
  const std::size_t begin = out.size();
  std::vector<Symbol> symbols;
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text.substr(pos));
    // A byte that is no character stands alone, so that its own token can take it.
    const std::size_t len = step.kind == Utf8Step::Kind::valid ? step.len : 1;
    const auto i = static_cast<std::uint32_t>(symbols.size());
    symbols.push_back({static_cast<std::uint32_t>(pos), static_cast<std::uint32_t>(len), i > 0 ? i - 1 : kEnd, i + 1});
    pos += len;
  }
  if (symbols.empty()) return 0;
  symbols.back().next = kEnd;
  // Smallest first: score, then position. `joined` tells an entry whose neighbours have changed since.
  struct Entry {
    std::uint64_t key;
    std::uint32_t joined;
    bool operator>(const Entry& other) const noexcept { return key > other.key; }
  };
  std::vector<Entry> heap;
  const auto offer = [&](std::uint32_t left) {
    const std::uint32_t right = symbols[left].next;
    if (left == kEnd || right == kEnd) return false;
    const std::uint32_t len = symbols[left].len + symbols[right].len;
    if (len > max_len_) return false;
    const TokenId token = vocabulary_->find_text(text.substr(symbols[left].begin, len));
    if (token == kNoToken) return false;
    heap.push_back({static_cast<std::uint64_t>(order_[static_cast<std::size_t>(token)]) << 32 | left, len});
    return true;
  };
  for (std::uint32_t i = 0; i + 1 < symbols.size(); ++i) offer(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Entry best = heap.back();
    heap.pop_back();
    const auto left = static_cast<std::uint32_t>(best.key);
    const std::uint32_t right = symbols[left].next;
    if (symbols[left].len == 0 || right == kEnd || symbols[left].len + symbols[right].len != best.joined) continue;
    symbols[left].len = best.joined;
    symbols[left].next = symbols[right].next;
    symbols[right].len = 0;
    if (symbols[left].next != kEnd) {
      symbols[symbols[left].next].previous = left;
      if (offer(left)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    if (symbols[left].previous != kEnd && offer(symbols[left].previous)) {
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  }
  std::size_t left_out = 0;
  for (std::uint32_t i = 0; i != kEnd; i = symbols[i].next) {
    const std::string_view piece = text.substr(symbols[i].begin, symbols[i].len);
    const TokenId token = vocabulary_->find_text(piece);
    if (token != kNoToken) {
      out.push_back(token);
    } else {
      left_out += fallback_.append(piece, out, begin);
    }
  }
  return left_out;
}

}  // namespace ops_transformer::llm
