# SPDX-License-Identifier: Apache-2.0
"""fused_attention_block and fused_ffn_block against float64."""

import numpy as np
import pytest
import references
from hypothesis import given, settings
from hypothesis import strategies as st

import ops_transformer as ops


class Sublayer:
    """Weights and the definition, in float64, of one transformer layer."""

    def __init__(self, rng, hidden=128, heads=2, kv_heads=1, dim=64, intermediate=96, dtype=np.float32):
        def matrix(rows, columns):
            return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(dtype)

        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.wq, self.wk, self.wv = (matrix(n * dim, hidden) for n in (heads, kv_heads, kv_heads))
        self.wo = matrix(hidden, heads * dim)
        self.gate, self.up, self.down = (
            matrix(intermediate, hidden),
            matrix(intermediate, hidden),
            matrix(hidden, intermediate),
        )
        self.ln1, self.ln2 = (1 + 0.1 * rng.standard_normal((2, hidden))).astype(np.float32)

    def attention(self, x, positions=None, causal=False, interleaved=False, eps=1e-5):
        x = x.astype(np.float64)
        rows = references.rms_norm(x, self.ln1, eps)
        split = lambda w, n: (rows @ w.astype(np.float64).T).reshape(*x.shape[:-1], n, self.dim).swapaxes(-2, -3)
        q, k, v = split(self.wq, self.heads), split(self.wk, self.kv_heads), split(self.wv, self.kv_heads)
        if positions is not None:
            q, k = (
                references.rotary_embedding(a, positions, self.dim, interleaved=interleaved)[0] for a in (q, k)
            )
        out = references.attention(q, k, v, self.dim**-0.5, right=0 if causal else None)["out"]
        return x + out.swapaxes(-2, -3).reshape(*x.shape[:-1], -1) @ self.wo.astype(np.float64).T

    def ffn(self, x, activation="silu", eps=1e-5):
        x = x.astype(np.float64)
        rows = references.rms_norm(x, self.ln2, eps)
        gate, up, down = (w.astype(np.float64).T for w in (self.gate, self.up, self.down))
        return x + (references.activate(rows @ gate, activation) * (rows @ up)) @ down


def assert_near(out, expected, terms=1024):
    """All weights have rows of unit size, so the error of each step is at most that of its sums of `terms` in all."""
    size = np.abs(expected).max()
    references.assert_close(out, expected, terms, np.full(expected.shape, size))


@given(
    batch=st.integers(1, 3),
    seq=st.integers(1, 9),
    shape=st.sampled_from([(2, 1, 64), (4, 2, 32), (2, 2, 24), (3, 3, 96)]),
    rotated=st.booleans(),
    interleaved=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=30)
def test_attention_block_matches_reference(batch, seq, shape, rotated, interleaved, causal, seed):
    rng = np.random.default_rng(seed)
    heads, kv_heads, dim = shape
    # Outputs of wq and wk stand in tiles of 16.
    if kv_heads * dim % 16:
        return
    layer = Sublayer(rng, 48, heads, kv_heads, dim)
    x = rng.standard_normal((batch, seq, 48), np.float32)
    positions = rng.integers(-50, 5000, seq) if rotated else None
    out = ops.fused_attention_block(
        x, layer.wq, layer.wk, layer.wv, layer.wo, layer.ln1, True, heads, positions=positions, causal=causal,
        interleaved=interleaved,
    )
    assert_near(out, layer.attention(x, positions, causal, interleaved))


