# SPDX-License-Identifier: Apache-2.0
"""PyTorch: the operators as custom ops, which torch.compile traces, and scaled_dot_product_attention.

    import ops_transformer.torch
    out = ops_transformer.torch.scaled_dot_product_attention(query, key, value, is_causal=True)

The ops are `torch.ops.ops_transformer.NAME` too. They run on CPU tensors of f32, bf16 or f16, on the default context,
and are for inference: backward() through one of them is an error of PyTorch's that names it.
"""

from typing import Optional

import torch
from torch import Tensor

from . import _core

__all__ = [
    "alibi_attention",
    "flash_attention",
    "fused_rmsnorm",
    "fused_rope_attention",
    "rotary_embedding",
    "scaled_dot_product_attention",
]


def _empty_heads_inside(query: Tensor, value: Tensor) -> Tensor:
    """[batch, heads, tokens, dim] whose memory is [batch, tokens, heads, dim]: what the next projection reads."""
    batch, heads, tokens, _ = query.shape
    return query.new_empty((batch, tokens, heads, value.shape[-1])).transpose(1, 2)


def _tokens_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2)


@torch.library.custom_op("ops_transformer::flash_attention", mutates_args=(), device_types="cpu")
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    softmax_scale: Optional[float] = None,
    window_left: int = -1,
    window_right: int = -1,
    align: str = "last",
    visible: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    logit_soft_cap: float = 0.0,
    sinks: Optional[Tensor] = None,
    dropout_seed: Optional[Tensor] = None,
    keep_prob: float = 1.0,
) -> Tensor:
    """ops_transformer.flash_attention of [batch, heads, tokens, dim]; the result lies as [batch, tokens, heads, dim].

    dropout_seed: one int64, a tensor so that a traced graph need not know it.
    """
    return _core.flash_attention(
        _tokens_first(query),
        _tokens_first(key),
        _tokens_first(value),
        causal,
        softmax_scale,
        None if window_left == window_right == -1 else (window_left, window_right),
        layout="BSND",
        align=align,
        visible=visible,
        bias=bias,
        logit_soft_cap=logit_soft_cap,
        sinks=[] if sinks is None else sinks.tolist(),
        dropout_seed=None if dropout_seed is None else int(dropout_seed),
        keep_prob=keep_prob,
    ).transpose(1, 2)


@flash_attention.register_fake
def _(query, key, value, *_, **__):
    return _empty_heads_inside(query, value)


@torch.library.custom_op("ops_transformer::alibi_attention", mutates_args=(), device_types="cpu")
def alibi_attention(
    query: Tensor, key: Tensor, value: Tensor, causal: bool = False, softmax_scale: Optional[float] = None
) -> Tensor:
    """ops_transformer.alibi_attention of [batch, heads, tokens, dim]."""
    return _core.alibi_attention(
        _tokens_first(query),
        _tokens_first(key),
        _tokens_first(value),
        causal=causal,
        softmax_scale=softmax_scale,
        layout="BSND",
    ).transpose(1, 2)


@alibi_attention.register_fake
def _(query, key, value, *_, **__):
    return _empty_heads_inside(query, value)


@torch.library.custom_op("ops_transformer::fused_rope_attention", mutates_args=(), device_types="cpu")
def fused_rope_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Optional[Tensor] = None,
    rotary_dim: Optional[int] = None,
    causal: bool = False,
    softmax_scale: Optional[float] = None,
    theta: float = 10000.0,
    interleaved: bool = False,
) -> Tensor:
    """ops_transformer.fused_rope_attention of [batch, heads, tokens, dim]."""
    return _core.fused_rope_attention(
        _tokens_first(query),
        _tokens_first(key),
        _tokens_first(value),
        positions,
        rotary_dim,
        causal,
        softmax_scale,
        theta=theta,
        interleaved=interleaved,
        layout="BSND",
    ).transpose(1, 2)


@fused_rope_attention.register_fake
def _(query, key, value, *_, **__):
    return _empty_heads_inside(query, value)


