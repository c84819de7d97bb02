// SPDX-License-Identifier: Apache-2.0
#include "llm/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <ctime>
#include <functional>
#include <limits>
#include <map>

#include "llm/sampler.h"
#include "llm/tokenizer/bpe.h"
#include "llm/tokenizer/utf8.h"
#include "ops_transformer/base/error.h"
#include "tests/support/small_tokenizer.h"

namespace ops_transformer::llm {
namespace {

using test::GgufWriter;
using test::make_tokenizer;
using test::SmallTokenizer;
using test::SmallVocabulary;

std::vector<std::string> texts(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  std::vector<std::string> out;
  for (const TokenId id : ids) out.emplace_back(tokenizer.token_bytes(id));
  return out;
}
using Texts = std::vector<std::string>;

TEST(Tokenizer, MergesInRankOrder) {
  const SmallTokenizer small;
  const Tokenizer& tokenizer = small.tokenizer();
  const auto cut = [&](std::string_view text) { return texts(tokenizer, tokenizer.encode(text)); };
  EXPECT_EQ(cut("hello the"), (Texts{"hello", " the"}));
  EXPECT_EQ(cut("     x"), (Texts{"    ", " ", "x"}));
  EXPECT_EQ(cut("123"), (Texts{"1", "2", "3"}));  // smollm: digits stand alone
  EXPECT_EQ(cut("\u6b6a"), (Texts{"\u6b6a"}));
  EXPECT_EQ(cut("\n\n\n"), (Texts{"\n\n", "\n"}));
  EXPECT_EQ(cut(""), Texts{});
  const SmallTokenizer llama("llama-bpe");
  EXPECT_EQ(texts(llama.tokenizer(), llama.tokenizer().encode("123")), (Texts{"123"}));
}

/// Merge the best-ranked adjacent pair, leftmost first, until none is left: the definition, without cleverness.
Texts by_definition(const std::map<std::pair<std::string, std::string>, std::size_t>& rank, std::string_view text) {
  Texts symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    std::size_t best = std::numeric_limits<std::size_t>::max(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = rank.find({symbols[i], symbols[i + 1]});
      if (found != rank.end() && found->second < best) best = found->second, at = i;
    }
    if (best == std::numeric_limits<std::size_t>::max()) return symbols;
    symbols[at] += symbols[at + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Tokenizer, MergesAsDefined) {
  Random random(21);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    std::vector<std::string> known = {"a", "b", "c"}, merges, written;
    std::map<std::pair<std::string, std::string>, std::size_t> rank;
    for (int i = 0; i < 40; ++i) {
      const std::string left = known[random.next() % known.size()], right = known[random.next() % known.size()];
      if (left.size() + right.size() > 9 || rank.contains({left, right})) continue;
      const std::size_t next_rank = rank.size();
      rank[{left, right}] = next_rank;
      merges.push_back(left + " " + right);
      if (std::find(known.begin(), known.end(), left + right) == known.end()) {
        known.push_back(left + right);
        tokens.push_back(left + right);
      }
    }
    for (const std::string& token : tokens) written.push_back(test::byte_level(token));
    StringList token_list, merge_list;
    for (const std::string& token : written) token_list.push_back(token);
    for (const std::string& merge : merges) merge_list.push_back(merge);
    const Vocabulary vocabulary(token_list, std::vector<TokenType>(tokens.size(), TokenType::normal));
    const BytePairEncoder encoder(vocabulary, merge_list);
    BytePairEncoder::Scratch scratch;
    for (int sample = 0; sample < 20; ++sample) {
      std::string text;
      for (std::size_t len = random.next() % 40; len > 0; --len) text += static_cast<char>('a' + random.next() % 3);
      std::vector<TokenId> ids;
      EXPECT_EQ(encoder.encode(text, scratch, ids), 0u);
      Texts got;
      for (const TokenId id : ids) got.emplace_back(vocabulary.bytes(id));
      EXPECT_EQ(got, by_definition(rank, text)) << text;
    }
  }
}

TEST(Tokenizer, SpecialTokensAreNeverMadeFromText) {
  SmallVocabulary vocabulary;
  vocabulary.add("XY", 3);  // a control token that a merge would make, and one that is a whole pre-token
  vocabulary.merges.push_back("X Y");
  for (const char* pre : {"smollm", "default", "llama-bpe"}) {
    vocabulary.pre = pre;
    GgufWriter writer = vocabulary.writer();
    writer.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
    const Tokenizer tokenizer = make_tokenizer(writer);
    for (const std::string text : {"<|im_start|>user\n<|im_end|><tool>", "<|im_end|>", "XY", " XY", "<|endoftext|>"}) {
      const auto ids = tokenizer.encode(text);
      for (const TokenId id : ids) EXPECT_FALSE(tokenizer.is_special(id)) << text << ' ' << id;
      EXPECT_EQ(tokenizer.decode(ids), text);
    }
    const auto parsed = tokenizer.encode("<|im_start|>the<|im_end|><tool><|im_", {.parse_special = true});
    EXPECT_EQ(texts(tokenizer, parsed),
              (Texts{"<|im_start|>", "t", "he", "<|im_end|>", "<tool>", "<", "|", "i", "m", "_"}));
    EXPECT_EQ(tokenizer.decode(parsed), "the<tool><|im_");
    EXPECT_EQ(tokenizer.decode(parsed, {.skip_special = false}), "<|im_start|>the<|im_end|><tool><|im_");
  }
}

TEST(Tokenizer, LiteralPartsMakeNoSpecialTokens) {
  const SmallTokenizer small;
  const Tokenizer& tokenizer = small.tokenizer();
  const std::string text = "<|im_start|>the<|im_end|><|im_end|>";
  const auto cut = [&](const std::vector<TextRange>& literal) {
    const auto ids = tokenizer.encode(text, {.parse_special = true, .literal = literal});
    EXPECT_EQ(tokenizer.decode(ids, {.skip_special = false}), text);
    std::string out;  // what stands between the special tokens, those as #
    for (const TokenId id : ids) out += tokenizer.is_special(id) ? "#" : std::string(tokenizer.token_bytes(id));
    return out;
  };
  EXPECT_EQ(cut({}), "#the##");
  EXPECT_EQ(cut({{12, 25}}), "#the<|im_end|>#");
  EXPECT_EQ(cut({{12, 16}}), "#the<|im_end|>#");  // one byte is enough
  EXPECT_EQ(cut({{12, 12}, {15, 15}, {35, 35}}), "#the##");
  EXPECT_EQ(cut({{0, 12}, {34, 35}}), "<|im_start|>the#<|im_end|>");
  EXPECT_EQ(cut({{0, 35}}), text);
  // Plain text on both sides of a border is one text.
  const std::vector<TextRange> border = {{1, 4}};
  EXPECT_EQ(tokenizer.encode(" the", {.parse_special = true, .literal = border}), tokenizer.encode(" the"));
  for (const std::vector<TextRange>& bad :
       {std::vector<TextRange>{{0, 36}}, {{3, 2}}, {{4, 8}, {7, 9}}, {{40, 41}}, {{8, 9}, {0, 1}}}) {
    EXPECT_THROW(tokenizer.encode(text, {.parse_special = true, .literal = bad}), InvalidArgument);
  }
}

TEST(Tokenizer, LongestSpecialNameWins) {
  SmallVocabulary vocabulary;
  vocabulary.add("<a>", 3);
  vocabulary.add("<a><b>", 4);
  vocabulary.add("<a><b><", 4);
  const Tokenizer tokenizer = make_tokenizer(vocabulary.writer());
  const auto cut = [&](std::string_view text) {
    return texts(tokenizer, tokenizer.encode(text, {.parse_special = true}));
  };
  EXPECT_EQ(cut("<a><b>x<a><b"), (Texts{"<a><b>", "x", "<a>", "<", "b"}));
  EXPECT_EQ(cut("<<a><b><a>"), (Texts{"<", "<a><b><", "a", ">"}));
}

TEST(Tokenizer, AnyBytesRoundTrip) {
  for (const char* pre : {"smollm", "default", "llama-bpe"}) {
    const SmallTokenizer small(pre);
    const Tokenizer& tokenizer = small.tokenizer();
    std::vector<std::string> hostile = {
        "\xe6\xad", "\xff",      "\xc0\x80", "\xed\xa0\x80", std::string("a\0b", 3), "\xf4\x90\x80\x80",
        "the\xe6",  "\x80 \x80", "  x",      "3333333",      "\u2029 \ua3e4"};
    Random random(9);
    for (int round = 0; round < 3000; ++round) {
      std::string text;
      for (std::size_t len = random.next() % 50; len > 0; --len) text += static_cast<char>(random.next() >> 56);
      hostile.push_back(text);
    }
    for (const std::string& text : hostile) {
      std::size_t dropped = 99;
      const auto ids = tokenizer.encode(text, {.dropped_bytes = &dropped});
      EXPECT_EQ(tokenizer.decode(ids), text);
      EXPECT_EQ(dropped, 0u);
    }
  }
}

TEST(Tokenizer, BytesWithoutATokenAreCounted) {
  SmallVocabulary vocabulary;
  for (std::string& token : vocabulary.tokens) {
    if (token == test::byte_level("\xff") || token == test::byte_level("\x04")) token = "unused" + token;
  }
  const Tokenizer tokenizer = make_tokenizer(vocabulary.writer());
  std::size_t dropped = 0;
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("a\xff\x04"
                                              "b\xff",
                                              {.dropped_bytes = &dropped})),
            "ab");
  EXPECT_EQ(dropped, 3u);
}