@pytest.mark.parametrize("isa", ops.supported_isas())
def test_every_level_and_one_sequence(isa, rng):
    layer, context = Sublayer(rng), ops.Context(num_threads=2, isa=isa)
    x = rng.standard_normal((20, 128), np.float32)
    positions = np.arange(2040, 2060)
    weights = ops.AttentionWeights(layer.wq, layer.wk, layer.wv, layer.wo, 2, 1, head_dim=64)
    out = np.empty_like(x)
    result = ops.fused_attention_block(
        x, weights, ln_weight=layer.ln1, residual_connection=True, positions=positions, causal=True, out=out,
        context=context,
    )
    assert result is out
    assert_near(out, layer.attention(x[None], positions, True)[0])
    assert_near(
        ops.fused_ffn_block(x, layer.gate, layer.up, layer.down, layer.ln2, True, context=context), layer.ffn(x)
    )


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_cache(dtype, rng):
    """A prompt and single tokens give what all tokens at once give."""
    layer = Sublayer(rng, kv_heads=2)
    x, positions = rng.standard_normal((2, 12, 128), np.float32), np.arange(12)
    cache = ops.AttentionCache(2, 12, 2, 64, dtype=dtype)
    weights = ops.AttentionWeights(layer.wq, layer.wk, layer.wv, layer.wo, 2, 2, head_dim=64)
    parts = []
    for first, last in [(0, 9), (9, 10), (10, 12)]:
        parts.append(
            ops.fused_attention_block(
                x[:, first:last].copy(), weights, None, None, None, layer.ln1, True, positions=positions[first:last],
                kv_cache=cache, causal=True,
            )
        )
        assert len(cache) == last
    expected = layer.attention(x, positions, True)
    if dtype == "f32":
        assert_near(np.concatenate(parts, 1), expected)
    else:
        # Queries, keys, values and weights each rounded to 8 bits, by a sum of squares of weights of 1.
        assert np.abs(np.concatenate(parts, 1) - expected).max() <= 4 * 2.0**-8 * np.abs(expected).max()
    with pytest.raises(ops.ResourceExhausted, match="kv_cache holds 12 of 12 tokens"):
        ops.fused_attention_block(x[:, :1].copy(), weights, kv_cache=cache)
    # A call that fails leaves the cache as it was.
    cache.truncate(4)
    with pytest.raises(ValueError, match="ln_weight|norm.weight"):
        ops.fused_attention_block(x[:, 4:6].copy(), weights, ln_weight=np.ones(5, np.float32), kv_cache=cache)
    assert len(cache) == 4


