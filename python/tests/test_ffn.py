# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops


@given(
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    hidden=st.integers(1, 40),
    inner=st.integers(1, 40),
    gated=st.booleans(),
    ends=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(["relu", "silu", "gelu_tanh", "gelu_erf", "gelu_fast"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_reference(counts, hidden, inner, gated, ends, bias, activation, seed):
    rng = np.random.default_rng(seed)
    experts, n1 = len(counts), inner * (2 if gated else 1)
    tokens = sum(counts) + 2
    x = rng.standard_normal((tokens, hidden), np.float32)
    w1 = (rng.standard_normal((experts, n1, hidden)) / np.sqrt(hidden)).astype(np.float32)
    w2 = (rng.standard_normal((experts, hidden, inner)) / np.sqrt(inner)).astype(np.float32)
    bias1, bias2 = (rng.standard_normal((experts, n)).astype(np.float32) for n in (n1, hidden))
    pack = lambda w: ops.PackedWeights.gate_up(w[:inner].copy(), w[inner:].copy()) if gated else ops.PackedWeights(w)
    options = dict(bias1=bias1, bias2=bias2) if bias else {}
    out = np.full_like(x, np.nan)
    lengths = np.cumsum(counts).tolist() if ends else counts
    result = ops.ffn(
        x, [pack(w) for w in w1], [ops.PackedWeights(w) for w in w2], activation, expert_tokens=lengths,
        expert_tokens_are_ends=ends, out=out, **options,
    )
    assert result is out
    first = 0
    for e, count in enumerate(counts):
        rows = x[first : first + count].astype(np.float64)
        sums = rows @ w1[e].T.astype(np.float64) + (bias1[e] if bias else 0)
        inside = references.activate(sums[:, :inner], activation) * (sums[:, inner:] if gated else 1)
        expected = inside @ w2[e].T.astype(np.float64) + (bias2[e] if bias else 0)
        size = (1 + np.abs(inside)) @ np.abs(w2[e].T) + 1
        if count:
            size = size * max(1.0, np.abs(sums).max())
            references.assert_close(out[first : first + count], expected, hidden + inner, size)
        first += count
    assert np.isnan(out[first:]).all()


def test_errors():
    x, w = np.ones((3, 16), np.float32), ops.PackedWeights(np.ones((16, 16), np.float32))
    with pytest.raises(ValueError, match=r"expert_tokens\[0\] is 4, must be from 0 to 3"):
        ops.ffn(x, [w], [w], expert_tokens=[4])
    with pytest.raises(ValueError, match="w1 and w2 have 1 and 2 experts"):
        ops.ffn(x, [w], [w, w])