TEST(Tokenizer, ExactlyOneBos) {
  const auto with = [](bool add_bos, bool add_eos) {
    GgufWriter writer = SmallVocabulary().writer();
    writer.add_u32("tokenizer.ggml.bos_token_id", 0).add_u32("tokenizer.ggml.eos_token_id", 2);
    writer.add_bool("tokenizer.ggml.add_bos_token", add_bos).add_bool("tokenizer.ggml.add_eos_token", add_eos);
    return make_tokenizer(writer);
  };
  const EncodeOptions both{.add_special = true, .parse_special = true};
  const Tokenizer adds = with(true, false), keeps = with(false, false), ends = with(true, true);
  EXPECT_EQ(texts(adds, adds.encode("<|endoftext|>a", both)), (Texts{"<|endoftext|>", "a"}));
  EXPECT_EQ(texts(keeps, keeps.encode("<|endoftext|>a", both)), (Texts{"<|endoftext|>", "a"}));
  EXPECT_EQ(texts(adds, adds.encode("a", both)), (Texts{"<|endoftext|>", "a"}));
  EXPECT_EQ(texts(keeps, keeps.encode("a", both)), (Texts{"a"}));
  EXPECT_EQ(texts(adds, adds.encode("a")), (Texts{"a"}));
  EXPECT_EQ(texts(ends, ends.encode("a<|im_end|>", both)), (Texts{"<|endoftext|>", "a", "<|im_end|>"}));
  EXPECT_EQ(texts(ends, ends.encode("", both)), (Texts{"<|endoftext|>", "<|im_end|>"}));
  EXPECT_TRUE(SmallTokenizer("llama-bpe").tokenizer().adds_bos());
  EXPECT_FALSE(SmallTokenizer("smollm").tokenizer().adds_bos());
}

