# SPDX-License-Identifier: Apache-2.0
"""LayerNorm, norms with what comes after them, and int8 codes out of a norm."""

import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


def check_linear_of(rows, magnitude, out, weight, bias=0.0, activation="none", residual=0.0):
    """Against float64, each normalised row erring by what its own sums may."""
    expected, _ = references.linear(rows, weight, bias, activation, residual)
    size = 1.13 * (magnitude @ np.abs(weight.astype(np.float64)).T + np.abs(bias)) + np.abs(residual)
    references.assert_close(out, expected, 2 * weight.shape[1], size)


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    leading=st.lists(st.integers(1, 5), max_size=3),
    hidden=st.integers(1, 200),
    eps=st.sampled_from([1e-6, 1e-5, 0.1]),
    offset=st.sampled_from([0.0, 3.0]),
    bias=st.booleans(),
    residual=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_layernorm_matches_reference(dtype, leading, hidden, eps, offset, bias, residual, seed):
    rng = np.random.default_rng(seed)
    x = (offset + rng.standard_normal((*leading, hidden))).astype(references.DTYPES[dtype])
    weight = rng.standard_normal(hidden).astype(np.float32)
    shift = rng.standard_normal(hidden).astype(np.float32) if bias else None
    h = x.astype(np.float32)
    options = {}
    if residual:
        options["residual"] = rng.standard_normal(x.shape).astype(x.dtype)
        h = h + options["residual"].astype(np.float32)
    out = ops.fused_layernorm(x, weight, shift, eps, **options)
    assert out.dtype == x.dtype
    expected, magnitude = references.layer_norm(h, weight, 0.0 if shift is None else shift, eps)
    references.assert_close(out, expected, hidden, magnitude)


@pytest.mark.parametrize("isa", ops.supported_isas())
def test_every_level(isa, rng):
    x, weight, bias = rng.standard_normal((7, 577), np.float32), *rng.standard_normal((2, 577), np.float32)
    linear = 0.2 * rng.standard_normal((40, 577), np.float32)
    context = ops.Context(num_threads=2, isa=isa)
    rows, magnitude = references.layer_norm(x, weight, bias, 1e-5)
    references.assert_close(ops.fused_layernorm(x, weight, bias, context=context), rows, 577, magnitude)
    check_linear_of(rows, magnitude, ops.fused_layernorm_linear(x, weight, bias, linear, context=context), linear)


def test_residual_and_out(rng):
    x, residual = rng.standard_normal((2, 3, 4, 32), np.float32)[:2]
    weight, bias = rng.standard_normal((2, 32), np.float32)
    expected, magnitude = references.layer_norm(x + residual, weight, bias, 1e-5)
    total, out = residual.copy(), np.empty_like(x)
    assert ops.fused_layernorm(x, weight, bias, residual=total, residual_out=total, out=out) is out
    references.assert_close(out, expected, 32, magnitude)
    np.testing.assert_array_equal(total, x + residual)


def test_quantised_rmsnorm(rng):
    x, weight = rng.standard_normal((2, 3, 65), np.float32), rng.standard_normal(65, np.float32)
    x[0, 1] = 0
    codes, scales = ops.quantised_rmsnorm(x, weight)
    assert codes.dtype == np.int8 and codes.shape == x.shape and scales.shape == (2, 3)
    plain = ops.fused_rmsnorm(x, weight)
    np.testing.assert_array_equal(scales, np.abs(plain).max(-1) / np.float32(127))
    assert scales[0, 1] == 0 and not codes[0, 1].any()
    assert np.abs(codes * scales[..., None].astype(np.float64) - plain).max() <= 0.501 * scales.max()


