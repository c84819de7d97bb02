# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Transformers: importing this registers the attention function "ops_transformer".

    import ops_transformer.transformers
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="ops_transformer")

Causal masks and sliding windows stay rules: a mask is only built where sequences are padded, a cache
has room that is not filled yet, or the model's own rule is another one. Grouped heads are read in place.
For inference on the CPU; dropout and backward() are errors.
"""

from typing import Optional

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .torch import flash_attention

__all__ = ["NAME", "attention_forward", "attention_mask"]

NAME = "ops_transformer"


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Optional[Tensor] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    config=None,
    **arguments,
) -> Optional[Tensor]:
    """None where queries are the last of the keys, all of which exist: attention_forward knows what they see."""
    known_rule = local_size is None or local_size == getattr(config, "sliding_window", None)
    if allow_is_causal_skip and known_rule and not torch.compiler.is_compiling() and not isinstance(q_offset, Tensor):
        none_padded = attention_mask is None or bool(attention_mask.all())
        if none_padded and q_offset + q_length == kv_offset + kv_length:
            return None
    return sdpa_mask(
        batch_size,
        q_length,
        kv_length,
        q_offset,
        kv_offset,
        attention_mask=attention_mask,
        local_size=local_size,
        allow_is_causal_skip=False,  # its None means another alignment
        config=config,
        **arguments,
    )


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    scaling: Optional[float] = None,
    dropout: float = 0.0,
    is_causal: Optional[bool] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    s_aux: Optional[Tensor] = None,
    position_bias: Optional[Tensor] = None,
    **_,
) -> tuple[Tensor, None]:
    """query [batch, heads, tokens, dim], key and value alike -> [batch, tokens, heads, dim] and no weights."""
    if dropout:
        raise NotImplementedError(f"ops_transformer: dropout is {dropout}, must be 0: this attention is for inference")
    bias = position_bias
    visible = attention_mask
    if attention_mask is not None:
        visible = attention_mask[..., : key.shape[-2]]
        if visible.dtype != torch.bool:
            bias = visible if bias is None else bias + visible
            visible = None
    rule = attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal)
    out = flash_attention(
        query,
        key,
        value,
        rule,
        scaling,
        window_left=sliding_window - 1 if rule and sliding_window else -1,
        visible=visible,
        bias=bias,
        logit_soft_cap=softcap or 0.0,
        sinks=s_aux,
    )
    return out.transpose(1, 2), None


AttentionInterface.register(NAME, attention_forward)
AttentionMaskInterface.register(NAME, attention_mask)
