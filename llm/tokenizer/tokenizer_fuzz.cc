// SPDX-License-Identifier: Apache-2.0
// feeds: llm/tokenizer/tokenizer.cc llm/tokenizer/tokenizer_gguf.cc llm/tokenizer/bpe.cc llm/tokenizer/fallback.cc
// feeds: llm/tokenizer/vocabulary.cc llm/tokenizer/utf8.cc llm/tokenizer/text_stream.cc llm/tokenizer/prefix_trie.cc
// feeds: llm/tokenizer/sentencepiece_bpe.cc llm/tokenizer/unigram.cc llm/tokenizer/charsmap.cc
// feeds: llm/tokenizer/added_tokens.cc llm/chat_template.cc llm/chat_format.cc
#include "llm/tokenizer/tokenizer.h"

#include <fmt/format.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "llm/chat_template.h"
#include "llm/tokenizer/text_stream.h"
#include "llm/tokenizer/utf8.h"
#include "tests/support/fuzz.h"
#include "tests/support/small_tokenizer.h"

namespace ops_transformer::llm {
namespace {

/// Text from all that is left: bytes as they are, but for some control bytes that stand for what a tokenizer treats
/// specially and chance would seldom spell.
std::string any_text(FuzzedDataProvider& input) {
  static const std::array<std::string_view, 16> kFragments = {
      "<|im_start|>", "<|im_end|>", "<tool>", "<|endoftext|>", " the", "hello",  "    ",     "123",
      "'LL",          "\n\n",       "\r\n",   "\xe6\xad",      "漢",   "\u0301", "\u200d👩", "\u2029"};
  std::string text;
  for (const std::uint8_t byte : input.ConsumeRemainingBytes<std::uint8_t>()) {
    if (byte >= 0x10 && byte < 0x20) {
      text += kFragments[byte - 0x10];
    } else {
      text += static_cast<char>(byte);
    }
  }
  return text;
}

/// Bytes with each malformed sequence replaced, from the definition of utf8_step alone.
std::string replaced(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    out += step.kind == Utf8Step::Kind::valid ? bytes.substr(0, step.len) : kReplacementCharacter;
    bytes.remove_prefix(step.len);
  }
  return out;
}

void check_stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, const std::vector<std::string>& stops) {
  const std::string whole = replaced(tokenizer.decode(ids));
  TextStream stream(tokenizer, stops);
  std::string shown;
  for (const TokenId id : ids) {
    const std::string piece = stream.push(id);
    FUZZ_CHECK(utf8_valid_len(piece) == piece.size() || !stops.empty());
    shown += piece;
  }
  shown += stream.finish();
  FUZZ_CHECK(whole.starts_with(shown));
  std::size_t first = std::string::npos;
  for (const std::string& stop : stops) first = std::min(first, whole.find(stop));
  FUZZ_CHECK(stream.stopped() == (first != std::string::npos));
  if (!stream.stopped()) FUZZ_CHECK(shown == whole);
}

void check_text(const Tokenizer& tokenizer, const std::string& text, const std::vector<std::string>& stops) {
  std::size_t dropped = 0;
  const std::vector<TokenId> ids = tokenizer.encode(text, {.dropped_bytes = &dropped});
  for (const TokenId id : ids) FUZZ_CHECK(!tokenizer.is_special(id));
  const std::string back = tokenizer.decode(ids);
  FUZZ_CHECK(back.size() + dropped == text.size());
  if (dropped == 0) FUZZ_CHECK(back == text);
  check_stream(tokenizer, ids, stops);
  const std::vector<TokenId> parsed =
      tokenizer.encode(text, {.add_special = true, .parse_special = true, .dropped_bytes = &dropped});
  std::string named = tokenizer.decode(parsed, {.skip_special = false});
  if (dropped == 0) FUZZ_CHECK(named.find(text) != std::string::npos);
  check_stream(tokenizer, parsed, stops);
  for (const TokenId id : parsed) FUZZ_CHECK(tokenizer.find_token(tokenizer.token_bytes(id)).has_value());
}

void check_ids(const Tokenizer& tokenizer) {
  for (const auto& id : {tokenizer.bos(), tokenizer.eos()}) {
    FUZZ_CHECK(!id || tokenizer.is_special(*id));
  }
  FUZZ_CHECK(!tokenizer.eos() || tokenizer.is_end_of_generation(*tokenizer.eos()));
  FUZZ_CHECK(!tokenizer.adds_eos() || tokenizer.eos());
  FUZZ_CHECK(!tokenizer.pre_tokenizer().empty());
  for (const TokenId id : {-1, static_cast<TokenId>(tokenizer.vocab_size())}) {
    FUZZ_CHECK(!tokenizer.is_special(id));
    try {
      tokenizer.token_bytes(id);
      FUZZ_CHECK(false);
    } catch (const InvalidArgument&) {
    }
  }
}

