# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import references

import ops_transformer as ops


def expected(x, q, k, v, heads, kv_heads, causal, bias=None, o=None):
    """Each head by itself, in float64."""
    x = x.astype(np.float64)
    batch, tokens, _ = x.shape
    shapes = [(weight.astype(np.float64), count) for weight, count in ((q, heads), (k, kv_heads), (v, kv_heads))]
    parts, first = [], 0
    for weight, count in shapes:
        y = x @ weight.T + (0 if bias is None else bias[first : first + weight.shape[0]])
        first += weight.shape[0]
        parts.append(y.reshape(batch, tokens, count, -1).transpose(0, 2, 1, 3))
    out = references.attention(*parts, parts[0].shape[-1] ** -0.5, None, 0 if causal else None)["out"]
    out = out.transpose(0, 2, 1, 3)
    return out if o is None else out.reshape(batch, tokens, -1) @ o.astype(np.float64).T


@pytest.mark.parametrize("heads, kv_heads, head_dim", [(4, 4, 16), (4, 2, None), (3, 1, 20), (6, 6, 5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("extras", [False, True])
def test_fused_heads(heads, kv_heads, head_dim, causal, extras, rng):
    d_model = 48
    dim = head_dim or d_model // heads
    q, k, v = (rng.standard_normal((n * dim, d_model), np.float32) / 7 for n in (heads, kv_heads, kv_heads))
    bias = rng.standard_normal((heads + 2 * kv_heads) * dim).astype(np.float32) if extras else None
    o = rng.standard_normal((d_model, heads * dim), np.float32) if extras else None
    x = rng.standard_normal((2, 11, d_model), np.float32)
    layer = ops.MultiHeadAttention(
        d_model, heads, num_kv_heads=kv_heads, head_dim=head_dim, q_proj=q, k_proj=k, v_proj=v, o_proj=o, bias=bias,
        causal=causal,
    )
    out = layer(x)
    assert out.dtype == np.float32 and out.shape == ((2, 11, d_model) if extras else (2, 11, heads, dim))
    np.testing.assert_allclose(out, expected(x, q, k, v, heads, kv_heads, causal, bias, o), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(layer.forward(x, causal=causal), out)


def test_as_the_article_makes_one(rng):
    """MultiHeadAttention(d_model, num_heads)(x): weights of its own, [batch, tokens, num_heads, head_dim]."""
    x = rng.standard_normal((2, 9, 64), np.float32)
    layer = ops.MultiHeadAttention(64, 4)
    assert layer(x).shape == (2, 9, 4, 16)
    np.testing.assert_array_equal(layer(x), ops.MultiHeadAttention(64, 4)(x))
    assert not np.array_equal(layer(x), ops.MultiHeadAttention(64, 4, seed=1)(x))


def test_bf16(rng):
    x, q, k, v = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((1, 5, 32), *[(32, 32)] * 3))
    layer = ops.MultiHeadAttention(32, 2, q_proj=q, k_proj=k, v_proj=v)
    out = layer(x)
    assert out.dtype == ml_dtypes.bfloat16
    # Scores are tens here: what rounding a score to bf16 does to a weight.
    error = out.astype(np.float64) - expected(x, q, k, v, 2, 2, False)
    assert np.sqrt(np.mean(error**2)) < 0.05 * np.sqrt(np.mean(out.astype(np.float64) ** 2))


def test_tensors():
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    projections = [torch.nn.Linear(32, 32, bias=False) for _ in range(3)]
    x = torch.randn(2, 6, 32)
    layer = ops.MultiHeadAttention(
        32, 2, **{f"{name}_proj": linear.weight for name, linear in zip("qkv", projections)}, causal=True
    )
    out = layer(x)
    q, k, v = (linear(x).view(2, 6, 2, 16).transpose(1, 2) for linear in projections)
    peer = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out, peer.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((30, 4), "d_model is 30, must be a multiple of num_heads, 4"),
        ((32, 0), "num_heads 0"),
        ((32, 4, 3), "num_heads is 4, must be a multiple of num_kv_heads, 3"),
    ],
)
def test_bad_sizes(arguments, message):
    with pytest.raises(ValueError, match=message):
        ops.MultiHeadAttention(*arguments[:2], num_kv_heads=arguments[2] if len(arguments) > 2 else None)


def test_bad_arrays():
    weight = np.zeros((32, 32), np.float32)
    with pytest.raises(ValueError, match="give q_proj, k_proj and v_proj"):
        ops.MultiHeadAttention(32, 4, q_proj=weight)
    with pytest.raises(ValueError, match=r"k_proj is \(16, 32\), must be \(32, 32\)"):
        ops.MultiHeadAttention(32, 4, q_proj=weight, k_proj=weight[:16], v_proj=weight)
    with pytest.raises(ValueError, match=r"x is \(3, 32\), must be \[batch, tokens, 32\]"):
        ops.MultiHeadAttention(32, 4)(weight[:3])
