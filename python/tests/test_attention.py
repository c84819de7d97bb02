# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


def limits(causal, window):
    """The reference's left and right."""
    left, right = (None, None)
    if isinstance(window, tuple):
        left, right = (None if side == -1 else side for side in window)
    elif window is not None:
        left = window - 1
    return left, 0 if causal else right


def check(result, q, k, v, scale, causal=False, window=None):
    out, lse = result
    expected = references.attention(q, k, v, scale, *limits(causal, window))
    assert out.dtype == q.dtype and lse.dtype == np.float32
    score_error = references.tolerance(q.shape[-1], expected["score_magnitude"], 0, np.float32)
    # With bf16 keys the probabilities enter the second product as bf16.
    weight_error = 2 * 2.0**-8 if q.dtype == ml_dtypes.bfloat16 else 0
    allowed = references.tolerance(
        expected["num_keys"][..., None], expected["magnitude"], expected["out"], out.dtype
    ) + (2 * score_error + weight_error)[..., None] * expected["magnitude"]
    assert np.all(np.abs(out.astype(np.float64) - expected["out"]) <= allowed)
    empty = expected["num_keys"] == 0
    assert np.all(out[empty] == 0) and np.all(np.isneginf(lse[empty]))
    allowed = references.tolerance(expected["num_keys"], 1, expected["lse"], np.float32) + score_error + weight_error
    assert np.all(np.abs(lse[~empty] - expected["lse"][~empty]) <= allowed[~empty])


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (9, 3)]),
    q_len=st.integers(1, 70),
    kv_len=st.integers(1, 140),
    head_dim=st.sampled_from([1, 3, 16, 33, 64, 80, 128]),
    value_dim=st.sampled_from([None, 1, 24]),
    causal=st.booleans(),
    window=st.sampled_from([None, None, 1, 7, 40, (3, 0), (0, 5), (-1, 2), (20, -1)]),
    softmax_scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_reference(
    dtype, batch, heads, q_len, kv_len, head_dim, value_dim, causal, window, softmax_scale, seed
):
    if isinstance(window, int) and not causal:
        window = (window, window)
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal(shape).astype(references.DTYPES[dtype])
        for shape in (
            (batch, heads[0], q_len, head_dim),
            (batch, heads[1], kv_len, head_dim),
            (batch, heads[1], kv_len, value_dim or head_dim),
        )
    )
    result = ops.flash_attention(q, k, v, causal, softmax_scale, window, return_lse=True)
    check(result, q, k, v, softmax_scale or head_dim**-0.5, causal, window)
    without_lse = ops.flash_attention(q, k, v, causal, softmax_scale, window)
    np.testing.assert_array_equal(without_lse.view(np.uint8), result[0].view(np.uint8))


@pytest.mark.parametrize("isa", ops.supported_isas())
@pytest.mark.parametrize("dtype", sorted(references.DTYPES))
@pytest.mark.parametrize("q_len", [1, 65])
def test_every_level(isa, dtype, q_len, rng):
    q, k, v = (
        rng.standard_normal((1, heads, length, 64)).astype(references.DTYPES[dtype])
        for heads, length in ((9, q_len), (3, 200), (3, 200))
    )
    for threads in (1, 2):
        context = ops.Context(num_threads=threads, isa=isa)
        check(ops.flash_attention(q, k, v, causal=True, return_lse=True, context=context), q, k, v, 0.125, True)


def test_article_names_and_strides(rng):
    """Tensors as projections leave them, [batch, seq, heads, head_dim] seen as [batch, heads, seq, head_dim]."""
    q, k, v = (rng.standard_normal((2, 17, heads, 32), np.float32).transpose(0, 2, 1, 3) for heads in (4, 2, 2))
    scale = 1.0 / (32**0.5)
    out = np.full((2, 17, 4, 32), np.nan, np.float32).transpose(0, 2, 1, 3)
    returned = ops.flash_attention(query=q, key=k, value=v, causal=True, softmax_scale=scale, out=out)
    assert returned is out
    _, lse = ops.flash_attention(q, k, v, causal=True, softmax_scale=scale, return_lse=True)
    check((out, lse), q, k, v, scale, True)
    k.setflags(write=False)
    np.testing.assert_array_equal(ops.flash_attention(q, k, v, True, scale), out)


