# SPDX-License-Identifier: Apache-2.0
"""Flash attention over NumPy arrays, beside the formula written out."""

import numpy as np

import ops_transformer as ops


def plain_attention(query, key, value):
    """The same with the whole score matrix, in float64."""
    query, key, value = (array.astype(np.float64) for array in (query, key, value))
    group = query.shape[1] // key.shape[1]
    scores = query @ np.repeat(key, group, axis=1).swapaxes(2, 3) / np.sqrt(query.shape[-1])
    q_len, kv_len = scores.shape[-2:]
    scores[..., np.triu(np.ones((q_len, kv_len), dtype=bool), k=1 + kv_len - q_len)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ np.repeat(value, group, axis=1)


def main() -> None:
    random = np.random.default_rng(1)
    query = random.standard_normal((1, 8, 100, 64), dtype=np.float32)
    key = random.standard_normal((1, 2, 300, 64), dtype=np.float32)
    value = random.standard_normal((1, 2, 300, 64), dtype=np.float32)
    out = ops.flash_attention(query=query, key=key, value=value, causal=True)
    error = np.abs(out - plain_attention(query, key, value)).max()
    print(f"out {out.shape} {out.dtype}, largest difference from float64 {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
