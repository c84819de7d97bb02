# SPDX-License-Identifier: Apache-2.0
"""Token ids of tokenizer.json files against PyPI's tokenizers, which writes them here."""

import json
import unicodedata

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import CORPUS
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

import ops_transformer as ops

SPLITS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek-v3": r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
    "trailing spaces": r"\s+$",
    "words": r"\w+|[^\w\s]+",
}
pt = pre_tokenizers
BYTES = pt.ByteLevel(add_prefix_space=False, use_regex=False)
BYTE_LEVEL = {
    "gpt-2": (None, pt.ByteLevel(add_prefix_space=False)),
    "prefix": (None, pt.ByteLevel(add_prefix_space=True)),
    "smollm": (None, pt.Sequence([pt.Digits(True), pt.ByteLevel(add_prefix_space=False)])),
    "falcon": (None, pt.Sequence([pt.Punctuation("contiguous"), pt.ByteLevel(add_prefix_space=False), pt.Digits(False), pt.Split(Regex("[0-9][0-9][0-9]"), "isolated")])),
    "strings": (normalizers.Strip(), pt.Sequence([pt.Split(" ", "merged_with_next"), pt.Split("-", "merged_with_previous"), pt.CharDelimiterSplit("x"), BYTES])),
    "qwen2": (normalizers.NFC(), pt.Sequence([pt.Split(Regex(SPLITS["llama-bpe"].replace("{1,3}", "")), "isolated"), BYTES])),
    "lower": (normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.Replace(Regex(r"\s{2,}"), " ")]), pt.Sequence([pt.Split(Regex(SPLITS["words"]), "removed", invert=True), BYTES])),
    "whitespace": (normalizers.NFKC(), pt.Sequence([pt.Whitespace(), pt.Punctuation(), BYTES])),
    "contiguous": (normalizers.NFD(), pt.Sequence([pt.WhitespaceSplit(), pt.Split(Regex(r"\p{L}"), "contiguous"), BYTES])),
    **{name: (None, pt.Sequence([pt.Split(Regex(pattern), "isolated"), BYTES])) for name, pattern in SPLITS.items()},
}  # fmt: skip
SPACE = normalizers.Replace(" ", "▁")
CHARACTERS = {
    "gemma": (SPACE, pt.Split(" ", "merged_with_previous")),
    "llama": (normalizers.Sequence([normalizers.Prepend("▁"), SPACE]), None),
    "metaspace": (None, pt.Metaspace()),
    "metaspace first": (None, pt.Metaspace(prepend_scheme="first", split=False)),
    "metaspace words": (None, pt.Sequence([pt.WhitespaceSplit(), pt.Metaspace(prepend_scheme="always")])),
}


def add_tokens(peer):
    peer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    peer.add_tokens(
        [
            AddedToken("<tool>", normalized=False),
            AddedToken("<pad>", normalized=False, rstrip=True),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("ΩΩ"),
        ]
    )
    peer.encode_special_tokens = True


def make_byte_level(name):
    peer = tokenizers.Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    normalizer, peer.pre_tokenizer = BYTE_LEVEL[name]
    if normalizer:
        peer.normalizer = normalizer
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=pt.ByteLevel.alphabet(), show_progress=False)
    peer.train_from_iterator(CORPUS * 4, trainer)
    return peer


def make_characters(name, fallback, kind):
    alphabet = [f"<0x{byte:02X}>" for byte in range(256)] if fallback else []
    normalizer, pre_tokenizer = CHARACTERS[name]
    peer = tokenizers.Tokenizer(models.BPE() if kind == "bpe" else models.Unigram())
    if normalizer:
        peer.normalizer = normalizer
    peer.pre_tokenizer = pre_tokenizer or pt.Split("▁", "merged_with_next")
    if kind == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=700, limit_alphabet=200, special_tokens=["<unk>"], show_progress=False)
    else:
        trainer = trainers.UnigramTrainer(vocab_size=500, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False)
    peer.train_from_iterator(CORPUS * 4, trainer)
    state = json.loads(peer.to_str())
    model = state["model"]
    if kind == "bpe":
        model |= {"unk_token": "<unk>", "fuse_unk": not fallback, "byte_fallback": fallback}
        for piece in alphabet:
            model["vocab"].setdefault(piece, len(model["vocab"]))
    else:
        model["byte_fallback"] = fallback
        model["vocab"] += [[piece, 0.0] for piece in alphabet]
    if pre_tokenizer is None:
        state["pre_tokenizer"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(state))


