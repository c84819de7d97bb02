// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/pre_tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include "llm/sampler.h"
#include "llm/tokenizer/pre_tokenizer_rules.h"
#include "ops_transformer/base/error.h"
#include "tests/support/pre_tokenizer_golden.h"

namespace ops_transformer::llm {
namespace {

PreTokenizer named(std::string_view name) { return PreTokenizer(find_pre_tokenizer_rule(name).splits); }

std::vector<std::string> pieces(const PreTokenizer& rule, std::string_view text) {
  std::vector<std::string> out;
  rule.split(text, true, [&](std::string_view piece) { out.emplace_back(piece); });
  return out;
}

TEST(PreTokenizer, CutsAsTokenizersDoes) {
  for (const test::PreTokenizerGolden& golden : test::kPreTokenizerGolden) {
    std::vector<int> lens;
    for (const std::string& piece : pieces(named(golden.rule), golden.text)) {
      lens.push_back(static_cast<int>(piece.size()));
    }
    EXPECT_EQ(lens, golden.lens) << golden.rule << ": " << golden.text;
  }
}

TEST(PreTokenizer, UnknownRuleIsNamed) {
  try {
    find_pre_tokenizer_rule("qwen3");
    FAIL() << "accepted";
  } catch (const InvalidFile& error) {
    EXPECT_STREQ(
        error.what(),
        "key 'tokenizer.ggml.pre' names the unknown pre-tokenizer 'qwen3'; known are gpt-2, default, phi-2, "
        "olmo, mpt, smollm, starcoder, refact, command-r, llama-bpe, llama3, llama-v3, dbrx, smaug-bpe, qwen2, "
        "deepseek-r1-qwen, gpt-4o, tekken, falcon, deepseek-llm, deepseek-coder, deepseek-v3");
  }
}

TEST(PreTokenizer, InvalidBytesAreOnePiece) {
  for (const char* name : {"smollm", "default", "llama-bpe"}) {
    const PreTokenizer rule = named(name);
    EXPECT_EQ(pieces(rule, "ab\xe6\xad"), (std::vector<std::string>{"ab", "\xe6\xad"}));
    EXPECT_EQ(pieces(rule, "\xff\xc0\x80x"), (std::vector<std::string>{"\xff\xc0\x80", "x"}));
    EXPECT_EQ(pieces(rule,
                     "a\xed\xa0\x80"
                     "b"),
              (std::vector<std::string>{"a", "\xed\xa0\x80", "b"}));
    EXPECT_EQ(pieces(rule, ""), std::vector<std::string>{});
    EXPECT_EQ(pieces(rule, std::string_view("a\0\0b", 4)), (std::vector<std::string>{"a", std::string(2, '\0'), "b"}));
  }
}

TEST(PreTokenizer, PiecesAreTheText) {
  Random random(5);
  for (const char* name : {"smollm", "default", "llama-bpe"}) {
    const PreTokenizer rule = named(name);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (std::size_t len = random.next() % 40; len > 0; --len) text += static_cast<char>(random.next() >> 56);
      std::string joined;
      for (const std::string& piece : pieces(rule, text)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      EXPECT_EQ(joined, text);
    }
  }
}

std::string repeated(std::string_view unit, std::size_t size) {
  std::string text;
  while (text.size() < size) text += unit;
  return text + "x";
}

/// Processor time that cutting takes, seconds.
double cutting_time(const PreTokenizer& rule, const std::string& text) {
  const std::clock_t start = std::clock();
  std::size_t total = 0;
  rule.split(text, true, [&](std::string_view piece) { total += piece.size(); });
  EXPECT_EQ(total, text.size());
  return double(std::clock() - start) / CLOCKS_PER_SEC;
}

// Sixteen times the text would take 256 times as long if each character looked at all those before it.
TEST(PreTokenizer, LongRunsTakeLinearTime) {
  constexpr std::size_t kGrowth = 16, kShort = 1 << 16;
  for (const PreTokenizerRule& known : pre_tokenizer_rules()) {
    const std::string name(known.names.front());
    const PreTokenizer rule = named(name);
    for (const std::string unit : {" ", "\n", "a", "A", "1", "!", " \n", "\xff", "'", "\xcc\x81", "漢A"}) {
      const std::string text = repeated(unit, kShort);
      double least = cutting_time(rule, text);
      for (int round = 0; round < 2; ++round) least = std::min(least, cutting_time(rule, text));
      const double clock_tick = 1e-3;  // what the system counts processor time by, and more
      EXPECT_LT(cutting_time(rule, repeated(unit, kGrowth * kShort)), 4 * kGrowth * (least + clock_tick))
          << name << " of '" << unit << "'";
    }
  }
}

TEST(PreTokenizer, TwentyMegabytesOfSpacesAreCut) {
  for (const char* name : {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-llm"}) {
    cutting_time(named(name), repeated(" ", 20'000'000));
  }
}

}  // namespace
}  // namespace ops_transformer::llm