@torch.library.custom_op("ops_transformer::rotary_embedding", mutates_args=(), device_types="cpu")
def rotary_embedding(
    q: Tensor, positions: Tensor, rotary_dim: Optional[int] = None, theta: float = 10000.0, interleaved: bool = False
) -> Tensor:
    """ops_transformer.rotary_embedding."""
    return _core.rotary_embedding(q, positions, rotary_dim, theta, interleaved)


@rotary_embedding.register_fake
def _(q, *_, **__):
    return q.new_empty(q.shape)


@torch.library.custom_op("ops_transformer::fused_rmsnorm", mutates_args=(), device_types="cpu")
def fused_rmsnorm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """ops_transformer.fused_rmsnorm."""
    return _core.fused_rmsnorm(x, weight, eps)


@fused_rmsnorm.register_fake
def _(x, *_, **__):
    return x.new_empty(x.shape)


def _heads_of(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """All with the heads that flash_attention pairs as PyTorch's broadcasting does."""
    heads = [tensor.shape[-3] for tensor in (query, key, value)]
    if heads[1] == heads[2] and (heads[0] == heads[1] or enable_gqa):
        return query, key, value
    if enable_gqa or len({count for count in heads if count != 1}) > 1:
        raise RuntimeError(
            f"scaled_dot_product_attention: query, key and value have {heads[0]}, {heads[1]} and {heads[2]} heads; "
            "key and value must have as many as query, or with enable_gqa=True as many as each other"
        )
    most = max(heads)
    return tuple(t.expand(*t.shape[:-3], most, *t.shape[-2:]) for t in (query, key, value))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Optional[float] = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention on this library's kernels.

    query [..., num_q_heads, q_len, head_dim], key and value alike, 2 dimensions and more. As there: a
    boolean mask is true where a key takes part, is_causal counts from the first query and key (top-left),
    a query that sees no key gives 0. dropout_p: each weight is dropped with this probability and the others
divided by 1 - dropout_p, by a seed from PyTorch's generator (torch.manual_seed repeats it); not the bits
that PyTorch draws.
    """
    if not 0.0 <= dropout_p <= 1.0:
        raise ValueError(f"scaled_dot_product_attention: dropout_p is {dropout_p}, must be from 0 to 1")
    if is_causal and attn_mask is not None:
        raise RuntimeError("scaled_dot_product_attention: attn_mask and is_causal are both given, give one of them")
    tensors = (query, key, value)
    if min(t.dim() for t in tensors) < 2:
        raise RuntimeError(f"scaled_dot_product_attention: query has shape {tuple(query.shape)}, key "
                           f"{tuple(key.shape)}, value {tuple(value.shape)}: each needs 2 dimensions or more")
    rank = max(t.dim() for t in tensors)
    q, k, v = (t[(None,) * max(0, 3 - t.dim())] for t in tensors)
    q, k, v = _heads_of(q, k, v, enable_gqa)
    if q.dim() == k.dim() == v.dim() == 4 and q.shape[0] == k.shape[0] == v.shape[0]:
        batch = None
    else:
        batch = torch.broadcast_shapes(*(t.shape[:-3] for t in (q, k, v)))
        if attn_mask is not None and len(batch) > 1:
            attn_mask = attn_mask.expand(*batch, q.shape[-3], q.shape[-2], k.shape[-2]).flatten(0, len(batch) - 1)
        q, k, v = (t.expand(*batch, *t.shape[-3:]).reshape(-1, *t.shape[-3:]) for t in (q, k, v))
    boolean = attn_mask is not None and attn_mask.dtype == torch.bool
    out = flash_attention(
        q,
        k,
        v,
        is_causal,
        scale,
        align="first",
        visible=attn_mask if boolean else None,
        bias=None if boolean else attn_mask,
        dropout_seed=torch.randint(0, 2**62, ()) if 0.0 < dropout_p < 1.0 else None,
        keep_prob=1.0 - dropout_p if dropout_p < 1.0 else 1.0,
    )
    if dropout_p == 1.0:
        out = torch.zeros_like(out)
    if batch is None:
        return out
    out = out.reshape(*batch, *out.shape[-3:])
    return out[0] if rank == 2 else out