@given(
    leading=st.lists(st.integers(1, 4), max_size=2),
    hidden=st.integers(1, 80),
    outputs=st.integers(1, 40),
    layer=st.booleans(),
    activation=st.sampled_from(["none", "silu", "gelu_tanh"]),
    bias=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_norm_and_linear_match_reference(leading, hidden, outputs, layer, activation, bias, seed):
    rng = np.random.default_rng(seed)
    x, gains, shift = rng.standard_normal((*leading, hidden), np.float32), *rng.standard_normal((2, hidden), np.float32)
    weight, biases = rng.standard_normal((outputs, hidden), np.float32), rng.standard_normal(outputs, np.float32)
    biases = biases if bias else None
    added = np.float64(0) if biases is None else biases
    if layer:
        rows, magnitude = references.layer_norm(x, gains, shift, 1e-5)
        out = ops.fused_layernorm_linear(x, gains, shift, weight, biases, activation=activation)
    else:
        rows = references.rms_norm(x, gains, 1e-5)
        magnitude = np.abs(rows)
        out = ops.fused_rmsnorm_linear(x, gains, weight, biases, activation=activation)
    assert out.shape == (*leading, outputs)
    check_linear_of(rows, magnitude, out, weight, added, activation)


def test_next_layer(rng):
    x, gains = rng.standard_normal((3, 5, 16), np.float32), rng.standard_normal(16, np.float32)
    plain = ops.fused_rmsnorm(x, gains, 1e-6)
    buffer = np.full_like(x, np.nan)
    assert ops.fused_rmsnorm(x, gains, eps=1e-6, next_layer=buffer) is buffer
    np.testing.assert_array_equal(buffer, plain)
    assert ops.fused_rmsnorm_with_next(x, gains, 1e-6, buffer) is buffer
    weight = rng.standard_normal((8, 16), np.float32)
    packed = ops.PackedWeights(weight)
    expected = ops.linear(plain, packed)
    np.testing.assert_array_equal(ops.fused_rmsnorm(x, gains, eps=1e-6, next_layer=weight), expected)
    np.testing.assert_array_equal(ops.fused_rmsnorm_with_next(x, gains, 1e-6, packed), expected)
    gated = ops.PackedWeights.gate_up(weight, weight)
    np.testing.assert_array_equal(
        ops.fused_rmsnorm(x, gains, eps=1e-6, next_layer=gated), ops.gated_linear(plain, gated)
    )
    assert ops.fused_rmsnorm(x, gains, eps=1e-6, next_layer=lambda rows: rows.shape) == x.shape
    # A square x: its shape is a buffer's.
    square = rng.standard_normal((16, 16), np.float32)
    other = np.full_like(square, np.nan)
    assert ops.fused_rmsnorm(square, gains, next_layer=other) is other


@pytest.mark.parametrize(
    "next_layer, message",
    [
        (np.ones((8, 15), np.float32), "next_layer must have the shape of x, [2, 16]"),
        (np.ones(16, np.float32), "next_layer must have the shape of x"),
        (ops.PackedWeights(np.ones((4, 15), np.float32)), "x must be [-1, 15]"),
    ],
)
def test_next_layer_errors(next_layer, message):
    x, gains = np.ones((2, 16), np.float32), np.ones(16, np.float32)
    with pytest.raises(ValueError) as error:
        ops.fused_rmsnorm(x, gains, next_layer=next_layer)
    assert message in str(error.value)
    with pytest.raises(TypeError, match="next_layer must be"):
        ops.fused_rmsnorm(x, gains, next_layer=3)
    with pytest.raises(ValueError, match="out, residual and residual_out"):
        ops.fused_rmsnorm(x, gains, residual=x, next_layer=np.ones((4, 16), np.float32))


def test_modules(rng):
    layer = ops.FusedRMSNorm(16)
    assert layer.eps == 1e-6 and isinstance(layer, ops.RMSNorm) and tuple(layer.weight.shape) == (16,)
    x = rng.standard_normal((2, 16), np.float32)
    plain = ops.fused_rmsnorm(x, np.ones(16, np.float32), 1e-6)
    np.testing.assert_array_equal(layer(x), plain)
    buffer = np.empty_like(x)
    assert layer(x, buffer) is buffer
    np.testing.assert_array_equal(layer(x, next_layer_input=buffer), plain)
    with pytest.raises(ValueError, match="dim is 0"):
        ops.RMSNorm(0)


def test_torch_weights_are_packed_once_and_again_when_they_change(rng):
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(16, 8)
    x, norm = torch.tensor(rng.standard_normal((3, 16), np.float32)), torch.nn.LayerNorm(16)

    def fused():
        return ops.fused_layernorm_linear(x, norm.weight, norm.bias, layer.weight, layer.bias, eps=1e-5)

    for change in (lambda: None, lambda: layer.weight.mul_(2), lambda: layer.weight.data.normal_()):
        with torch.no_grad():
            change()
            torch.testing.assert_close(fused(), layer(norm(x)), rtol=1e-5, atol=1e-5)
    from ops_transformer import _weights

    assert len(_weights._kept) >= 1
    before = len(_weights._kept)
    fused()
    assert len(_weights._kept) == before
    del layer
    assert len(_weights._kept) == before - 1
    ops.forget_packed_weights()
    assert not _weights._kept