def test_keys_and_values_expanded_over_heads_and_batch(rng):
    q = rng.standard_normal((3, 4, 5, 16), np.float32)
    k, v = (np.broadcast_to(rng.standard_normal((1, 1, 9, 16), np.float32), (3, 4, 9, 16)) for _ in range(2))
    check(ops.flash_attention(q, k, v, return_lse=True), q, k, v, 0.25)


def test_masks_align_with_the_end_of_the_keys():
    """Cases 4, 5, 7 and 8: equal scores make the result the mean of the visible values."""

    def mean_of(q_len, values, **options):
        zeros = np.zeros((1, 1, len(values), 1), np.float32)
        v = np.array(values, np.float32).reshape(1, 1, -1, 1)
        return ops.flash_attention(zeros[:, :, :1].repeat(q_len, 2), zeros, v, return_lse=True, **options)

    out, lse = mean_of(2, range(5), causal=True)
    np.testing.assert_allclose(out.ravel(), [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), np.log([4, 5]), rtol=1e-6)
    out, lse = mean_of(5, [10, 20], causal=True)
    np.testing.assert_allclose(out.ravel(), [0, 0, 0, 10, 15])
    assert np.all(np.isneginf(lse.ravel()[:3]))
    np.testing.assert_allclose(mean_of(5, range(5), window=(1, 1))[0].ravel(), [0.5, 1, 2, 3, 3.5])
    np.testing.assert_allclose(mean_of(1, range(10), causal=True, window=4)[0].ravel(), [7.5])
    plain = mean_of(1, range(10), causal=True)[0]
    assert mean_of(1, range(10), causal=True, window=10)[0] == plain == mean_of(1, range(10), causal=True, window=11)[0]


def test_empty_tensors():
    """Case 19."""
    ones = np.ones((2, 2, 3, 4), np.float32)
    for axis in (0, 2):
        empty = np.delete(ones, range(ones.shape[axis]), axis)
        other = ones if axis == 2 else empty
        assert ops.flash_attention(empty, other, other).shape == empty.shape
    out, lse = ops.flash_attention(ones, ones[:, :, :0], ones[:, :, :0], return_lse=True)
    assert np.all(out == 0) and np.all(np.isneginf(lse))
    with pytest.raises(ValueError, match="head_dim is 0"):
        ops.flash_attention(ones[..., :0], ones[..., :0], ones)


ONES = np.ones((1, 4, 3, 8), np.float32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(query=ONES[0]), "query must have 4 dimensions"),
        (dict(value=ONES[0]), "value must have 4 dimensions"),
        (dict(key=ONES[:, :3], value=ONES[:, :3]), "num_q_heads is 4, must be a multiple of num_kv_heads, 3"),
        (dict(key=ONES[..., :7]), "k must be"),
        (dict(value=ONES[:, :, :2]), "v must be"),
        (dict(key=ONES.astype(np.float16)), "k must be f32, got f16"),
        (dict(out=ONES[..., :4].copy()), "out must be"),
        (dict(softmax_scale=float("inf")), "softmax_scale is inf"),
        (dict(window=0, causal=True), "window is 0"),
        (dict(window=3), "window is 3 and needs the causal mask"),
        (dict(window=(-2, 0)), "window_left is -2"),
        (dict(out=ONES), "out must not overlap"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(query=ONES, key=ONES, value=ONES)
    with pytest.raises(ValueError) as error:
        ops.flash_attention(**(usable | arguments))
    assert message in str(error.value)


def test_torch_against_its_own_attention():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 50, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
    out, lse = ops.flash_attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.02)