/// Messages make as many special tokens as harmless ones do: none.
void check_chat(const Tokenizer& tokenizer, std::string_view name, const std::string& role,
                const std::string& content) {
  try {
    const ChatTemplate chat(tokenizer, name);
    const auto marks = [&](const ChatPrompt& prompt) {
      return std::ranges::count_if(encode_prompt(tokenizer, prompt),
                                   [&](TokenId id) { return tokenizer.is_special(id); });
    };
    const bool known = role == "system" || role == "user" || role == "assistant";
    const std::vector<ChatMessage> messages = {{role, content}, {"user", content}};
    const std::vector<ChatMessage> harmless = {{known ? role : "r", "x"}, {"user", "x"}};
    const ChatPrompt prompt = chat.render(messages);
    FUZZ_CHECK(marks(prompt) == marks(chat.render(harmless)));
    FUZZ_CHECK(chat.name() != "chatml" || prompt.text.find(content) != std::string::npos);
  } catch (const InvalidArgument&) {
    FUZZ_CHECK(role.empty() || name != "chatml");
  } catch (const InvalidFile&) {
  }
}

/// A vocabulary that the input chooses, right or wrong in every part.
test::GgufWriter hostile_file(FuzzedDataProvider& input) {
  test::SmallVocabulary vocabulary;
  vocabulary.pre = input.PickValueInArray({"smollm", "default", "llama-bpe", "", "foo"});
  const int wrong = input.ConsumeIntegralInRange(0, 15);  // more than one fault at a time would hide the later ones
  if (wrong == 0) vocabulary.model = "llama";
  if (wrong == 1) vocabulary.tokens.clear(), vocabulary.types.clear();
  if (wrong == 2) vocabulary.types.push_back(1);
  if (wrong == 3) vocabulary.types[5] = 99;
  if (wrong == 4) vocabulary.tokens[1] = "no turn mark";
  if (wrong == 5) vocabulary.merges.emplace_back("xyz");
  if (wrong == 6) vocabulary.has_types = false;
  for (int i = input.ConsumeIntegralInRange(0, 8); i > 0; --i) {
    vocabulary.add(input.ConsumeRandomLengthString(12), input.ConsumeIntegralInRange(0, 6));
  }
  for (int i = input.ConsumeIntegralInRange(0, 8); i > 0; --i) {
    const std::string left = input.ConsumeRandomLengthString(4), right = input.ConsumeRandomLengthString(4);
    if (input.ConsumeBool()) {
      vocabulary.merge(left, right);
    } else {
      vocabulary.merges.push_back(left + " " + right);
    }
  }
  test::GgufWriter writer = vocabulary.writer();
  for (const char* key : {"bos", "eos", "unknown", "padding", "eot"}) {
    if (!input.ConsumeBool()) continue;
    writer.add_u32(std::string("tokenizer.ggml.") + key + "_token_id", input.ConsumeIntegralInRange(0u, 280u));
  }
  if (input.ConsumeBool()) writer.add_bool("tokenizer.ggml.add_bos_token", input.ConsumeBool());
  if (input.ConsumeBool()) writer.add_bool("tokenizer.ggml.add_eos_token", input.ConsumeBool());
  if (input.ConsumeBool()) {
    writer.add_string("tokenizer.chat_template",
                      input.PickValueInArray({"", "{{ '<|im_start|>system\\n", "{{ '<|im_start|>user"}) +
                          input.ConsumeRandomLengthString(40) + input.PickValueInArray({"", "<|im_end|>\n' }}"}));
  }
  if (wrong == 7) {
    writer.add_tensor("token_embd.weight", DType::f32, {3}, std::string(12, 'e'));
  }
  return writer;
}