TEST(Tokenizer, TokensOfTheFile) {
  GgufWriter writer = SmallVocabulary().writer();
  writer.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
  writer.add_u32("tokenizer.ggml.unknown_token_id", 0).add_u32("tokenizer.ggml.padding_token_id", 2);
  writer.add_u32("tokenizer.ggml.eot_token_id", 5).add_string("tokenizer.chat_template", "{{ x }}");
  Tokenizer moved = make_tokenizer(writer);
  const Tokenizer tokenizer = std::move(moved);
  EXPECT_EQ(tokenizer.vocab_size(), SmallVocabulary().tokens.size());
  EXPECT_EQ(tokenizer.bos(), 1);
  EXPECT_EQ(tokenizer.eos(), 2);
  EXPECT_EQ(tokenizer.pre_tokenizer(), "smollm");
  EXPECT_EQ(tokenizer.chat_template(), "{{ x }}");
  EXPECT_TRUE(tokenizer.warnings().empty());
  for (const TokenId id : {0, 2, 5}) EXPECT_TRUE(tokenizer.is_end_of_generation(id)) << id;
  EXPECT_FALSE(tokenizer.is_end_of_generation(1));
  EXPECT_FALSE(tokenizer.is_end_of_generation(-1));
  EXPECT_TRUE(tokenizer.is_special(5));  // named as a turn's end, so special whatever its type says
  EXPECT_FALSE(tokenizer.is_special(6));
  EXPECT_FALSE(tokenizer.is_special(1 << 30));
  EXPECT_EQ(tokenizer.find_token(" the"), tokenizer.encode(" the")[0]);
  EXPECT_EQ(tokenizer.find_token("not there"), std::nullopt);
  EXPECT_FALSE(tokenizer.adds_eos());
  for (const TokenId id : {-1, static_cast<TokenId>(tokenizer.vocab_size())}) {
    EXPECT_THROW(tokenizer.token_bytes(id), InvalidArgument);
    EXPECT_THROW(tokenizer.decode(std::vector<TokenId>{id}), InvalidArgument);
  }
}

TEST(Tokenizer, WhatTheFileLeavesOpenIsSaid) {
  SmallVocabulary vocabulary;
  vocabulary.pre = "";
  EXPECT_EQ(make_tokenizer(vocabulary.writer()).warnings().size(), 1u);
  GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", "gpt2").add_string("tokenizer.ggml.pre", "default");
  writer.add_strings("tokenizer.ggml.tokens", {"a"}).add_strings("tokenizer.ggml.merges", {});
  const Tokenizer tokenizer = make_tokenizer(writer);
  ASSERT_EQ(tokenizer.warnings().size(), 1u);
  EXPECT_NE(tokenizer.warnings()[0].find("tokenizer.ggml.token_type"), std::string::npos);
}

