# SPDX-License-Identifier: Apache-2.0
"""Every architecture and RoPE scaling as a small random file, against its definition in float64 (reference_model.py)."""

import gguf
import numpy as np
import pytest
from reference_model import ReferenceModel

import ops_transformer as ops

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 320, 128, 192, 4, 4, 2, 64
F32, BF16, Q8_0 = (gguf.GGMLQuantizationType[name] for name in ("F32", "BF16", "Q8_0"))

# Llama 3's factors (Grattafiori et al., 2024), by wavelength, as converters store them.
_plain = 5e5 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
_turns = 24 * _plain / (2 * np.pi)
_smooth = np.clip((_turns - 1) / (4 - 1), 0, 1)
LLAMA3_FACTORS = 1 / (_smooth + (1 - _smooth) / 8)

YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
GEMMA = {"attention.sliding_window": 11, "rope.freq_base": 1e6}
VARIANTS = {
    "llama": dict(architecture="llama"),
    "llama-untied": dict(architecture="llama", tied=False, dtype=Q8_0),
    "mistral": dict(architecture="llama", keys={"attention.sliding_window": 13}, tied=False, dtype=BF16),
    "llama3": dict(architecture="llama", keys={"rope.freq_base": 5e5}, rope_factors=LLAMA3_FACTORS),
    "linear": dict(architecture="llama", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}),
    "qwen2": dict(architecture="qwen2", keys={"rope.freq_base": 1e6}, bias=True, dtype=Q8_0),
    "qwen2-untied": dict(architecture="qwen2", bias=True, tied=False),
    "qwen2-yarn": dict(architecture="qwen2", keys={"rope.freq_base": 1e6, **YARN}, bias=True),
    "qwen3": dict(architecture="qwen3", keys={"rope.freq_base": 1e6}, tied=False, dtype=BF16),
    "qwen3-yarn": dict(architecture="qwen3", keys={"rope.freq_base": 1e6, **YARN}, dtype=Q8_0),
    "gemma3": dict(architecture="gemma3", keys={"attention.sliding_window_pattern": 2, **GEMMA}, dtype=Q8_0),
    "gemma3-pattern-6": dict(architecture="gemma3", keys=GEMMA, layers=7),
    "gemma3-linear": dict(
        architecture="gemma3",
        keys={
            "attention.sliding_window_pattern": 3,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
            **GEMMA,
        },
        dtype=BF16,
    ),
}


def write_model(path, architecture, keys={}, tied=True, bias=False, dtype=F32, rope_factors=None, layers=LAYERS):
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    for key, value in keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(["a", "b", "ab", *(f"<{i}>" for i in range(3, VOCAB))])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def add_vector(name, size, mean=1.0, deviation=0.2):
        writer.add_tensor(name, rng.normal(mean, deviation, size).astype(np.float32))

    def add_matrix(name, rows, cols, with_bias=False):
        values = rng.normal(0, cols**-0.5, (rows, cols)).astype(np.float32)
        data = values if dtype == F32 else gguf.quants.quantize(values, dtype)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=dtype)
        if with_bias:
            add_vector(f"{name}.bias", rows, 0.0, 0.5)

    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    add_matrix("token_embd", VOCAB, HIDDEN)
    if not tied:
        add_matrix("output", VOCAB, HIDDEN)
    add_vector("output_norm.weight", HIDDEN)
    for layer in range(layers):
        block = f"blk.{layer}."
        add_vector(block + "attn_norm.weight", HIDDEN)
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            add_matrix(f"{block}attn_{name}", heads * HEAD_DIM, HIDDEN, bias)
        add_matrix(block + "attn_output", HIDDEN, HEADS * HEAD_DIM)
        if architecture in ("qwen3", "gemma3"):
            add_vector(block + "attn_q_norm.weight", HEAD_DIM)
            add_vector(block + "attn_k_norm.weight", HEAD_DIM)
        if architecture == "gemma3":
            add_vector(block + "post_attention_norm.weight", HIDDEN)
            add_vector(block + "post_ffw_norm.weight", HIDDEN)
        add_vector(block + "ffn_norm.weight", HIDDEN)
        add_matrix(block + "ffn_gate", FFN, HIDDEN)
        add_matrix(block + "ffn_up", FFN, HIDDEN)
        add_matrix(block + "ffn_down", HIDDEN, FFN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.fixture(scope="module", params=VARIANTS)
def path(request, tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model") / f"{request.param}.gguf", **VARIANTS[request.param])


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(11).integers(0, VOCAB, 150).tolist()


@pytest.fixture(scope="module")
def expected(path, tokens):
    return ReferenceModel(path).logits([tokens])[0]


def pieces_of(model, tokens, length, context=None):
    cache = model.new_cache(len(tokens))
    sequence = cache.add_sequence()
    return np.concatenate(
        [
            model.forward(cache, [(sequence, tokens[i : i + length])], all_logits=True, context=context)
            for i in range(0, len(tokens), length)
        ]
    )


def test_exact_logits(path, tokens, expected):
    model = ops.Model.load(path, exact=True)
    assert np.max(np.abs(model.logits(tokens) - expected)) <= 1e-3
    assert np.max(np.abs(pieces_of(model, tokens, 37) - expected)) <= 1e-3
    assert np.max(np.abs(pieces_of(model, tokens, 1) - expected)) <= 1e-3


def test_fast_logits(path, tokens, expected):
    """int8 activations and a bf16 cache: a random model's distributions hardly move."""

    def log_softmax(x):
        x = x - x.max(axis=-1, keepdims=True)
        return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))

    ours, theirs = log_softmax(ops.Model.load(path).logits(tokens).astype(np.float64)), log_softmax(expected)
    divergence = np.sum(np.exp(theirs) * (theirs - ours), axis=-1)
    assert divergence.mean() <= 1e-3 and divergence.max() <= 1e-2


def test_deterministic_bits(path, tokens):
    expected = None
    for threads in (1, 2, 3):
        context = ops.Context(num_threads=threads, deterministic=True)
        model = ops.Model.load(path, context=context)
        for length in (150, 64, 1, 13):
            logits = pieces_of(model, tokens, length, context)
            expected = logits if expected is None else expected
            np.testing.assert_array_equal(logits, expected, f"{threads} threads, pieces of {length}")


def test_unknown_architecture(tmp_path):
    with pytest.raises(ops.InvalidFile, match="'mamba'; supported: llama, qwen2, qwen3, gemma3"):
        ops.Model.load(write_model(tmp_path / "mamba.gguf", "mamba"))
