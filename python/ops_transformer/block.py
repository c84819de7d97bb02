# SPDX-License-Identifier: Apache-2.0
"""Sublayers of a transformer, each one call."""

from __future__ import annotations

from typing import Any

from . import _core
from ._array import Array, ArrayT
from ._core import AttentionCache, AttentionWeights, Context, Llama3Scaling, NtkScaling, PackedWeights, YarnScaling
from ._weights import pack_once, packed_linear

_USUAL_HEAD_DIMS = (64, 128)


def _heads(wq: Any, wk: Any, num_heads: int | None, num_kv_heads: int | None, head_dim: int | None) -> tuple[int, int, int]:
    operation = "fused_attention_block"
    q_size, k_size = wq.shape[0], wk.shape[0]
    if num_heads is None:
        if head_dim is None:
            fits = [dim for dim in _USUAL_HEAD_DIMS if q_size % dim == 0 and k_size % dim == 0 and q_size % k_size == 0]
            if len(fits) != 1:
                found = "neither fits" if not fits else "both fit"
                raise ValueError(
                    f"{operation}: num_heads isn't given, and head_dim can't be told from {q_size} rows of wq and "
                    f"{k_size} of wk: of 64 and 128, {found}"
                )
            head_dim = fits[0]
        num_heads = q_size // head_dim if head_dim > 0 else 0
    if head_dim is None:
        head_dim = q_size // num_heads if num_heads > 0 else 0
    if num_kv_heads is None:
        num_kv_heads = k_size // head_dim if head_dim > 0 else 0
    return num_heads, num_kv_heads, head_dim


def fused_attention_block(
    x: ArrayT,
    wq: Array | AttentionWeights,
    wk: Array | None = None,
    wv: Array | None = None,
    wo: Array | None = None,
    ln_weight: Array | None = None,
    residual_connection: bool = False,
    num_heads: int | None = None,
    num_kv_heads: int | None = None,
    positions: Array | None = None,
    kv_cache: AttentionCache | None = None,
    *,
    head_dim: int | None = None,
    ln_bias: Array | None = None,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
    rotary_dim: int | None = None,
    theta: float = 10000.0,
    interleaved: bool = False,
    scaling: NtkScaling | Llama3Scaling | YarnScaling | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    window: int | None = None,
    logit_soft_cap: float = 0.0,
    out: ArrayT | None = None,
    exact: bool = False,
    context: Context | None = None,
) -> ArrayT:
    """Attention sublayer: x + attention(q, k, v) wo^T, of heads that are rotated projections of norm(x).

    x [batch, seq, hidden] or [seq, hidden], f32, bf16 or f16. wq [num_heads * head_dim, hidden], wk, wv, wo
    [hidden, num_heads * value_dim] as torch.nn.Linear holds them, or one AttentionWeights in wq's place
    (PyTorch tensors are packed once, NumPy arrays at every call). ln_weight [hidden]: x is RMS-normalised
    first, with ln_bias layer-normalised; weight_offset as for fused_rmsnorm. residual_connection: x is
    added at the end.

    num_heads None: head_dim is 64 or 128, whichever divides the rows of wq and wk; where both or neither
    do, num_heads must be given. num_kv_heads None: the rows of wk by head_dim.

    positions [seq] or [batch, seq]: queries and keys are rotated (rotary_dim, theta, interleaved and
    scaling as for rotary_embedding); None: they are not. kv_cache: new keys and values go to the end of an
    AttentionCache, and queries see all that it holds. causal, softmax_scale, window and logit_soft_cap as
    for flash_attention; causal is off unless asked for. out as x, apart from it.

    Queries, keys and values come out of one matmul that normalises rows as it reads them and rotates heads
    and writes the cache out of its tiles; x is added in the last matmul.
    """
    operation = "fused_attention_block"
    if isinstance(wq, AttentionWeights):
        if any(given is not None for given in (wk, wv, wo, num_heads, num_kv_heads, head_dim)) or interleaved:
            raise ValueError(f"{operation}: AttentionWeights hold wk, wv, wo, the heads and interleaved: give none of them")
        weights = wq
    else:
        arrays = {"wq": wq, "wk": wk, "wv": wv, "wo": wo}
        for name, array in arrays.items():
            if array is None or len(getattr(array, "shape", ())) != 2:
                raise ValueError(f"{operation}: {name} must be a matrix, got {type(array).__name__}")
        q_heads, kv_heads, dim = _heads(wq, wk, num_heads, num_kv_heads, head_dim)
        weights = pack_once(
            ("attention", q_heads, kv_heads, dim, interleaved),
            (wq, wk, wv, wo),
            lambda: AttentionWeights(
                wq, wk, wv, wo, q_heads, kv_heads, head_dim=dim, interleaved=interleaved, context=context
            ),
        )
    return _core.attention_block(
        x,
        weights,
        ln_weight,
        residual_connection,
        positions,
        kv_cache,
        out,
        ln_bias=ln_bias,
        eps=eps,
        weight_offset=weight_offset,
        rotary_dim=rotary_dim,
        theta=theta,
        scaling=scaling,
        causal=causal,
        softmax_scale=softmax_scale,
        window=window,
        logit_soft_cap=logit_soft_cap,
        exact=exact,
        context=context,
    )


def fused_ffn_block(
    x: ArrayT,
    gate: Array | PackedWeights,
    up: Array | None = None,
    down: Array | PackedWeights | None = None,
    ln_weight: Array | None = None,
    residual_connection: bool = False,
    activation: str = "silu",
    *,
    ln_bias: Array | None = None,
    eps: float = 1e-5,
    weight_offset: float = 0.0,
    out: ArrayT | None = None,
    exact: bool = False,
    context: Context | None = None,
) -> ArrayT:
    """Feed-forward sublayer: x + (activation(norm(x) gate^T) * (norm(x) up^T)) down^T.

    x [..., hidden] f32, bf16 or f16; gate and up [intermediate, hidden], down [hidden, intermediate] as
    torch.nn.Linear holds them, or PackedWeights.gate_up in gate's place (up None) and PackedWeights for
    down. ln_weight, ln_bias, weight_offset and residual_connection as for fused_attention_block; activation
    'silu', 'gelu_tanh', 'gelu_erf', 'relu' or 'none'. out as x, apart from it.

    Rows are normalised as the first matmul reads them, gate and up are multiplied in its tiles, and x is
    added in the last matmul.
    """
    operation = "fused_ffn_block"
    if down is None:
        raise ValueError(f"{operation}: down must be given")
    if isinstance(gate, PackedWeights):
        if up is not None:
            raise ValueError(f"{operation}: up is given, must be None where gate is PackedWeights.gate_up")
        gate_up = gate
    elif up is None:
        raise ValueError(f"{operation}: up must be given where gate isn't PackedWeights.gate_up")
    else:
        gate_up = pack_once("gate_up", (gate, up), lambda: PackedWeights.gate_up(gate, up, context=context))
    return _core.ffn_block(
        x,
        gate_up,
        packed_linear(down, context),
        ln_weight,
        residual_connection,
        activation,
        out,
        ln_bias=ln_bias,
        eps=eps,
        weight_offset=weight_offset,
        exact=exact,
        context=context,
    )