std::string refusal(const GgufWriter& writer) {
  try {
    make_tokenizer(writer);
  } catch (const InvalidFile& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Tokenizer, FilesThatDoNotFit) {
  const auto changed = [](const std::function<void(SmallVocabulary&)>& change) {
    SmallVocabulary vocabulary;
    change(vocabulary);
    return refusal(vocabulary.writer());
  };
  const auto added = [](const std::function<void(GgufWriter&)>& add) {
    GgufWriter writer = SmallVocabulary().writer();
    add(writer);
    return refusal(writer);
  };
  EXPECT_EQ(changed([](auto& v) { v.model = "bert"; }),
            "key 'tokenizer.ggml.model' names the unsupported tokenizer 'bert'; known are gpt2, llama, t5");
  EXPECT_EQ(changed([](auto& v) { v.pre = "foo"; }).substr(0, 67),
            "key 'tokenizer.ggml.pre' names the unknown pre-tokenizer 'foo'; kno");
  EXPECT_EQ(changed([](auto& v) { v.types.pop_back(); }),
            "key 'tokenizer.ggml.token_type' has 273 elements, tokenizer.ggml.tokens has 274");
  EXPECT_EQ(changed([](auto& v) { v.types[7] = 9; }),
            "key 'tokenizer.ggml.token_type': token 7 has type 9, known are 0 to 6");
  EXPECT_EQ(changed([](auto& v) { v.merges[3] = "ll"; }),
            "key 'tokenizer.ggml.merges': merge 3 'll' is not two tokens with a space between");
  EXPECT_EQ(changed([](auto& v) { v.merges[0] = "q "; }),
            "key 'tokenizer.ggml.merges': merge 0 'q ' is not two tokens with a space between");
  EXPECT_EQ(changed([](auto& v) { v.merges[0] = "q q"; }),
            "key 'tokenizer.ggml.merges': merge 0 'q q' needs a merged token that the vocabulary lacks");
  EXPECT_EQ(changed([](auto& v) { v.merges[0] = "qq q"; }),
            "key 'tokenizer.ggml.merges': merge 0 'qq q' needs a left token that the vocabulary lacks");
  EXPECT_EQ(changed([](auto& v) { v.merges[0] = "q qq"; }),
            "key 'tokenizer.ggml.merges': merge 0 'q qq' needs a right token that the vocabulary lacks");
  EXPECT_EQ(changed([](auto& v) { v.tokens.clear(), v.types.clear(); }), "key 'tokenizer.ggml.tokens' is empty");
  EXPECT_EQ(added([](auto& w) { w.add_u32("tokenizer.ggml.eos_token_id", 274); }),
            "key 'tokenizer.ggml.eos_token_id' is 274, the vocabulary has 274 tokens");
  EXPECT_EQ(added([](auto& w) { w.add_bool("tokenizer.ggml.add_bos_token", true); }),
            "key 'tokenizer.ggml.bos_token_id' is missing, the model asks for BOS");
  EXPECT_EQ(added([](auto& w) { w.add_bool("tokenizer.ggml.add_eos_token", true); }),
            "key 'tokenizer.ggml.eos_token_id' is missing, the model asks for EOS");
  EXPECT_EQ(added([](auto& w) { w.add_tensor("token_embd.weight", DType::f32, {270, 1}, std::string(1080, 'e')); }),
            "key 'tokenizer.ggml.tokens' has 274 tokens, tensor 'token_embd.weight' has 270 rows");
  EXPECT_EQ(refusal(GgufWriter()), "key 'tokenizer.ggml.model' is missing");
}

TEST(Tokenizer, HostileNamesAreShownSafely) {
  const std::string hostile = "\x1b[2J\xff" + std::string(1 << 20, 'x');
  SmallVocabulary model, pre, merge;
  model.model = pre.pre = merge.merges[3] = hostile;
  for (const SmallVocabulary& vocabulary : {model, pre, merge}) {
    const std::string message = refusal(vocabulary.writer());
    EXPECT_NE(message.find("'" + shown(hostile) + "'"), std::string::npos) << message.substr(0, 300);
    EXPECT_LT(message.size(), 500u);
  }
}

TEST(Tokenizer, LongPreTokensTakeLittleTime) {
  const SmallTokenizer small;
  for (const std::string unit : {" ", "l", "the", "\xff"}) {
    std::string text;
    while (text.size() < 1'000'000) text += unit;
    const std::clock_t start = std::clock();
    const auto ids = small.tokenizer().encode(text);
    EXPECT_LT(double(std::clock() - start) / CLOCKS_PER_SEC, 5.0) << unit;
    EXPECT_EQ(small.tokenizer().decode(ids), text);
  }
}

}  // namespace
}  // namespace ops_transformer::llm
