# SPDX-License-Identifier: Apache-2.0
"""Writes tests/support/pre_tokenizer_golden.h: how PyPI's `tokenizers` cuts a hostile corpus, rule by rule.

Run: python scripts/pre_tokenizer_golden.py > tests/support/pre_tokenizer_golden.h
"""
import json

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
# The cased letters of DeepSeek's first tokenizer; escaped, since some are not in normal form.
DEEPSEEK_LETTERS = (
    "[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-"
    "\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a"
    "\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4"
    "\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc"
    "\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+"
)
CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
BYTES = ByteLevel(add_prefix_space=False, use_regex=False)


def splits(*patterns):
    return [Split(Regex(pattern), behavior="isolated") for pattern in patterns]


RULES = {
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    "default": ByteLevel(add_prefix_space=False, use_regex=True),
    "llama-bpe": Sequence(
        [Split(Regex(LLAMA3), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
    "qwen2": Sequence([*splits(LLAMA3.replace("{1,3}", "")), BYTES]),
    "tekken": Sequence([*splits("|".join([*CASED, r"\p{N}", OTHERS])), BYTES]),
    "gpt-4o": Sequence([*splits("|".join([c + CONTRACTIONS for c in CASED] + [r"\p{N}{1,3}", OTHERS])), BYTES]),
    "deepseek-llm": Sequence(
        [
            *splits(r"[\r\n]", r"\s?" + DEEPSEEK_LETTERS, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"),
            *splits(r"\s+$", CJK),
            Digits(individual_digits=False),
            BYTES,
        ]
    ),
    "deepseek-coder": Sequence([*splits(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK), Digits(individual_digits=True), BYTES]),
    "deepseek-v3": Sequence([*splits(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", DEEPSEEK3), BYTES]),
}
CORPUS = [
    "  x", "\n\n\n", "3333333", "I'LL", "\u2029 \ua3e4", "👨‍👩‍👧‍👦", "👩🏽‍🚒 🇩🇪😀",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "e\u0301\u0327 n\u0303", "漢字かな交じり文。你好，世界！",
    "مرحبا بالعالم ١٢٣", "हिन्दी में पाठ", "ไทยภาษา", "한국어 텍스트", " ", "   a   b    c", "\t\ttab\t x", "a\r\nb\r\n\r\n c",
    "\u00a0nbsp\u00a0\u00a0x", "\u180e mong \u180e", "\u0085nel \u0085x", "\x1c\x1d\x1e\x1f a", "\u200b\u200dzero",
    "\ufeffbom", "1234567890 12 3.14 ½ Ⅷ ²", "①②③x", "x²+y²", "don't DON'T 's 'S 'ſ it\u2019s", "'re're've'd'll'm't's",
    "'RE'Ve'D'lL'M", "naïve café", "<|im_start|>user\n<|im_end|>", "ſ'ſ \u212a'll", "\x00nul\x00\x00", "\x7f", "𝟘𝟙 𝓐𝓑",
    "\U00010000\U0010FFFF\u0378", "!?!?!?...---===\n\n", "$100,000.00", "http://a.b/c?d=e&f=g#h",
    "def f(x):\n    return x+1\n\n\n\tpass  \n", "  \n  \n x", "\u3000全角　空白", "\u2028\u2029\u202f\u205f x", "\u1680ogham",
    "ß ẞ ŉ ﬁ ﬆ '\ufb06", "a 1  2   3", "a  \n1", "  12  ab  ", "x\n 1", "日本1語 2 3",
    "\U00031350\U000323af x", "a\U0001d2c0\U0001d2c1 \U00011de0\U00011de1b", "\U00010d4a\U00010d40!",
]


def literal(text):
    return '"' + "".join(f"\\{b:03o}" if b < 32 or b > 126 or chr(b) in '"\\?' else chr(b) for b in text.encode()) + '"'


print("// SPDX-License-Identifier: Apache-2.0")
print(f"// Written by scripts/pre_tokenizer_golden.py with tokenizers {tokenizers.__version__}: do not edit.")
print("// clang-format off")
print("#pragma once\n\n#include <string_view>\n#include <vector>\n")
print("namespace ops_transformer::test {\n")
print("struct PreTokenizerGolden {\n  const char* rule;\n  std::string_view text;\n  std::vector<int> lens;  // bytes of each piece\n};\n")
print("inline const std::vector<PreTokenizerGolden> kPreTokenizerGolden = {")
for rule, pre_tokenizer in RULES.items():
    for text in CORPUS:
        lens = [len(text[a:b].encode()) for _, (a, b) in pre_tokenizer.pre_tokenize_str(text)]
        assert sum(lens) == len(text.encode()), (rule, text, lens)
        size = len(text.encode())
        print(f"    {{{json.dumps(rule)}, {{{literal(text)}, {size}}}, {{{', '.join(map(str, lens))}}}}},")
print("};\n\n}  // namespace ops_transformer::test")
