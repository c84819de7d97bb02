// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/text_stream.h"

#include <gtest/gtest.h>

#include "llm/sampler.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/small_tokenizer.h"

namespace ops_transformer::llm {
namespace {

TEST(Utf8, WellFormedSequences) {
  using Kind = Utf8Step::Kind;
  const auto expect = [](std::string_view text, Kind kind, std::size_t len) {
    const Utf8Step step = utf8_step(text);
    EXPECT_EQ(step.kind, kind) << testing::PrintToString(text);
    EXPECT_EQ(step.len, len) << testing::PrintToString(text);
  };
  expect("a\x80", Kind::valid, 1);
  expect("\xc2\x80", Kind::valid, 2);
  expect("\xed\x9f\xbf", Kind::valid, 3);
  expect("\xf4\x8f\xbf\xbf", Kind::valid, 4);
  expect("\xc0\x80", Kind::invalid, 1);          // overlong
  expect("\xe0\x9f\xbf", Kind::invalid, 1);      // overlong
  expect("\xf0\x8f\xbf\xbf", Kind::invalid, 1);  // overlong
  expect("\xed\xa0\x80", Kind::invalid, 1);      // surrogate
  expect("\xf4\x90\x80\x80", Kind::invalid, 1);  // past U+10FFFF
  expect("\xff", Kind::invalid, 1);
  expect("\x80", Kind::invalid, 1);
  expect("\xe6\xad", Kind::incomplete, 2);
  expect(
      "\xe6\xad"
      "a",
      Kind::invalid, 2);
  expect("\xf0\x9f\x98", Kind::incomplete, 3);
  EXPECT_EQ(utf8_valid_len("12345678é漢\xff"), 13u);
  EXPECT_EQ(utf8_valid_len(""), 0u);
}

TEST(Utf8, ShownIsSafeAndBounded) {
  EXPECT_EQ(shown("naïve 漢"), "naïve 漢");
  EXPECT_EQ(shown("a\n\x1b[2J\x7f\"\\"), "a\\n\\x1b[2J\\x7f\\\"\\\\");
  EXPECT_EQ(shown("\u009b31m"), "\\u009b31m");
  EXPECT_EQ(shown("a\xff\xe6\xad"), "a\ufffd\ufffd");
  EXPECT_EQ(shown(std::string(99, 'a') + "é"), std::string(99, 'a') + "é");  // no character is cut
  EXPECT_EQ(shown(std::string(101, 'a')), std::string(100, 'a') + "…");
  EXPECT_EQ(shown("aaaa", 4), "aaaa");
  EXPECT_LT(shown(std::string(1 << 20, '\x01')).size(), 110u);
}

TEST(Utf8Stream, HoldsAnOpenCharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\xe6\xad"), "");
  EXPECT_EQ(stream.push("\xaa"), "\u6b6a");
  EXPECT_EQ(stream.push("\xf0\x9f\x98\x80\xf0\x9f"), "\U0001F600");
  EXPECT_EQ(stream.push("\x98\x81"), "\U0001F601");
  EXPECT_EQ(stream.push("\xf0\x9f"), "");
  EXPECT_EQ(stream.finish(), "\ufffd");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push("a"), "a");
}

TEST(Utf8Stream, ReplacesWhatCannotBecomeACharacter) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xff"
                        "b"),
            "a\ufffd"
            "b");
  EXPECT_EQ(stream.push("\xe6\xad"), "");
  EXPECT_EQ(stream.push("x"), "\ufffdx");
  EXPECT_EQ(stream.push("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");  // as Python's decoder: three
}

std::string streamed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces, bool* stopped) {
  StopMatcher matcher(stops);
  std::string out;
  for (const std::string& piece : pieces) out += matcher.push(piece);
  *stopped = matcher.stopped();
  return out + matcher.finish();
}