/// A SentencePiece vocabulary that the input chooses.
test::GgufWriter sentencepiece_file(FuzzedDataProvider& input) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "▁", "a", "b", "c"};
  std::vector<std::int32_t> types = {2, 3, 3, 1, 1, 1, 1};
  if (input.ConsumeBool()) {
    for (int byte = 0; byte < 256; ++byte) {
      tokens.push_back(fmt::format("<0x{:02X}>", byte));
      types.push_back(6);
    }
  }
  for (int i = input.ConsumeIntegralInRange(0, 12); i > 0; --i) {
    const int kind = input.ConsumeIntegralInRange(0, 3);
    tokens.push_back(kind == 0 ? input.ConsumeRandomLengthString(8)
                               : tokens[input.ConsumeIntegralInRange<std::size_t>(3, tokens.size() - 1)] +
                                     tokens[input.ConsumeIntegralInRange<std::size_t>(3, tokens.size() - 1)]);
    types.push_back(kind == 1 ? input.ConsumeIntegralInRange(0, 6) : kind == 2 ? 4 : 1);
  }
  std::vector<float> scores;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    scores.push_back(static_cast<float>(input.ConsumeIntegralInRange(-9, 0)));
  const int wrong = input.ConsumeIntegralInRange(0, 15);
  if (wrong == 0) scores.back() = std::numeric_limits<float>::quiet_NaN();
  if (wrong == 1) scores.pop_back();
  test::GgufWriter writer;
  writer.add_string("tokenizer.ggml.model", input.ConsumeBool() ? "llama" : "t5");
  if (wrong == 2) writer.add_string("tokenizer.ggml.pre", "huggingface");
  writer.add_strings("tokenizer.ggml.tokens", tokens).add_array("tokenizer.ggml.token_type", 5, types);
  if (wrong != 3) writer.add_array("tokenizer.ggml.scores", 6, scores);
  if (input.ConsumeBool()) writer.add_strings("tokenizer.ggml.merges", {"a b", "▁ a", wrong == 4 ? "x" : "ab c"});
  if (input.ConsumeBool()) writer.add_bool("tokenizer.ggml.add_space_prefix", input.ConsumeBool());
  if (input.ConsumeBool()) writer.add_bool("tokenizer.ggml.remove_extra_whitespaces", input.ConsumeBool());
  if (input.ConsumeBool()) writer.add_u32("tokenizer.ggml.bos_token_id", 1).add_u32("tokenizer.ggml.eos_token_id", 2);
  if (input.ConsumeBool()) {
    // A trie of one node more than its size says, or not, and replacements behind it.
    std::vector<std::uint32_t> units(input.ConsumeIntegralInRange<std::size_t>(1, 300));
    for (std::uint32_t& unit : units) {
      unit = input.ConsumeBool()
                 ? input.ConsumeIntegral<std::uint32_t>()
                 : input.ConsumeIntegralInRange(0u, 300u) << 10 | input.ConsumeIntegralInRange(0u, 511u);
    }
    std::string map = test::GgufWriter::raw(static_cast<std::uint32_t>(units.size() * 4 - (wrong == 5)));
    for (const std::uint32_t unit : units) map += test::GgufWriter::raw(unit);
    map += "A";
    map += '\0';
    map += "  b";
    if (wrong != 6) map += '\0';
    writer.add_array("tokenizer.ggml.precompiled_charsmap", wrong == 7 ? 2u : 0u,
                     std::vector<char>(map.begin(), map.end()));
  }
  return writer;
}

void check_sentencepiece(FuzzedDataProvider& input, const std::vector<std::string>& stops) {
  try {
    const Tokenizer tokenizer = test::make_tokenizer(sentencepiece_file(input));
    const std::string text = any_text(input);
    for (const EncodeOptions options : {EncodeOptions{}, EncodeOptions{.add_special = true, .parse_special = true}}) {
      const std::vector<TokenId> ids = tokenizer.encode(text, options);
      for (const TokenId id : ids) {
        FUZZ_CHECK(id >= 0 && std::size_t(id) < tokenizer.vocab_size());
        FUZZ_CHECK(options.parse_special || !tokenizer.is_special(id) || tokenizer.token_bytes(id) == "<unk>");
      }
      check_stream(tokenizer, ids, stops);
    }
  } catch (const InvalidFile&) {
  }
}

void run(FuzzedDataProvider& input) {
  static const std::array<test::SmallTokenizer, 3> kGood = {
      test::SmallTokenizer("smollm"), test::SmallTokenizer("default"), test::SmallTokenizer("llama-bpe")};
  std::vector<std::string> stops;
  for (int i = input.ConsumeIntegralInRange(0, 2); i > 0; --i) {
    stops.push_back(input.ConsumeRandomLengthString(5));
    if (stops.back().empty() || utf8_valid_len(stops.back()) != stops.back().size()) stops.back() = "ab";
  }
  const int kind = input.ConsumeIntegralInRange(0, 5);
  if (kind > 3) return check_sentencepiece(input, stops);
  if (kind > 0) {
    const Tokenizer& tokenizer = input.PickValueInArray({&kGood[0], &kGood[1], &kGood[2]})->tokenizer();
    const std::string text = any_text(input);
    check_text(tokenizer, text, stops);
    check_chat(tokenizer, input.PickValueInArray({"", "chatml", "mistral"}), text.substr(0, text.size() / 8), text);
    return;
  }
  try {
    const Tokenizer tokenizer = test::make_tokenizer(hostile_file(input));
    check_ids(tokenizer);
    const std::string role = input.ConsumeRandomLengthString(8);
    const std::string text = any_text(input);
    check_text(tokenizer, text, stops);
    const char* const name = input.PickValueInArray({"", "chatml", "llama3", "gemma", "llama2", "mistral", "other"});
    check_chat(tokenizer, name, role, text);
  } catch (const InvalidFile&) {
  }
}

}  // namespace
}  // namespace ops_transformer::llm

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider input(data, size);
  ops_transformer::llm::run(input);
  return 0;
}
