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
RULES = {
    "smollm": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    "default": ByteLevel(add_prefix_space=False, use_regex=True),
    "llama-bpe": Sequence(
        [Split(Regex(LLAMA3), behavior="isolated"), ByteLevel(add_prefix_space=False, use_regex=False)]
    ),
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