TEST(StopMatcher, StopOverSeveralPieces) {
  StopMatcher matcher(std::vector<std::string>{"DEFGHIJ"});
  EXPECT_EQ(matcher.push("ABC"), "ABC");
  EXPECT_EQ(matcher.push("DEF"), "");
  EXPECT_EQ(matcher.push("G"), "");
  EXPECT_EQ(matcher.push("HI"), "");
  EXPECT_EQ(matcher.push("JK"), "");
  EXPECT_TRUE(matcher.stopped());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
  StopMatcher open(std::vector<std::string>{"DEFGHIJ"});
  EXPECT_EQ(open.push("ABCDEF"), "ABC");
  EXPECT_FALSE(open.stopped());
  EXPECT_EQ(open.finish(), "DEF");
}

TEST(StopMatcher, OverlapsAndSeveralStops) {
  bool stopped = false;
  EXPECT_EQ(streamed({"aab"}, {"a", "a", "a", "b"}, &stopped), "a");
  EXPECT_TRUE(stopped);
  EXPECT_EQ(streamed({"abcdef", "cd"}, {"xabcd"}, &stopped), "xab");
  EXPECT_EQ(streamed({"cd", "bcd"}, {"xabcd"}, &stopped), "xa");
  EXPECT_EQ(streamed({"\n\n"}, {"a\n", "b\n", "\nc"}, &stopped), "a\nb");
  EXPECT_EQ(streamed({"zz"}, {"a", "z", "", "b"}, &stopped), "azb");
  EXPECT_FALSE(stopped);
  EXPECT_EQ(streamed({}, {"a", "b"}, &stopped), "ab");
  EXPECT_THROW(StopMatcher(std::vector<std::string>{"a", ""}), InvalidArgument);
}

TEST(StopMatcher, PiecesNeverMatter) {
  Random random(11);
  for (int round = 0; round < 2000; ++round) {
    const auto word = [&](std::size_t len) {
      std::string text;
      for (std::size_t i = 0; i < len; ++i) text += static_cast<char>('a' + random.next() % 2);
      return text;
    };
    std::vector<std::string> stops;
    for (std::size_t i = 0; i < 1 + random.next() % 3; ++i) stops.push_back(word(1 + random.next() % 6));
    const std::string text = word(30);
    std::vector<std::string> pieces;
    for (std::size_t pos = 0; pos < text.size();) {
      pieces.push_back(text.substr(pos, random.next() % 5));
      pos += pieces.back().size();
    }
    // By definition: the first end at which some stop is complete, cut at the longest of those.
    std::string want = text;
    bool want_stopped = false;
    for (std::size_t end = 1; end <= text.size() && !want_stopped; ++end) {
      for (const std::string& stop : stops) {
        if (!text.substr(0, end).ends_with(stop)) continue;
        want_stopped = true;
        want.resize(std::min(want.size(), end - stop.size()));
      }
    }
    bool stopped = false;
    EXPECT_EQ(streamed(stops, pieces, &stopped), want);
    EXPECT_EQ(stopped, want_stopped);
  }
}

TEST(TextStream, TokensToText) {
  const test::SmallTokenizer small;
  const Tokenizer& tokenizer = small.tokenizer();
  TextStream stream(tokenizer, std::vector<std::string>{"end"});
  std::string out;
  for (const TokenId id : tokenizer.encode("x\u6b6a en en")) out += stream.push(id);
  EXPECT_EQ(out, "x\u6b6a en ");
  EXPECT_EQ(stream.push(*tokenizer.find_token("<|im_end|>")), "");
  for (const TokenId id : tokenizer.encode("d!")) out += stream.push(id);
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(out + stream.finish(), "x\u6b6a en ");
  TextStream open(tokenizer);
  out = open.push(tokenizer.encode("\xf0")[0]);
  EXPECT_EQ(out + open.finish(), "\ufffd");
  EXPECT_THROW(open.push(-1), InvalidArgument);
}

}  // namespace
}  // namespace ops_transformer::llm
