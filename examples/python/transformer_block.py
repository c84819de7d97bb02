# SPDX-License-Identifier: Apache-2.0
"""A transformer layer in two calls, beside the same layer one operator at a time: results and bytes moved."""

from types import SimpleNamespace

import numpy as np

import ops_transformer as ops


def optimized_transformer_block(
    x, q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, ln1_weight, ln2_weight
):
    from ops_transformer import fused_attention_block, fused_ffn_block

    attn_out = fused_attention_block(
        x,
        q_proj.weight,
        k_proj.weight,
        v_proj.weight,
        o_proj.weight,
        ln_weight=ln1_weight,
        residual_connection=True,
    )
    ffn_out = fused_ffn_block(
        attn_out, gate_proj.weight, up_proj.weight, down_proj.weight, ln_weight=ln2_weight, residual_connection=True
    )
    return ffn_out


def plain_transformer_block(x, q, k, v, o, gate, up, down, ln1, ln2, head_dim=64):
    linear = lambda rows, layer, **options: ops.linear(rows, ops.PackedWeights(layer.weight), **options)
    split = lambda rows: rows.reshape(*x.shape[:2], -1, head_dim).swapaxes(1, 2)
    rows = ops.fused_rmsnorm(x, ln1)
    heads = ops.flash_attention(*(split(linear(rows, layer)) for layer in (q, k, v)))
    x = linear(heads.swapaxes(1, 2).reshape(*x.shape[:2], -1), o, residual=x)
    rows = ops.fused_rmsnorm(x, ln2)
    gated = linear(rows, gate, activation="silu") * linear(rows, up)
    return linear(gated, down, residual=x)


def moved_bytes(run):
    profiler = ops.Profiler()
    ops.default_context().profiler = profiler
    result = run()
    ops.default_context().profiler = None
    packing = ("PackedWeights::pack", "PackedWeights::pack_gate_up")
    return result, sum(total.bytes for total in profiler.totals() if total.op not in packing)


def main() -> None:
    random = np.random.default_rng(1)
    hidden, heads, kv_heads, intermediate = 576, 9, 3, 1536
    layers = []
    for rows, columns in [
        (heads * 64, hidden),
        (kv_heads * 64, hidden),
        (kv_heads * 64, hidden),
        (hidden, heads * 64),
        (intermediate, hidden),
        (intermediate, hidden),
        (hidden, intermediate),
    ]:
        weight = random.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        layers.append(SimpleNamespace(weight=weight))
    norms = [np.ones(hidden, np.float32)] * 2
    x = random.standard_normal((1, 256, hidden), dtype=np.float32)
    fused, fused_bytes = moved_bytes(lambda: optimized_transformer_block(x, *layers, *norms))
    plain, plain_bytes = moved_bytes(lambda: plain_transformer_block(x, *layers, *norms))
    print(f"largest difference {np.abs(fused - plain).max():.1e}")
    print(f"{fused_bytes / 1e6:.1f} MB moved, {plain_bytes / 1e6:.1f} MB by single operators and their own sums")
    assert np.allclose(fused, plain, atol=1e-4) and fused_bytes < plain_bytes


if __name__ == "__main__":
    main()
