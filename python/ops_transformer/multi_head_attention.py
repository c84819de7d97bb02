# SPDX-License-Identifier: Apache-2.0
"""Multi-head attention whose heads are one matmul and one attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ._core import Context, PackedWeights, flash_attention, linear

if TYPE_CHECKING:
    from ._array import Array, ArrayT


class MultiHeadAttention:
    """Projections of queries, keys and values for all heads in one matmul, then flash_attention.

    d_model: length of a token's vector; head_dim is d_model / num_heads unless given; num_kv_heads
    divides num_heads (default: as many). q_proj [num_heads * head_dim, d_model], k_proj and v_proj
    [num_kv_heads * head_dim, d_model], o_proj [d_model, num_heads * head_dim]: weights as
    torch.nn.Linear holds them, NumPy arrays or tensors, f32, bf16 or f16; they are packed here, so later
    changes to the arrays have no effect. biases [outputs of q, k and v, in this order] f32. Without
    weights q, k and v are drawn as torch.nn.Linear draws them, from `seed`. Raises ValueError for
    shapes that don't fit.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        q_proj: Array | None = None,
        k_proj: Array | None = None,
        v_proj: Array | None = None,
        o_proj: Array | None = None,
        bias: Array | None = None,
        causal: bool = False,
        softmax_scale: float | None = None,
        seed: int = 0,
        context: Context | None = None,
    ) -> None:
        if num_heads < 1 or d_model < 1:
            raise ValueError(f"MultiHeadAttention: d_model is {d_model}, num_heads {num_heads}, must be at least 1")
        if head_dim is None and d_model % num_heads:
            raise ValueError(f"MultiHeadAttention: d_model is {d_model}, must be a multiple of num_heads, {num_heads}")
        self.d_model = d_model
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.head_dim = d_model // num_heads if head_dim is None else head_dim
        self.causal = causal
        self.softmax_scale = softmax_scale
        if self.num_kv_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(
                f"MultiHeadAttention: num_heads is {num_heads}, must be a multiple of num_kv_heads, {self.num_kv_heads}"
            )
        given = [weight is not None for weight in (q_proj, k_proj, v_proj)]
        if any(given) != all(given):
            raise ValueError("MultiHeadAttention: give q_proj, k_proj and v_proj, or none of them")
        outputs = [heads * self.head_dim for heads in (num_heads, self.num_kv_heads, self.num_kv_heads)]
        if not all(given):
            import numpy as np

            random, limit = np.random.default_rng(seed), 1 / math.sqrt(d_model)
            q_proj, k_proj, v_proj = (random.uniform(-limit, limit, (n, d_model)).astype(np.float32) for n in outputs)
        for name, weight, shape in (
            ("q_proj", q_proj, (outputs[0], d_model)),
            ("k_proj", k_proj, (outputs[1], d_model)),
            ("v_proj", v_proj, (outputs[2], d_model)),
            ("o_proj", o_proj, (d_model, outputs[0])),
            ("bias", bias, (sum(outputs),)),
        ):
            if weight is not None and tuple(weight.shape) != shape:
                raise ValueError(f"MultiHeadAttention: {name} is {tuple(weight.shape)}, must be {shape}")
        self._context = context
        self._bias = bias
        weights = [q_proj, k_proj, v_proj]
        # Whole tiles of 16 outputs stand one below the other; others are a matmul each.
        stacked = all(n % 16 == 0 for n in outputs[:2])
        self._qkv = [PackedWeights.stack(weights)] if stacked else [PackedWeights(weight) for weight in weights]
        self._out = None if o_proj is None else PackedWeights(o_proj)

    def forward(self, x: ArrayT, *, causal: bool | None = None) -> ArrayT:
        """x [batch, tokens, d_model] -> [batch, tokens, num_heads, head_dim], with o_proj [batch, tokens, d_model]."""
        if x.ndim != 3 or x.shape[2] != self.d_model:
            raise ValueError(f"MultiHeadAttention: x is {tuple(x.shape)}, must be [batch, tokens, {self.d_model}]")
        q, k, v = self._project(x)
        out = flash_attention(
            q,
            k,
            v,
            self.causal if causal is None else causal,
            self.softmax_scale,
            num_heads=self.num_heads,
            context=self._context,
        )
        if self._out is None:
            return out
        return linear(out.reshape(x.shape[0], x.shape[1], -1), self._out, context=self._context)

    __call__ = forward

    def _project(self, x: ArrayT) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Queries, keys and values by heads; views where they come out of one matmul."""
        batch, tokens = x.shape[:2]
        if len(self._qkv) == 1:
            heads = linear(x, self._qkv[0], self._bias, context=self._context).reshape(batch, tokens, -1, self.head_dim)
            first_key, first_value = self.num_heads, self.num_heads + self.num_kv_heads
            return heads[:, :, :first_key], heads[:, :, first_key:first_value], heads[:, :, first_value:]
        projected, first = [], 0
        for weights in self._qkv:
            bias = None if self._bias is None else self._bias[first : first + weights.num_outputs]
            first += weights.num_outputs
            y = linear(x, weights, bias, context=self._context)
            projected.append(y.reshape(batch, tokens, -1, self.head_dim))
        q, k, v = projected
        return q, k, v
