// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/unigram.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "llm/tokenizer/utf8.h"

namespace ops_transformer::llm {

UnigramEncoder::UnigramEncoder(const Vocabulary& vocabulary, const TokenizerData& data, const Fallback& fallback)
    : fallback_(fallback), scores_(data.scores), user_defined_(scores_.size()), in_double_(data.sums_in_double) {
  std::vector<bool> added(scores_.size());
  for (const AddedToken& token : data.added) added[static_cast<std::size_t>(token.id)] = true;
  std::vector<std::pair<std::string_view, TokenId>> texts;
  double min_score = std::numeric_limits<double>::max(), max_score = std::numeric_limits<double>::lowest();
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    const auto i = static_cast<std::size_t>(id);
    user_defined_[i] = vocabulary.type(id) == TokenType::user_defined;
    if (!vocabulary.is_text(id) || (user_defined_[i] && added[i])) continue;
    texts.emplace_back(vocabulary.bytes(id), id);
    if (user_defined_[i]) continue;
    min_score = std::min(min_score, scores_[i]);
    max_score = std::max(max_score, scores_[i]);
  }
  if (min_score <= max_score) {
    unknown_score_ = min_score - 10;
    max_score_ = max_score;
  }
  tokens_ = PrefixTrie(std::move(texts));
}

std::size_t UnigramEncoder::encode(std::string_view text, std::vector<TokenId>& out) const {
  return in_double_ ? encode_as<double>(text, out) : encode_as<float>(text, out);
}

template <class Real>
std::size_t UnigramEncoder::encode_as(std::string_view text, std::vector<TokenId>& out) const {
  struct Best {
    Real score = 0;
    std::uint32_t len = 0;  // of the last token; 0: no cut ends here
    TokenId token = kNoToken;
  };
  std::vector<Best> best(text.size() + 1);
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text.substr(pos));
    const std::size_t character_len = step.kind == Utf8Step::Kind::valid ? step.len : 1;
    const Real before = best[pos].score;
    bool has_character = false;
    // Which of equally good cuts comes out rests on the precision of these sums.
    const auto offer = [&](std::size_t len, double score, TokenId token) {
      Best& end = best[pos + len];
      const Real candidate = static_cast<Real>(score) + before;
      if (end.len == 0 || candidate > end.score) end = {candidate, static_cast<std::uint32_t>(len), token};
    };
    tokens_.for_each_prefix(text.substr(pos), [&](std::size_t len, TokenId token) {
      const auto i = static_cast<std::size_t>(token);
      // SentencePiece's bonus for user-defined tokens.
      offer(len, user_defined_[i] ? static_cast<double>(len) * max_score_ - 0.1 : scores_[i], token);
      has_character |= len == character_len;
    });
    if (!has_character) offer(character_len, unknown_score_, kNoToken);
    pos += character_len;
  }
  std::vector<std::uint32_t> cuts;
  for (std::size_t end = text.size(); end > 0; end -= best[end].len) cuts.push_back(static_cast<std::uint32_t>(end));
  const std::size_t begin = out.size();
  std::size_t left_out = 0;
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const Best& last = best[*cut];
    if (last.token != kNoToken) {
      out.push_back(last.token);
    } else {
      left_out += fallback_.append(text.substr(*cut - last.len, last.len), out, begin);
    }
  }
  return left_out;
}

}  // namespace ops_transformer::llm
