# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


def check(out, x, weight, eps, weight_offset=0.0):
    expected = references.rms_norm(x, weight, eps, weight_offset)
    references.assert_close(out, expected, x.shape[-1], np.abs(expected))


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    leading=st.lists(st.integers(1, 5), max_size=3),
    hidden=st.integers(1, 200),
    eps=st.sampled_from([0.0, 1e-6, 1e-5, 0.1]),
    weight_dtype=st.sampled_from(["f32", "same"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_reference(dtype, leading, hidden, eps, weight_dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((*leading, hidden)).astype(references.DTYPES[dtype])
    weight = rng.standard_normal(hidden).astype(x.dtype if weight_dtype == "same" else np.float32)
    out = ops.fused_rmsnorm(x, weight, eps)
    assert out.dtype == x.dtype
    check(out, x, weight, eps)


@pytest.mark.parametrize("isa", ops.supported_isas())
def test_every_level(isa, rng):
    x, weight = rng.standard_normal((7, 577), np.float32), rng.standard_normal(577, np.float32)
    check(ops.fused_rmsnorm(x, weight, context=ops.Context(num_threads=2, isa=isa)), x, weight, 1e-5)


@pytest.mark.parametrize(
    "arrange",
    [
        lambda x: x.transpose(1, 0, 2, 3),
        lambda x: x.transpose(2, 1, 0, 3),
        lambda x: x[:, ::2, ::-1, :],
        lambda x: x[..., :40],
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: x[:, :0],
    ],
)
def test_strides(arrange, rng):
    x = arrange(rng.standard_normal((3, 4, 5, 64), np.float32))
    weight = rng.standard_normal(x.shape[-1], np.float32)
    check(ops.fused_rmsnorm(x, weight), x, weight, 1e-5)
    wide = np.full((*x.shape[:-1], x.shape[-1] + 5), np.nan, np.float32)
    ops.fused_rmsnorm(x, weight, out=wide[..., : x.shape[-1]])
    check(wide[..., : x.shape[-1]], x, weight, 1e-5)
    assert np.all(np.isnan(wide[..., x.shape[-1] :]))


def test_residual(rng):
    x, residual = rng.standard_normal((2, 3, 4, 32), np.float32)[:2]
    weight = rng.standard_normal(32, np.float32)
    total = x + residual
    in_place = residual.copy()
    out = ops.fused_rmsnorm(x, weight, residual=in_place, residual_out=in_place)
    check(out, total, weight, 1e-5)
    np.testing.assert_array_equal(in_place, total)
    np.testing.assert_array_equal(ops.fused_rmsnorm(x, weight, residual=residual), out)


def test_out_is_returned_and_may_be_x(rng):
    x, weight = rng.standard_normal((4, 32), np.float32), rng.standard_normal(32, np.float32)
    before = x.copy()
    assert ops.fused_rmsnorm(x, weight, out=x) is x
    check(x, before, weight, 1e-5)


def test_weight_offset(rng):
    x, weight = rng.standard_normal((4, 32), np.float32), rng.standard_normal(32, np.float32)
    check(ops.fused_rmsnorm(x, weight, weight_offset=1.0), x, weight, 1e-5, 1.0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(weight=np.ones(7, np.float32)), "weight must be [8]"),
        (dict(eps=-1.0), "eps is -1"),
        (dict(eps=float("nan")), "eps is nan"),
        (dict(x=np.ones((2, 8), np.float64)), "x is ndarray of float64"),
        (dict(x=np.float32(1)), "x must have at least one dimension"),
        (dict(x=np.ones((2, 16), np.float32)[:, ::2]), "last dimension of x must be contiguous"),
        (dict(residual=np.ones((1, 8), np.float32)), "residual must be [2, 8]"),
        (dict(out=np.ones((3, 8), np.float32)), "out must be [2, 8]"),
        (dict(out=np.ones((2, 8), np.float16)), "out must be f32"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(x=np.ones((2, 8), np.float32), weight=np.ones(8, np.float32))
    with pytest.raises(ValueError) as error:
        ops.fused_rmsnorm(**(usable | arguments))
    assert message in str(error.value)


def test_nothing_is_written_on_error():
    out = np.full((2, 8), 7, np.float32)
    with pytest.raises(ValueError):
        ops.fused_rmsnorm(np.ones((2, 8), np.float32), np.ones(9, np.float32), out=out)
    assert np.all(out == 7)
