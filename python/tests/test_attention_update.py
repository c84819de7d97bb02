# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


def merged(outs, lses):
    """Float64, and the sum of weight |out| that a bound needs."""
    outs, lses = np.asarray(outs, np.float64), np.asarray(lses, np.float64)
    empty = np.isinf(lses)
    lses = np.where(empty, -np.inf, lses)
    most = np.where(empty.all(0), 0, lses.max(0))
    weights = np.exp(lses - most)
    total = weights.sum(0)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + most
    weights = (weights / np.where(total == 0, 1, total))[..., None]
    live = np.where(empty[..., None], 0, outs)
    return (weights * live).sum(0), (weights * np.abs(live)).sum(0), lse


def check(out, lse, outs, lses):
    expected, magnitude, expected_lse = merged(outs, lses)
    finite = np.isfinite(np.asarray(lses))
    size = np.abs(np.where(finite, lses, 0)).max()
    weight_error = 2 * references.tolerance(1, size, 0, np.float32)
    error = np.abs(out.astype(np.float64) - expected)
    assert np.all(error <= weight_error * magnitude + references.tolerance(len(outs), magnitude, expected, out.dtype))
    empty = np.isneginf(expected_lse)
    assert np.all(np.isneginf(lse[empty])) and np.all(out[empty] == 0)
    allowed = weight_error + references.tolerance(len(outs), 1, np.where(empty, 0, expected_lse), np.float32)
    assert np.all(np.abs(lse[~empty] - expected_lse[~empty]) <= allowed[~empty])


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    parts=st.integers(1, 9),
    shape=st.sampled_from([(5,), (3, 7), (2, 3, 4), (1, 1, 1)]),
    dim=st.sampled_from([1, 8, 33, 128]),
    seed=st.integers(0, 2**32 - 1),
)
def test_attention_update_matches_reference(dtype, parts, shape, dim, seed):
    rng = np.random.default_rng(seed)
    outs = [rng.standard_normal((*shape, dim)).astype(references.DTYPES[dtype]) for _ in range(parts)]
    lses = [rng.normal(0, 5, shape).astype(np.float32) for _ in range(parts)]
    for out, lse in zip(outs, lses):
        empty = rng.random(shape) < 0.3
        lse[empty] = rng.choice([-np.inf, np.inf])
        out[empty] = np.nan
    out, lse = ops.attention_update(lses, outs)
    assert out.dtype == outs[0].dtype and lse.dtype == np.float32 and lse.shape == shape
    check(out, lse, outs, lses)


def test_attention_update_joins_parts_of_the_keys(rng):
    q, k, v = (rng.standard_normal((2, 4, n, 32)).astype(np.float32) for n in (9, 40, 40))
    parts = [ops.flash_attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in [(0, 7), (7, 8), (8, 40)]]
    out, lse = ops.attention_update([p[1] for p in parts], [p[0] for p in parts])
    whole, whole_lse = ops.flash_attention(q, k, v, return_lse=True)
    np.testing.assert_allclose(out, whole, atol=1e-5)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-5)


@pytest.mark.parametrize("layout", ["SBH", "BSH", "BSND", "BNSD", "TND"])
def test_ring_attention_update_joins_parts_of_the_keys(rng, layout):
    q, k, v = (rng.standard_normal((2, 4, n, 32)).astype(np.float32) for n in (9, 40, 40))

    def laid_out(x):  # [batch, heads, tokens, dim]
        if layout == "BNSD":
            return x
        if layout == "TND":
            return np.ascontiguousarray(x.swapaxes(1, 2)).reshape(-1, 4, x.shape[-1])
        x = np.ascontiguousarray(x.swapaxes(1, 2))
        x = x if layout == "BSND" else x.reshape(*x.shape[:2], -1)
        return np.ascontiguousarray(x.swapaxes(0, 1)) if layout == "SBH" else x

    def part(first, last):
        maximum, total = (np.empty((2, 4, 9, 8), np.float32) for _ in range(2))
        out = ops.flash_attention(q, k[:, :, first:last], v[:, :, first:last], softmax_max=maximum, softmax_sum=total)
        if layout == "TND":
            maximum, total = laid_out(maximum), laid_out(total)
        return laid_out(out), maximum, total

    out, maximum, total = ops.ring_attention_update(*part(0, 13), *part(13, 40), layout=layout)
    whole = part(0, 40)
    for got, wanted in zip((out, maximum, total), whole):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)
    for empty_sum in (0, np.finfo(np.float32).max):
        nothing = np.full_like(whole[0], np.nan), np.full_like(maximum, -3), np.full_like(total, empty_sum)
        for args in ((*whole, *nothing), (*nothing, *whole)):
            for got, wanted in zip(ops.ring_attention_update(*args, layout=layout), whole):
                np.testing.assert_array_equal(got, wanted)


def test_torch_parts_give_torch_results(rng):
    torch = pytest.importorskip("torch")
    out, lse = ops.attention_update([torch.zeros(3), torch.zeros(3)], [torch.ones(3, 8), 3 * torch.ones(3, 8)])
    assert torch.equal(out, 2 * torch.ones(3, 8)) and torch.allclose(lse, torch.full((3,), np.log(2)))


def test_errors_name_the_part():
    out, lse = np.zeros((3, 8), np.float32), np.zeros(3, np.float32)
    with pytest.raises(ValueError, match=r"parts\[1\].out must be \[3, 8\]"):
        ops.attention_update([lse, lse], [out, out[:, :7]])
    with pytest.raises(ValueError, match="lse has 1 entries, local_out has 2"):
        ops.attention_update([lse], [out, out])
    with pytest.raises(ValueError, match="local_out is empty"):
        ops.attention_update([], [])
    with pytest.raises(ValueError, match="f32"):
        ops.attention_update([lse.astype(ml_dtypes.bfloat16)], [out])
