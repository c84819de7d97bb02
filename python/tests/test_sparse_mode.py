# SPDX-License-Identifier: Apache-2.0
"""Masks by Ascend's numbers, each against its line of the table in float64."""

import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st
from test_attention import check_expected

import ops_transformer as ops

ALL = 2147483647


def seen(mode, q_len, kv_len, pre, following, hidden, prefix):
    """What a sequence's queries see, [..., q_len, kv_len]."""
    i, j, d = np.arange(q_len)[:, None], np.arange(kv_len)[None], kv_len - q_len
    band = (j >= i + d - pre) & (j <= i + d + following)
    if mode == 0:
        if hidden is None:
            return np.ones((q_len, kv_len), bool)
        return ~hidden & (j >= i - pre) & (j <= i + following)
    if mode == 9:
        return np.concatenate([np.ones((*hidden.shape[:-1], d), bool), ~hidden], -1)
    return {
        1: lambda: ~hidden,
        2: lambda: j <= i,
        3: lambda: j <= i + d,
        4: lambda: band,
        5: lambda: (j <= i + d) | (j < prefix),
        6: lambda: (j <= i + d) | (j < prefix),
    }[mode]()


def arrays(rng, dtype, *shapes):
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@given(
    mode=st.integers(0, 6) | st.just(9),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16]),
    q_len=st.integers(1, 40),
    more_keys=st.integers(-20, 60),
    tokens=st.tuples(*[st.sampled_from([ALL, 0, 3, 17, -2])] * 2),
    mask_kind=st.sampled_from([None, np.bool_, np.uint8, np.int8]),
    mask_batch=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_table(mode, dtype, q_len, more_keys, tokens, mask_kind, mask_batch, seed):
    rng = np.random.default_rng(seed)
    batch, kv_len = 2, max(1, q_len + more_keys, q_len if mode == 9 else 1)
    q, k, v = arrays(rng, dtype, (batch, 4, q_len, 16), (batch, 2, kv_len, 16), (batch, 2, kv_len, 16))
    if mode in (1, 9) and mask_kind is None:
        mask_kind = np.bool_
    hidden, mask = None, None
    if mask_kind is not None:
        shape = (q_len, q_len if mode == 9 else kv_len)
        if mode == 9:
            shape = (batch if mask_batch else 1, *shape)
        elif mask_batch:
            shape = (batch, 1, *shape)
        hidden = rng.random(shape) < 0.4
        mask = (hidden * rng.integers(1, 100, shape)).astype(mask_kind)
    prefix = rng.integers(0, kv_len + 1, batch)
    visible = seen(mode, q_len, kv_len, *tokens, hidden, prefix[:, None, None, None])
    if mode == 9:
        visible = visible[:, None]
    expected = references.attention(q, k, v, 0.25, visible=np.broadcast_to(visible, (batch, 4, q_len, kv_len)))
    result = ops.flash_attention(
        q,
        k,
        v,
        sparse_mode=mode,
        pre_tokens=tokens[0],
        next_tokens=tokens[1],
        atten_mask=mask,
        prefix_lens=prefix.tolist() if mode in (5, 6) else None,
        return_lse=True,
    )
    check_expected(result, expected, 16, dtype)


