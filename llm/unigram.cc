// SPDX-License-Identifier: Apache-2.0
#include "llm/unigram.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "llm/utf8.h"

namespace ops_transformer::llm {

UnigramEncoder::UnigramEncoder(const Vocabulary& vocabulary, const std::vector<float>& scores, const Fallback& fallback)
    : fallback_(fallback), scores_(scores), user_defined_(scores.size()) {
  std::vector<std::pair<std::string_view, TokenId>> texts;
  float min_score = std::numeric_limits<float>::max(), max_score = std::numeric_limits<float>::lowest();
  for (TokenId id = 0; id < static_cast<TokenId>(vocabulary.size()); ++id) {
    if (!vocabulary.is_text(id)) continue;
    texts.emplace_back(vocabulary.bytes(id), id);
    user_defined_[static_cast<std::size_t>(id)] = vocabulary.type(id) == TokenType::user_defined;
    if (user_defined_[static_cast<std::size_t>(id)]) continue;
    min_score = std::min(min_score, scores[static_cast<std::size_t>(id)]);
    max_score = std::max(max_score, scores[static_cast<std::size_t>(id)]);
  }
  if (min_score <= max_score) {
    unknown_score_ = min_score - 10.0f;
    max_score_ = max_score;
  }
  tokens_ = PrefixTrie(std::move(texts));
}

std::size_t UnigramEncoder::encode(std::string_view text, std::vector<TokenId>& out) const {
  struct Best {
    float score = 0;
    std::uint32_t len = 0;  // of the last token; 0: no cut ends here
    TokenId token = kNoToken;
  };
  std::vector<Best> best(text.size() + 1);
  for (std::size_t pos = 0; pos < text.size();) {
    const Utf8Step step = utf8_step(text.substr(pos));
    const std::size_t character_len = step.kind == Utf8Step::Kind::valid ? step.len : 1;
    const float before = best[pos].score;
    bool has_character = false;
    const auto offer = [&](std::size_t len, float candidate, TokenId token) {
      Best& end = best[pos + len];
      if (end.len == 0 || candidate > end.score) {
        end = {candidate, static_cast<std::uint32_t>(len), token};
      }
    };
    tokens_.for_each_prefix(text.substr(pos), [&](std::size_t len, TokenId token) {
      const auto i = static_cast<std::size_t>(token);
      // SentencePiece's bonus for user-defined tokens, in its precision: the order of equally good cuts rests on it.
      offer(len,
            user_defined_[i] ? static_cast<float>((static_cast<float>(len) * max_score_ - 0.1) + before)
                             : scores_[i] + before,
            token);
      has_character |= len == character_len;
    });
    if (!has_character) offer(character_len, unknown_score_ + before, kNoToken);
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
