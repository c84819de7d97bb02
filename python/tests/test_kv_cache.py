# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


def rope(x, cos, sin):
    """Evens then odds, turned; with the sum of |a||b|."""
    y = np.concatenate([x[..., ::2], x[..., 1::2]], -1)
    turned = np.concatenate([-x[..., 1::2], x[..., ::2]], -1)
    return y * cos + turned * sin, np.abs(y * cos) + np.abs(turned * sin)


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    batch=st.integers(1, 3),
    heads=st.integers(1, 2),
    seq=st.integers(1, 6),
    norm_len=st.integers(1, 70),
    half=st.integers(1, 20),
    codes=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_pages_match_reference(dtype, batch, heads, seq, norm_len, half, codes, seed):
    rng = np.random.default_rng(seed)
    dim, pages, page_size = 2 * half, 5, 4
    kv = rng.standard_normal((batch, heads, seq, norm_len + dim)).astype(references.DTYPES[dtype])
    gamma = rng.standard_normal(norm_len).astype(np.float32)
    cos, sin = rng.standard_normal((2, 1, seq, dim)).astype(np.float32)
    index = rng.permutation(pages * page_size)[: batch * seq]
    index[rng.random(index.shape) < 0.2] = -1
    cached = np.int8 if codes else kv.dtype
    k_cache, c_cache = (np.full((pages, heads, page_size, n), 42, cached) for n in (dim, norm_len))
    k_out, c_out = (np.full((batch, heads, seq, n), np.nan, kv.dtype) for n in (dim, norm_len))
    scale = np.full(dim, 30, np.float32)
    options = dict(k_scale=scale) if codes else {}
    ops.kv_rms_norm_rope_cache(kv, gamma, cos, sin, index, k_cache, c_cache, "pa", k_out=k_out, c_out=c_out, **options)
    x = kv.astype(np.float64)
    c = references.rms_norm(x[..., :norm_len], gamma, 1e-5)
    k, magnitude = rope(x[..., norm_len:], cos[0], sin[0])
    references.assert_close(k_out, k, norm_len, magnitude)
    references.assert_close(c_out, c, norm_len, np.abs(c))
    touched = np.zeros((pages, page_size), bool)
    for row, place in enumerate(index):
        if place < 0:
            continue
        page, slot = divmod(place, page_size)
        touched[page, slot] = True
        for cache, rows, size, factor in [
            (k_cache, k, magnitude, 30.0),
            (c_cache, c, np.abs(c), 1.0),
        ]:
            expected, sizes = (a[row // seq, :, row % seq] for a in (rows, size))
            if codes:
                exact = np.clip(expected * factor, -128, 127)
                assert np.all(np.abs(cache[page, :, slot] - exact) <= 0.501)
            else:
                references.assert_close(cache[page, :, slot], expected, norm_len, sizes)
    for cache in (k_cache, c_cache):
        assert np.all(cache.swapaxes(1, 2)[~touched] == 42)


def test_every_mode_holds_the_same_rows(rng):
    """Rows read back from each layout are those of the plainest one."""
    kv = rng.standard_normal((2, 1, 6, 64 + 32), np.float32)
    gamma, (cos, sin) = np.ones(64, np.float32), rng.standard_normal((2, 2, 6, 32), np.float32)
    k, c = np.zeros((2, 1, 6, 32), np.float32), np.zeros((2, 1, 6, 64), np.float32)
    ops.kv_rms_norm_rope_cache(kv, gamma, cos, sin, np.tile(np.arange(6), (2, 1)), k, c)
    for mode in ("pa", "pa_nz", "pa_blk", "pa_blk_nz"):
        places = np.array([8, 4, 0, 12]) if "blk" in mode else np.concatenate([[8, 9, 10, 11, 4, 5], [0, 1, 2, 3, 12, 13]])
        shape = lambda n: (4, n // 8, 4, 8) if "nz" in mode else (4, 1, 4, n)
        caches = [np.zeros(shape(n), np.float32) for n in (32, 64)]
        ops.kv_rms_norm_rope_cache(kv, gamma, cos, sin, places, *caches, mode)
        slots = np.array([8, 9, 10, 11, 4, 5, 0, 1, 2, 3, 12, 13])
        for cache, expected in zip(caches, (k, c)):
            rows = cache.swapaxes(1, 2).reshape(16, -1)[slots]
            np.testing.assert_array_equal(rows, expected.reshape(12, -1))


def test_errors_leave_the_caches_alone():
    kv, gamma = np.ones((1, 1, 2, 12), np.float32), np.ones(8, np.float32)
    angles = np.ones((1, 2, 4), np.float32)
    k, c = np.zeros((2, 1, 4, 4), np.float32), np.zeros((2, 1, 4, 8), np.float32)
    for index, mode, message in [
        (np.array([0, 8]), "pa", "index[1] is 8, must be -1 or from 0 to 7"),
        (np.array([0, -2]), "pa", "index[1] is -2"),
        (np.array([0]), "pa", "index must be [2]"),
        (np.array([0, 1]), "pages", "mode is 'pages'"),
        (np.array([0, 1], np.int32), "pa", "index must be i64"),
    ]:
        with pytest.raises(ValueError) as error:
            ops.kv_rms_norm_rope_cache(kv, gamma, angles, angles, index, k, c, mode)
        assert message in str(error.value)
    assert not k.any() and not c.any()