@given(
    leading=st.lists(st.integers(1, 4), min_size=1, max_size=2),
    hidden=st.integers(1, 70),
    intermediate=st.integers(1, 70),
    activation=st.sampled_from(["silu", "gelu_tanh", "gelu_erf", "relu", "none"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_ffn_block_matches_reference(leading, hidden, intermediate, activation, seed):
    rng = np.random.default_rng(seed)
    layer = Sublayer(rng, hidden, intermediate=intermediate)
    x = rng.standard_normal((*leading, hidden), np.float32)
    out = ops.fused_ffn_block(x, layer.gate, layer.up, layer.down, layer.ln2, True, activation)
    assert_near(out, layer.ffn(x, activation))
    packed = ops.PackedWeights.gate_up(layer.gate, layer.up)
    again = ops.fused_ffn_block(
        x, packed, down=ops.PackedWeights(layer.down), ln_weight=layer.ln2, residual_connection=True,
        activation=activation,
    )
    np.testing.assert_array_equal(again, out)


def test_layer_norm_before_a_block(rng):
    layer = Sublayer(rng)
    x, bias = rng.standard_normal((5, 128), np.float32), rng.standard_normal(128, np.float32)
    rows, _ = references.layer_norm(x, layer.ln2, bias, 1e-5)
    expected = (references.activate(rows @ layer.gate.T.astype(np.float64), "silu") * (rows @ layer.up.T)) @ layer.down.T
    assert_near(ops.fused_ffn_block(x, layer.gate, layer.up, layer.down, layer.ln2, ln_bias=bias), expected)


def test_article_block(rng):
    """The articles' optimized_transformer_block, as printed."""
    torch = pytest.importorskip("torch")

    def optimized_transformer_block(
        x, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, ln1_weight, ln2_weight
    ):
        from ops_transformer import fused_attention_block, fused_ffn_block

        attn_out = fused_attention_block(
            x,
            q_proj.weight,
            k_proj.weight,
            v_proj.weight,
            o_proj.weight,
            ln_weight=ln1_weight,
            residual_connection=True,
        )
        ffn_out = fused_ffn_block(
            attn_out,
            gate_proj.weight,
            up_proj.weight,
            down_proj.weight,
            ln_weight=ln2_weight,
            residual_connection=True,
        )
        return ffn_out

    layer = Sublayer(rng, 192, 3, 1, 64, 256)
    modules = []
    for weight in (layer.wq, layer.wk, layer.wv, layer.wo, layer.gate, layer.up, layer.down):
        modules.append(torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False))
        modules[-1].weight.data.copy_(torch.from_numpy(weight))
    x = rng.standard_normal((2, 7, 192), np.float32)
    for _ in range(2):  # packed, and what was packed
        out = optimized_transformer_block(
            torch.from_numpy(x), *modules, torch.from_numpy(layer.ln1), torch.from_numpy(layer.ln2)
        )
        assert isinstance(out, torch.Tensor)
        assert_near(out.numpy(), layer.ffn(layer.attention(x)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(num_heads=None, wq=np.ones((128, 16), np.float32), wk=np.ones((128, 16), np.float32)), "num_heads"),
        (dict(num_heads=None, wq=np.ones((96, 16), np.float32), wk=np.ones((96, 16), np.float32)), "neither fits"),
        (dict(num_heads=3), "wq must be"),
        (dict(wk=None), "wk must be a matrix"),
        (dict(wv=np.ones((64, 15), np.float32)), "wv must be"),
        (dict(positions=np.arange(4)), "positions must be [3]"),
        (dict(positions=np.arange(3), rotary_dim=66), "rotary_dim is 66"),
        (dict(x=np.ones(16, np.float32)), "x must be [batch, seq, hidden]"),
        (dict(out=np.ones((3, 17), np.float32)), "out must be [3, 16]"),
        (dict(ln_bias=np.ones(16, np.float32)), "ln_bias is given without ln_weight"),
        (dict(window=0, causal=True), "window is 0"),
        (dict(kv_cache=ops.AttentionCache(2, 8, 1, 64)), "kv_cache has a batch of 2"),
        (dict(kv_cache=ops.AttentionCache(1, 8, 1, 32)), "cache has 1 heads of 32"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(
        x=np.ones((3, 16), np.float32),
        wq=np.ones((128, 16), np.float32),
        wk=np.ones((64, 16), np.float32),
        wv=np.ones((64, 16), np.float32),
        wo=np.ones((16, 128), np.float32),
        num_heads=2,
    )
    with pytest.raises(ValueError) as error:
        ops.fused_attention_block(**(usable | arguments))
    assert message in str(error.value)


def test_ffn_errors():
    x, w = np.ones((3, 16), np.float32), np.ones((16, 16), np.float32)
    with pytest.raises(ValueError, match="down must be given"):
        ops.fused_ffn_block(x, w, w)
    with pytest.raises(ValueError, match="up must be given"):
        ops.fused_ffn_block(x, w, down=w)
    with pytest.raises(ValueError, match="down is 16 x 12, must be 16 x 16"):
        ops.fused_ffn_block(x, w, w, np.ones((16, 12), np.float32))
    with pytest.raises(ValueError, match="activation is 'tanh'"):
        ops.fused_ffn_block(x, w, w, w, activation="tanh")


def test_bytes_are_counted_and_fewer_than_unfused(rng):
    layer = Sublayer(rng)
    x, positions = rng.standard_normal((1, 64, 128), np.float32), np.arange(64)
    weights = ops.AttentionWeights(layer.wq, layer.wk, layer.wv, layer.wo, 2, 1, head_dim=64)
    qkv = ops.PackedWeights(np.concatenate([layer.wq, layer.wk, layer.wv]))
    wo, gate_up, down = ops.PackedWeights(layer.wo), ops.PackedWeights.gate_up(layer.gate, layer.up), ops.PackedWeights(layer.down)

    def moved(run):
        context, profiler = ops.Context(), ops.Profiler()
        context.profiler = profiler
        run(context)
        return sum(total.bytes for total in profiler.totals())

    def fused(context):
        out = ops.fused_attention_block(
            x, weights, ln_weight=layer.ln1, residual_connection=True, positions=positions, context=context
        )
        ops.fused_ffn_block(out, gate_up, down=down, ln_weight=layer.ln2, residual_connection=True, context=context)

    def unfused(context):
        rows = ops.linear(ops.fused_rmsnorm(x, layer.ln1, context=context), qkv, context=context)
        heads = rows.reshape(1, 64, 4, 64).swapaxes(1, 2)
        q, k = (ops.rotary_embedding(heads[:, a:b], positions, context=context) for a, b in [(0, 2), (2, 3)])
        attended = ops.flash_attention(q, k, heads[:, 3:], context=context)
        out = ops.linear(attended.swapaxes(1, 2).reshape(1, 64, 128), wo, residual=x, context=context)
        gated = ops.gated_linear(ops.fused_rmsnorm(out, layer.ln2, context=context), gate_up, context=context)
        ops.linear(gated, down, residual=out, context=context)

    less = moved(unfused) - moved(fused)
    # Normalised rows written and read twice; rotated queries and keys read and written once more.
    assert less == 4 * 64 * (4 * 128 + 2 * 3 * 64)