@pytest.mark.parametrize("mode", [0, 2, 3, 4, 5, 7, 8, 9])
def test_packed(mode, rng):
    """Sequences without queries first, between and last: the band is that of the first or last one that has some."""
    lengths = [(0, 3), (7, 12), (0, 0), (5, 5), (9, 30), (0, 2)]
    pre, following = 4, 1
    q_offsets, kv_offsets = (np.cumsum([0, *[pair[i] for pair in lengths]]).tolist() for i in (0, 1))
    q, k, v = arrays(rng, np.float32, (21, 4, 16), (kv_offsets[-1], 2, 16), (kv_offsets[-1], 2, 16))
    trees = [rng.random((q_len, q_len)) < 0.4 for q_len, _ in lengths]
    prefixes = [min(kv_len, 4) for _, kv_len in lengths]
    options = {"pre_tokens": pre, "next_tokens": following} if mode in (4, 7, 8) else {}
    if mode == 9:
        options["atten_mask"] = np.concatenate([tree.ravel() for tree in trees])
    if mode == 5:
        options["prefix_lens"] = prefixes
    out, lse = ops.flash_attention(
        q, k, v, layout="TND", q_offsets=q_offsets, kv_offsets=kv_offsets, sparse_mode=mode, return_lse=True, **options
    )
    for b, (q_len, kv_len) in enumerate(lengths):
        if q_len == 0:
            continue
        own = {7: 4 if b == 4 else 3, 8: 4 if b == 1 else 2}.get(mode, mode)
        visible = seen(own, q_len, kv_len, pre, following, trees[b] if mode == 9 else None, prefixes[b])
        rows, keys = slice(q_offsets[b], q_offsets[b + 1]), slice(kv_offsets[b], kv_offsets[b + 1])
        one = [a.transpose(1, 0, 2)[None] for a in (q[rows], k[keys], v[keys])]
        expected = references.attention(*one, 0.25, visible=visible[None, None])
        check_expected((out[rows].transpose(1, 0, 2)[None], lse[rows].T[None]), expected, 16, np.float32)


def test_compressed_masks_are_never_read(rng):
    """The 2048 x 2048 triangle that programs pass with 2, 3, 4: only the rule counts."""
    q, k, v = arrays(rng, np.float32, (1, 2, 9, 8), (1, 2, 12, 8), (1, 2, 12, 8))
    garbage = rng.integers(0, 2, (2048, 2048), np.uint8)
    for mode in (2, 3, 4):
        plain, masked = (
            ops.flash_attention(q, k, v, sparse_mode=mode, next_tokens=0, atten_mask=mask) for mask in (None, garbage)
        )
        np.testing.assert_array_equal(masked, plain)
    np.testing.assert_array_equal(
        ops.flash_attention(q, k, v, sparse_mode=3), ops.flash_attention(q, k, v, causal=True)
    )
    np.testing.assert_array_equal(
        ops.flash_attention(q, k, v, sparse_mode=2), ops.flash_attention(q, k, v, causal=True, align="first")
    )


@pytest.mark.parametrize(
    "options, message",
    [
        ({"sparse_mode": 10}, "sparse_mode is 10, must be from 0 to 9"),
        ({"sparse_mode": -1}, "sparse_mode is -1"),
        ({"sparse_mode": 1}, "sparse_mode is 1, which needs atten_mask"),
        ({"sparse_mode": 9}, "sparse_mode is 9, which needs atten_mask"),
        ({"sparse_mode": 5}, "sparse_mode is 5, which needs prefix_lens"),
        ({"sparse_mode": 3, "prefix_lens": [1]}, "has no prefix_lens"),
        ({"sparse_mode": 7}, "needs packed sequences"),
        ({"sparse_mode": 3, "causal": True}, "causal is given too"),
        ({"sparse_mode": 4, "band": (1, 1)}, "window is given too"),
        ({"sparse_mode": 0, "align": "first"}, "align is given too"),
        ({"sparse_mode": 0, "visible": np.ones((3, 3), bool)}, "visible is given too"),
        ({"pre_tokens": 3}, "sparse_mode gives a meaning"),
        ({"sparse_mode": 0, "atten_mask": np.zeros((3, 3), np.float32)}, "atten_mask must be"),
        ({"sparse_mode": 0, "atten_mask": np.zeros((3, 4), np.uint8)}, "must be 3 or 1"),
    ],
)
def test_bad_arguments(options, message):
    q = np.zeros((1, 2, 3, 8), np.float32)
    with pytest.raises(ValueError, match=message):
        ops.flash_attention(q, q, q, **options)


@pytest.mark.parametrize("size", [0, 24, 26])
def test_flat_trees_of_a_wrong_size(size):
    q = np.zeros((7, 2, 8), np.float32)
    mask = np.zeros(size, np.uint8)
    with pytest.raises(ValueError, match="sum of the sequences"):
        ops.flash_attention(q, q, q, layout="TND", q_offsets=[0, 4, 7], sparse_mode=9, atten_mask=mask)
