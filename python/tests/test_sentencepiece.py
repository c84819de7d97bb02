# SPDX-License-Identifier: Apache-2.0
"""Token ids against PyPI's sentencepiece: models that it trains here, and Gemma's vocabulary where the file is at hand."""

import io
import os
import pathlib

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import CORPUS

import ops_transformer as ops

sentencepiece = pytest.importorskip("sentencepiece")
pb = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")

BITS = st.lists(st.sampled_from(CORPUS + list(" \n\t'’s1aé漢🇩\u0301\u200d.,-▁") + ["\n\n\n", "  ", "<tool>"]), max_size=12)
IDENTITY = {"normalization_rule_name": "identity"}
VARIANTS = {
    "llama": IDENTITY | {"byte_fallback": True, "remove_extra_whitespaces": False, "vocab_size": 900},
    "default": {},
    "folded": {"normalization_rule_name": "nmt_nfkc_cf"},
    "no prefix": IDENTITY | {"add_dummy_prefix": False, "remove_extra_whitespaces": False},
    "across words": {"split_by_whitespace": False, "byte_fallback": True, "vocab_size": 900},
}


def write_gguf(path, proto, kind):
    model = pb.ModelProto()
    model.ParseFromString(proto)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model({"bpe": "llama", "unigram": "t5"}[kind])
    writer.add_token_list([piece.piece.encode() for piece in model.pieces])
    writer.add_token_scores([piece.score for piece in model.pieces])
    writer.add_token_types([piece.type for piece in model.pieces])
    rules = model.normalizer_spec
    writer.add_add_space_prefix(rules.add_dummy_prefix)
    writer.add_remove_extra_whitespaces(rules.remove_extra_whitespaces)
    if rules.precompiled_charsmap:
        writer.add_precompiled_charsmap(rules.precompiled_charsmap)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


@pytest.fixture(scope="module", params=[f"{kind}, {name}" for kind in ("bpe", "unigram") for name in VARIANTS])
def pair(request, tmp_path_factory):
    """Ours and theirs, of one model."""
    kind, name = request.param.split(", ")
    out = io.BytesIO()
    options = {"vocab_size": 600, "hard_vocab_limit": False, "character_coverage": 0.98} | VARIANTS[name]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4),
        model_writer=out,
        model_type=kind,
        user_defined_symbols=["<tool>"],
        minloglevel=2,
        **options,
    )
    path = tmp_path_factory.mktemp("sentencepiece") / "model.gguf"
    write_gguf(path, out.getvalue(), kind)
    return ops.Tokenizer.load(str(path)), sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def check(pair, text):
    ours, theirs = pair
    ids, want = ours.encode(text), theirs.encode(text)
    if "<tool>" in text and ids != want:
        # Behind a user-defined token the rounding of sums may choose another of equally good unigram cuts.
        score = lambda cut: sum(map(theirs.get_score, cut))  # noqa: E731
        assert score(ids) == pytest.approx(score(want), rel=1e-6) and ours.decode(ids) == ours.decode(want)
    else:
        assert ids == want
    if theirs.unk_id() not in ids:
        assert ours.decode(ids) == theirs.decode(ids)


@pytest.mark.parametrize("text", [*CORPUS, "\n".join(CORPUS), " " * 3000, "▁▁ a▁b  ▁", "<unk><s></s><0x0A><tool>"])
def test_ids_equal_those_of_sentencepiece(pair, text):
    check(pair, text)


@given(parts=BITS)
def test_mixtures_of_the_corpus(pair, parts):
    check(pair, "".join(parts))


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60))
def test_any_text(pair, text):
    check(pair, text)


def test_special_tokens_come_only_where_they_are_asked_for(pair):
    ours, _ = pair
    assert not set(ours.encode("<s>x</s>")) & {1, 2}
    parsed = ours.encode("<s>x</s>y", parse_special=True)
    assert [id for id in parsed if id in (1, 2)] == [1, 2] and ours.decode(parsed) == "xy"


def test_any_bytes_come_back_with_byte_fallback(tmp_path):
    out = io.BytesIO()
    options = VARIANTS["llama"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS * 4), model_writer=out, model_type="bpe", minloglevel=2, hard_vocab_limit=False, **options
    )  # fmt: skip
    write_gguf(tmp_path / "model.gguf", out.getvalue(), "bpe")
    tokenizer = ops.Tokenizer.load(str(tmp_path / "model.gguf"))
    for data in (b"\xe6\xad", b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"a\0b", b"  two", bytes(range(256))):
        assert tokenizer.decode_bytes(tokenizer.encode(data)) == data


@pytest.fixture(scope="module")
def gemma():
    """Gemma 3's vocabulary: OPS_TRANSFORMER_TEST_GEMMA names the file."""
    path = pathlib.Path(os.environ.get("OPS_TRANSFORMER_TEST_GEMMA", "models/gemma-3-270m-q4_k_m.gguf"))
    if not path.exists():
        pytest.skip(f"no model at {path}")
    fields = gguf.GGUFReader(path).fields
    tokens, scores, types = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "scores", "token_type"))
    model = pb.ModelProto()
    for token, score, type in zip(tokens, scores, types, strict=True):
        # The file has the spaces of user-defined tokens as spaces.
        piece = token.replace(" ", "▁") if type == 4 else token
        model.pieces.add(piece=piece, score=score, type=2 if token == "<unk>" else type)
    spec = model.trainer_spec
    spec.model_type, spec.byte_fallback, spec.vocab_size = 2, True, len(tokens)
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = 0, 1, 2, 3
    rules = model.normalizer_spec
    rules.name, rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces = "identity", False, False, True
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    return ops.Tokenizer.load(str(path)), theirs


@pytest.mark.parametrize("text", [*CORPUS, "\n".join(CORPUS), "  two  spaces\n\n\n<h1>x</h1>", "▁▁ a▁b  ▁"])
def test_gemma_ids_equal_those_of_sentencepiece(gemma, text):
    check(gemma, text)


@given(parts=BITS)
def test_gemma_mixtures(gemma, parts):
    check(gemma, "".join(parts))