KINDS = {f"bytes, {name}": lambda name=name: make_byte_level(name) for name in BYTE_LEVEL} | {
    f"{kind}, {name}, {'bytes' if fallback else 'unknown'}": lambda name=name, fallback=fallback, kind=kind: make_characters(
        name, fallback, kind
    )
    for kind in ("bpe", "unigram")
    for name in CHARACTERS
    for fallback in (True, False)
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request, tmp_path_factory):
    """Ours and theirs, of one tokenizer.json."""
    peer = KINDS[request.param]()
    add_tokens(peer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(peer.to_str())
    return ops.Tokenizer.load(str(path)), peer


ADDED = ["<tool>", "<pad>  ", "word", "sword word", "ΩΩ", "<s>", " <mask>", "</s>"]
BITS = st.lists(st.sampled_from(CORPUS + list(" \n\t'’s1aé漢🇩\u0301\u200d.,-▁") + ["\n\n\n", "  "] + ADDED), max_size=12)


def check(pair, text):
    ours, theirs = pair
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("text", [*CORPUS, "\n".join(CORPUS), " ".join(ADDED), "▁▁ a▁b  ▁", " " * 3000])
def test_ids_equal_those_of_tokenizers(pair, text):
    check(pair, text)


@given(parts=BITS)
def test_mixtures_of_the_corpus(pair, parts):
    check(pair, "".join(parts))


@given(text=st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=60))
def test_any_text(pair, text):
    if pair[1].normalizer:  # theirs knows the normal forms of an older Unicode than ours, and the newest lower case
        text = "".join(c for c in text if unicodedata.ucd_3_2_0.category(c) != "Cn")
    check(pair, text)


def test_special_tokens_are_parsed_where_they_are_asked_for(pair):
    ours, theirs = pair
    theirs.encode_special_tokens = False
    try:
        for text in ("<s>a</s>", "a <mask> b<tool>", "<s><s>  word"):
            assert ours.encode(text, parse_special=True) == theirs.encode(text, add_special_tokens=False).ids
    finally:
        theirs.encode_special_tokens = True


def load(tmp_path, state, config=None):
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return ops.Tokenizer.load(str(tmp_path / "tokenizer.json"))


def test_templates_and_configuration_say_what_is_added(tmp_path):
    peer = make_byte_level("gpt-2")
    add_tokens(peer)
    ids = [peer.token_to_id(name) for name in ("<s>", "</s>")]
    peer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", ids[0]), ("</s>", ids[1])])
    state = json.loads(peer.to_str())
    want = peer.encode("hello").ids
    assert load(tmp_path, state).encode("hello", add_special=True) == want and want[0] == ids[0]
    config = {"add_eos_token": False, "bos_token": {"content": "<s>"}, "chat_template": [{"name": "default", "template": "{{x}}"}]}
    assert load(tmp_path, state, config).encode("hello", add_special=True) == want[:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.update(model={"type": "WordPiece"}), "model.type is 'WordPiece', known are BPE and Unigram"),
        (lambda s: s.update(normalizer={"type": "BertNormalizer"}), "BertNormalizer"),
        (lambda s: s.update(pre_tokenizer={"type": "UnicodeScripts"}), "UnicodeScripts"),
        (lambda s: s.update(post_processor={"type": "RobertaProcessing"}), "RobertaProcessing"),
        (lambda s: s["model"].update(dropout=0.1), "dropout"),
        (lambda s: s["model"].update(end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (lambda s: s["model"]["merges"].append(["zz", "q"]), "which needs a token that the vocabulary lacks"),
        (lambda s: s["model"]["vocab"].update(far=5_000_000), "more than 65536 holes"),
        (lambda s: s["model"]["vocab"].update(twice=7), "with the id 7"),
        (lambda s: s["model"]["vocab"].update(minus=-1), "id -1"),
        (lambda s: s.update(added_tokens=[{"id": 3, "content": ""}]), "must be a text that is not empty"),
        (lambda s: s.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": r"(a)\1"}, "behavior": "Isolated"}), "escape"),
        (lambda s: s.pop("model"), "model is missing"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, change, message):
    state = json.loads(make_byte_level("gpt-2").to_str())
    change(state)
    with pytest.raises(ops.InvalidFile, match=message.replace("(", r"\(").replace("\\1", ".")):
        load(tmp_path, state)
