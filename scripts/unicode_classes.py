# SPDX-License-Identifier: Apache-2.0
"""Writes llm/tokenizer/unicode_classes.h: what Unicode classes hold in the engine of PyPI's `tokenizers` beyond PCRE2's of Debian 12.

Run with a Python of Unicode 14 (3.11): python scripts/unicode_classes.py > llm/tokenizer/unicode_classes.h
"""
import unicodedata

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Split

assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
ALL = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
CLASSES = ["L", "Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "Nd", "P", "S"]


def pieces(pre_tokenizer):
    text = "".join(ALL)
    return {text[a:b] for _, (a, b) in pre_tokenizer.pre_tokenize_str(text)}


def ranges(characters):
    out = []
    for c in sorted(map(ord, characters)):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def written(name, characters):
    lines = [""]
    for a, b in ranges(characters):
        text = f"\\\\x{{{a:x}}}" + (f"-\\\\x{{{b:x}}}" if b > a else "")
        if len(lines[-1]) + len(text) > 110:
            lines.append("")
        lines[-1] += text
    print(f"inline constexpr std::string_view {name} =\n    " + "\n    ".join(f'"{line}"' for line in lines) + ";")


def found(pre_tokenizer):
    return {c for c in pieces(pre_tokenizer) if len(c) == 1}


print("// SPDX-License-Identifier: Apache-2.0")
print(f"// Written by scripts/unicode_classes.py with tokenizers {tokenizers.__version__}: do not edit.")
print("// clang-format off\n#pragma once\n\n#include <string_view>\n\nnamespace ops_transformer::llm::unicode_classes {\n")
print("// In PCRE2's notation, to stand in a class beside \\p{…}.")
for name in CLASSES:
    theirs = found(Split(Regex(r"\p{%s}" % name), "removed", invert=True))
    ours = {c for c in ALL if unicodedata.category(c).startswith(name)}
    assert not ours - theirs, name
    written(f"k{name}", theirs - ours)
words = {c for c in ALL if unicodedata.category(c)[0] in "LM" or unicodedata.category(c) in ("Nd", "Nl", "Pc")}
theirs = found(Split(Regex(r"\w"), "removed", invert=True))
assert not words - theirs
print("// \\w beyond L, M, Nd, Nl and Pc.")
written("kWord", theirs - words)
text = "".join("a" + c for c in ALL)
digits = {text[a:b] for _, (a, b) in Digits(individual_digits=True).pre_tokenize_str(text) if text[a:b] != "a"}
print("// The splitter Digits, beyond N.")
written("kDigits", {c for c in digits if len(c) == 1 and unicodedata.category(c)[0] != "N"})
print("\n}  // namespace ops_transformer::llm::unicode_classes")
