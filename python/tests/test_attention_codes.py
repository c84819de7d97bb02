# SPDX-License-Identifier: Apache-2.0
"""int8 caches, pages, drawn dropout, and what a fused rotation keeps."""

import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given, settings
from hypothesis import strategies as st

import ops_transformer as ops


def philox(counter, seed):
    """Philox4x32-10 (Salmon et al., 2011) on arrays of four counter words."""
    words = [np.asarray(word, np.uint64) for word in np.broadcast_arrays(*counter)]
    key = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = words[0] * np.uint64(0xD2511F53), words[2] * np.uint64(0xCD9E8D57)
        words = [b >> np.uint64(32) ^ words[1] ^ key[0], b & low, a >> np.uint64(32) ^ words[3] ^ key[1], a & low]
        key = [key[0] + np.uint64(0x9E3779B9) & low, key[1] + np.uint64(0xBB67AE85) & low]
    return np.stack(words, -1)


def test_philox_gives_the_known_answers():
    assert [hex(x) for x in philox((0, 0, 0, 0), 0)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


@pytest.mark.parametrize("dtype", sorted(references.DTYPES))
@pytest.mark.parametrize("keep_prob", [0.9, 0.25, 1.0])
def test_dropout_seed(dtype, keep_prob, rng):
    """The same as the mask of an independent generator's bits, bit for bit."""
    q, k, v = (rng.standard_normal((2, heads, n, 24)).astype(references.DTYPES[dtype]) for heads, n in
               ((4, 70), (2, 135), (2, 135)))  # fmt: skip
    seed = 0x123456789ABCDEF
    b, h, i, quad = np.ogrid[:2, :4, :70, :34]
    words = philox((quad, i, h, b), seed).reshape(2, 4, 70, 136)
    kept = words < np.floor(np.float64(np.float32(keep_prob)) * 2**32)
    mask = np.packbits(kept, axis=-1, bitorder="little")
    drawn = ops.flash_attention(q, k, v, causal=True, dropout_seed=seed, keep_prob=keep_prob)
    given_mask = ops.flash_attention(q, k, v, causal=True, dropout_mask=mask, keep_prob=keep_prob)
    np.testing.assert_array_equal(drawn, given_mask)
    assert abs(kept.mean() - keep_prob) < 0.01
    with pytest.raises(ValueError, match="dropout_mask and dropout_seed are both given"):
        ops.flash_attention(q, k, v, dropout_mask=mask, dropout_seed=1)


def draw_codes(rng, shape, kind, offsets):
    codes = rng.integers(-128, 128, shape, np.int8)
    batch, heads, tokens, dim = shape
    sizes = {"token": (batch, heads, tokens, 1), "channel": (heads, 1, dim), "tensor": (1,)}[kind]
    scales = (0.005 + 0.02 * np.abs(rng.standard_normal(sizes))).astype(np.float32)
    return codes, scales, 10 * rng.standard_normal(sizes).astype(np.float32) if offsets else None


@settings(max_examples=100)
@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    kinds=st.tuples(*[st.sampled_from(["token", "channel", "tensor"])] * 2),
    offsets=st.booleans(),
    heads=st.sampled_from([(1, 1), (4, 2), (9, 3), (12, 1)]),
    q_len=st.sampled_from([1, 2, 40]),
    kv_len=st.integers(1, 300),
    dims=st.sampled_from([(1, 1), (33, 20), (64, 64), (128, 80)]),
    causal=st.booleans(),
    isa=st.sampled_from(ops.supported_isas()),
    paged=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_int8_keys_and_values(dtype, kinds, offsets, heads, q_len, kv_len, dims, causal, isa, paged, seed):
    rng = np.random.default_rng(seed)
    page_size = 16 if paged else kv_len
    num_pages = -(-kv_len // page_size) if paged else 2
    shapes = [(num_pages, heads[1], page_size, dim) for dim in dims]
    q = rng.standard_normal((2, heads[0], q_len, dims[0])).astype(references.DTYPES[dtype])
    k, k_scales, k_offsets = draw_codes(rng, shapes[0], kinds[0], offsets)
    v, v_scales, v_offsets = draw_codes(rng, shapes[1], kinds[1], offsets)
    named = dict(k_scales=k_scales, k_offsets=k_offsets, v_scales=v_scales, v_offsets=v_offsets)
    context = ops.Context(isa=isa, num_threads=2)

    def values(codes, scales, shift):
        exact = (codes.astype(np.float64) + (0 if shift is None else shift)) * scales
        sizes = (np.abs(codes.astype(np.float64)) + (0 if shift is None else np.abs(shift))) * scales
        if not paged:
            return exact, sizes
        # Both sequences read the same pages, in their order and backwards.
        orders = np.arange(num_pages), np.arange(num_pages)[::-1]
        joined = [[x[order].swapaxes(0, 1).reshape(heads[1], -1, x.shape[-1])[:, :kv_len] for order in orders]
                  for x in (exact, sizes)]  # fmt: skip
        return np.stack(joined[0]), np.stack(joined[1])

    (keys, key_sizes), (vals, val_sizes) = values(k, k_scales, k_offsets), values(v, v_scales, v_offsets)
    scale = dims[0] ** -0.5
    expected = references.attention(q, keys, vals, scale, None, 0 if causal else None)
    size = references.attention(np.abs(q.astype(np.float64)), key_sizes, val_sizes, scale)["score_magnitude"]
    magnitude = np.abs(val_sizes).max(axis=2).repeat(heads[0] // heads[1], axis=1)[:, :, None]
    if paged:
        tables = np.stack([np.arange(num_pages), np.arange(num_pages)[::-1]]).astype(np.int32)
        rows = np.ascontiguousarray(q.swapaxes(1, 2)).reshape(2 * q_len, heads[0], -1)
        out = ops.flash_attention_paged(rows, k, v, tables, np.full(2, kv_len, np.int32), [0, q_len, 2 * q_len],
                                        causal=causal, context=context, **named)  # fmt: skip
        out = out.reshape(2, q_len, heads[0], -1).swapaxes(1, 2)
    else:
        out = ops.flash_attention(q, k, v, causal=causal, context=context, **named)
    assert out.dtype == q.dtype
    score_error = references.tolerance(dims[0] + 2, size, 0, np.float32)[..., None]
    allowed = 2 * score_error * magnitude + references.tolerance(kv_len + 2, magnitude, expected["out"], q.dtype)
    assert np.all(np.abs(out.astype(np.float64) - expected["out"]) <= allowed)


def test_bf16_keys_under_f32_queries(rng):
    q = rng.standard_normal((1, 4, 9, 32)).astype(np.float32)
    k, v = (rng.standard_normal((1, 2, 50, 32)).astype(ml_dtypes.bfloat16) for _ in range(2))
    out = ops.flash_attention(q, k, v, causal=True)
    assert out.dtype == np.float32
    wanted = ops.flash_attention(q.astype(ml_dtypes.bfloat16), k, v, causal=True, out=np.empty_like(out))
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("dtype", sorted(references.DTYPES))
def test_pages_equal_contiguous(dtype, rng):
    """Pages that don't lie side by side; what a page table may not hold."""
    k_pages, v_pages = (rng.standard_normal((5, 2, 4, 16)).astype(references.DTYPES[dtype]) for _ in range(2))
    table, lens = np.array([[2, 0, 1], [4, 0, -1]], np.int32), np.array([9, 7])
    q = rng.standard_normal((3, 4, 16)).astype(references.DTYPES[dtype])
    lse = np.full((3, 4), np.nan, np.float32)
    out = ops.flash_attention_paged(q, k_pages, v_pages, table, lens, [0, 2, 3], causal=True, lse=lse)
    for first, last, pages, length in ((0, 2, [2, 0, 1], 9), (2, 3, [4, 0], 7)):
        k, v = (x[pages].swapaxes(0, 1).reshape(1, 2, -1, 16)[:, :, :length] for x in (k_pages, v_pages))
        wanted, wanted_lse = ops.flash_attention(
            q[None, first:last].swapaxes(1, 2), k, v, causal=True, return_lse=True
        )
        np.testing.assert_array_equal(out[first:last], wanted[0].swapaxes(0, 1))
        np.testing.assert_array_equal(lse[first:last], wanted_lse[0].swapaxes(0, 1))
    with pytest.raises(ValueError, match=r"batch 1, slot 2\) is -1, must be from 0 to 4"):
        ops.flash_attention_paged(q, k_pages, v_pages, table, np.array([9, 9]), [0, 2, 3])
    with pytest.raises(ValueError, match="kv_lens"):
        ops.flash_attention_paged(q, k_pages, v_pages, table, np.array([13, 7]), [0, 2, 3])


@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
@pytest.mark.parametrize("scaling", [None, ops.NtkScaling(4.0), ops.Llama3Scaling(), ops.YarnScaling(4.0, 64)])
def test_fused_rope_scales_and_keeps_keys(layout, scaling, rng):
    q, k, v = (rng.standard_normal((2, heads, 40, 32)).astype(np.float32) for heads in (4, 2, 2))
    positions = np.arange(40) * 9
    rotated_q, rotated_k = (ops.rotary_embedding(x, positions, scaling=scaling) for x in (q, k))
    wanted = ops.flash_attention(rotated_q, rotated_k, v, causal=True)

    def laid_out(x):
        if layout == "BNSD":
            return x
        x = np.ascontiguousarray(x.swapaxes(1, 2))
        x = x if layout == "BSND" else x.reshape(2, 40, -1)
        return np.ascontiguousarray(x.swapaxes(0, 1)) if layout == "SBH" else x

    kept = np.full_like(laid_out(k), np.nan)
    out = ops.fused_rope_attention(
        *(laid_out(x) for x in (q, k, v)), positions, causal=True, scaling=scaling, layout=layout,
        num_heads=None if layout == "BNSD" else 4, rotated_key=kept,
    )  # fmt: skip
    np.testing.assert_array_equal(kept, laid_out(rotated_k))
    np.testing.assert_allclose(out, laid_out(wanted), atol=2e-6)
    with pytest.raises(ValueError, match="rotated_k must be"):
        ops.fused_rope_attention(q, k, v, rotated_key=np.empty((2, 2, 39, 32), np.float32))
