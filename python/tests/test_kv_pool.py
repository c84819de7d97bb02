# SPDX-License-Identifier: Apache-2.0
"""A pool of pages from Python, read in place by flash_attention."""

import ml_dtypes
import numpy as np
import pytest
import references
from test_attention import check_expected

import ops_transformer as ops

HEADS, KV_HEADS, DIM, PAGE = 4, 2, 16, 8


@pytest.fixture(params=["f32", "bf16"])
def pool(request):
    return ops.KvPool(2, KV_HEADS, head_dim=DIM, num_pages=20, page_size=PAGE, dtype=request.param)


def fill(pool, sequence, tokens, rng):
    """The rows as the pool holds them."""
    rows = [rng.standard_normal((tokens, KV_HEADS, DIM)).astype(ml_dtypes.bfloat16) for _ in range(2)]
    slots = pool.append(sequence, tokens)
    for layer in range(2):
        pool.write(layer, slots, rows[0] * (layer + 1), rows[1] * (layer + 1))
    return rows


def attend(pool, ids, q, q_offsets, layer=1, **options):
    lse = np.full(q.shape[:2], np.nan, np.float32)
    out = ops.flash_attention_paged(q, *pool.pages(layer), **pool.tables(ids), q_offsets=q_offsets, lse=lse, **options)
    return out, lse


def test_ragged_batch_is_read_in_place(pool, rng):
    dtype = np.float32 if pool.pages(0)[0].dtype == np.float32 else ml_dtypes.bfloat16
    lengths, q_lens = [1, 30, 8, 17], [1, 5, 1, 17]
    ids = [pool.add_sequence() for _ in lengths]
    rows = [fill(pool, sequence, tokens, rng) for sequence, tokens in zip(ids, lengths)]
    assert pool.num_sequences == 4 and [pool.length(sequence) for sequence in ids] == lengths
    q_offsets = np.cumsum([0, *q_lens])
    q = rng.standard_normal((q_offsets[-1], HEADS, DIM)).astype(dtype)
    out, lse = attend(pool, ids, q, q_offsets, causal=True)
    for b, (key, value) in enumerate(rows):
        mine = slice(q_offsets[b], q_offsets[b + 1])
        one = [a.transpose(1, 0, 2)[None] for a in (q[mine], key * 2, value * 2)]
        expected = references.attention(*one, DIM**-0.5, None, 0)
        check_expected((out[mine].transpose(1, 0, 2)[None], lse[mine].T[None]), expected, DIM, dtype)


def test_fork_shares_until_it_writes(pool, rng):
    first = pool.add_sequence()
    fill(pool, first, 12, rng)
    free = pool.num_free_pages
    second = pool.fork(first)
    assert pool.num_free_pages == free
    q = rng.standard_normal((2, HEADS, DIM)).astype(np.float32)
    before = attend(pool, [first, second], np.repeat(q[:1], 2, 0), [0, 1, 2])[0]
    np.testing.assert_array_equal(before[0], before[1])
    fill(pool, second, 3, rng)
    assert pool.num_free_pages == free - 1
    np.testing.assert_array_equal(attend(pool, [first], q[:1], [0, 1])[0][0], before[0])
    pool.truncate(second, 12)
    np.testing.assert_array_equal(attend(pool, [second], q[:1], [0, 1])[0][0], before[0])
    pool.remove_sequence(first)
    np.testing.assert_array_equal(attend(pool, [second], q[:1], [0, 1])[0][0], before[0])


def test_an_exhausted_pool_leaves_its_sequences(pool, rng):
    sequence = pool.add_sequence()
    fill(pool, sequence, 100, rng)
    slots = pool.slots(sequence)
    for too_many in (61, 1 << 50):
        with pytest.raises(ops.ResourceExhausted):
            pool.append(sequence, too_many)
    assert pool.length(sequence) == 100 and pool.num_free_pages == 7
    np.testing.assert_array_equal(pool.slots(sequence), slots)
    np.testing.assert_array_equal(pool.slots(sequence, 90, 4), slots[90:94])
    assert len(pool.append(sequence, 60)) == 60


def test_pages_are_the_pools_memory(rng):
    pool = ops.KvPool(1, 1, 4, 2, page_size=2, value_dim=3, dtype="f32")
    sequence = pool.add_sequence()
    keys, values = pool.pages(0)
    assert keys.shape == (2, 1, 2, 4) and values.shape == (2, 1, 2, 3)
    slot = pool.append(sequence, 1)[0]
    pool.write(0, np.array([slot]), np.full((1, 1, 4), 3.0, np.float32), np.full((1, 1, 3), 5.0, np.float32))
    assert (keys[slot // 2, 0, slot % 2] == 3).all() and (values[slot // 2, 0, slot % 2] == 5).all()
    del pool  # the arrays keep it
    assert (keys[slot // 2, 0, slot % 2] == 3).all()


def test_bad_arguments():
    with pytest.raises(ValueError, match="dtype is 'f99'"):
        ops.KvPool(1, 1, 4, 2, dtype="f99")
    with pytest.raises(ValueError, match="num_pages"):
        ops.KvPool(1, 1, 4, -1)
    pool = ops.KvPool(1, 1, 4, 2, dtype="f32")
    with pytest.raises(ValueError):
        pool.length(0)
    sequence = pool.add_sequence()
    with pytest.raises(ValueError):
        pool.append(sequence, -1)
    with pytest.raises(ValueError):
        pool.slots(sequence, 0, 1)
    with pytest.raises(ValueError):
        pool.pages(1)
    row = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(ValueError):
        pool.write(0, np.array([128]), row, row)
    with pytest.raises(ValueError, match="slots"):
        pool.write(0, np.zeros(1, np.float32), row, row)
