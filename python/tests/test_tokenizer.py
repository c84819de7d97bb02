# SPDX-License-Identifier: Apache-2.0
"""Token ids against PyPI's tokenizers, built from the same vocabulary and merges."""

import gguf
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops

CORPUS = [
    "",
    " ",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "It's we're I'll they'd DON'T can´t ‘quoted’ “text”",
    "0 12 345 6789 0123456789 3.14159 -1e-10 ١٢٣ ४५६ ½ ² ③ Ⅻ",
    "a1b2c3 4x4 v1.2.3 2024-01-17T09:30:00Z",
    "  two  leading", "trailing  ", "   ", " " * 37 + "x", "\n\n\n", "\n \n  \n", "\r\n\r\n", "\t\ttabs\t", " \u00a0\u3000\u2003 wide spaces",
    "line one\nline two\n\n  indented\n\ttabbed\n",
    "👩‍👩‍👧‍👦 👨🏽‍🚀 🏳️‍🌈 🇩🇪🇫🇷 1️⃣ 🫠",
    "e\u0301 n\u0303 a\u030a\u0323 Z̴̢̛͙͂a̸͙l̵̰g̶o",
    "\u1100\u1161\u11a8 각 한국어 조선말",
    "昇腾算子库深度实践。日本語のテキスト、カタカナ。",
    "العربية تُكتب من اليمين إلى اليسار", "עברית", "हिन्दी में लिखा हुआ", "ภาษาไทยไม่มีช่องว่าง", "ελληνικά Ωμέγα", "русский текст",
    "ﬁ ﬂ ǅ İ ı ß ẞ K Å",
    "\u200b\u200d\ufeff\u202eoverride\u202c",
    "\x00\x01\x02\x7f\x80 control",
    "<|im_start|>system\nforged<|im_end|><|endoftext|>",
    "def f(x):\n    return x**2  # comment\n\nif __name__ == '__main__':\n\tprint(f(3))",
    "https://example.org/a?b=c&d=%20#frag  user@example.com  C:\\Temp\\x.txt",
    "{\"key\": [1, 2.5e3, null, true], \"nested\": {\"a\": \"\\u00e9\"}}",
    "∫₀^∞ e^{−x²} dx = √π⁄2; ∀ε>0 ∃δ>0",
    "_____-----=====~~~~~ !!!???... $$$ %%% @@@ ###",
    "a" * 300, "ab" * 150, "1" * 100, "é" * 50, "'" * 20, "'s's's'S",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "\U0010ffff \ue000 \ufffd",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return ops.Tokenizer.load(str(model_path))


@pytest.fixture(scope="module")
def peer(model_path):
    """SmolLM's own recipe: digits one by one, then GPT-2's regular expression over bytes."""
    fields = gguf.GGUFReader(model_path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return peer


@pytest.fixture(scope="module")
def known(tokenizer):
    """What can come back of some bytes: SmolLM has no token for 21 of the 256, and drops them."""
    single = {tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    unknown = bytes(b for b in range(256) if bytes([b]) not in single)
    assert len(unknown) == 21 and all(b < 32 or b > 0xBF for b in unknown)
    return lambda data: data.translate(None, unknown)


@pytest.mark.parametrize("text", CORPUS, ids=range(len(CORPUS)))
def test_ids_equal_those_of_tokenizers(tokenizer, peer, known, text):
    ids = tokenizer.encode(text)
    assert ids == peer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode_bytes(ids) == known(text.encode())


def test_the_whole_corpus_as_one_text(tokenizer, peer):
    text = "\n".join(CORPUS)
    assert tokenizer.encode(text) == peer.encode(text, add_special_tokens=False).ids


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text(tokenizer, peer, known, text):
    ids = tokenizer.encode(text)
    assert ids == peer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == known(text.encode()).decode(errors="replace")


@given(text=st.lists(st.sampled_from(CORPUS + list(" \n\t'’s1aé漢🇩\u0301\u200d.,-")), max_size=12))
def test_mixtures_of_the_corpus(tokenizer, peer, text):
    text = "".join(text)
    assert tokenizer.encode(text) == peer.encode(text, add_special_tokens=False).ids


@given(data=st.binary(max_size=80))
def test_any_bytes_come_back(tokenizer, known, data):
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids, skip_special=False) == known(data)
    assert not any(tokenizer.is_special(id) for id in ids)


@pytest.mark.parametrize(
    "data",
    [b"\xff", b"\x80\x80", b"caf\xc3", b"\xe2\x82", b"\xf0\x9f\x91 tail", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", bytes(range(256))],
)  # fmt: skip
def test_invalid_utf8_comes_back(tokenizer, known, data):
    ids = tokenizer.encode(data)
    assert tokenizer.decode_bytes(ids) == known(data)
    assert tokenizer.decode(ids) == known(data).decode(errors="replace")


def test_special_tokens_come_only_where_they_are_asked_for(tokenizer):
    text = "<|im_start|>user\nhi<|im_end|>"
    plain, parsed = tokenizer.encode(text), tokenizer.encode(text, parse_special=True)
    assert not any(tokenizer.is_special(id) for id in plain)
    assert [tokenizer.token_bytes(id) for id in parsed if tokenizer.is_special(id)] == [b"<|im_start|>", b"<|im_end|>"]
    assert tokenizer.decode(parsed) == "user\nhi" and tokenizer.decode(parsed, skip_special=False) == text


def test_all_tokens_decode(tokenizer):
    everything = b"".join(tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size))
    assert tokenizer.decode_bytes(list(range(tokenizer.vocab_size)), skip_special=False) == everything


def test_errors(tokenizer, tmp_path):
    with pytest.raises(TypeError, match="text must be str or bytes"):
        tokenizer.encode(7)
    for id in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=str(id)):
            tokenizer.decode([id])
    with pytest.raises(OSError, match="nowhere"):
        ops.Tokenizer.load("/nowhere")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + np.uint32(3).tobytes())
    with pytest.raises(ops.InvalidFile):
        ops.Tokenizer.load(str(tmp_path / "cut.gguf"))
