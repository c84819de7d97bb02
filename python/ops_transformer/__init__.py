# SPDX-License-Identifier: Apache-2.0
"""Fused transformer operators for CPUs, and language models that run on them.

Arrays are NumPy arrays, PyTorch tensors or anything that speaks DLPack, in CPU memory; nothing is
copied on the way in, and results come back as the kind of the first array: tensors for tensors,
NumPy for the rest. bf16 is torch.bfloat16, ml_dtypes.bfloat16 or its bits in a uint16 array.
Every operator writes into `out` where it is given and runs on `context`, else on
`default_context()`. The GIL is released meanwhile: don't change an array that is being read.
"""

from typing import TYPE_CHECKING, Any

from ._core import (
    AttentionCache,
    AttentionWeights,
    Context,
    GenerateTiming,
    InvalidFile,
    KvCache,
    KvPool,
    Llama3Scaling,
    ModelConfig,
    NtkScaling,
    PackedWeights,
    Profiler,
    ProfileTotal,
    ResourceExhausted,
    SystemFailure,
    Tokenizer,
    YarnScaling,
    alibi_attention,
    attention_update,
    default_context,
    dequantise,
    ffn,
    flash_attention,
    flash_attention_paged,
    fused_layernorm,
    fused_rope_attention,
    gated_linear,
    idle_output_bytes,
    kv_rms_norm_rope_cache,
    linear,
    matmul,
    norm_linear,
    quantised_rmsnorm,
    ring_attention_update,
    rope_with_sin_cos_cache,
    rotary_embedding,
    rotary_mul,
    supported_isas,
)
from ._weights import forget_packed_weights
from .block import fused_attention_block, fused_ffn_block
from .chat import ChatTemplate, ChatTemplateError
from .model import Generation, Model, Sampling
from .multi_head_attention import MultiHeadAttention
from .norm import fused_layernorm_linear, fused_rmsnorm, fused_rmsnorm_linear, fused_rmsnorm_with_next

if TYPE_CHECKING:
    from .modules import FusedRMSNorm, RMSNorm

__version__ = "0.1.0"
__all__ = [
    "AttentionCache",
    "AttentionWeights",
    "ChatTemplate",
    "ChatTemplateError",
    "Context",
    "FusedRMSNorm",
    "GenerateTiming",
    "Generation",
    "InvalidFile",
    "KvCache",
    "KvPool",
    "Llama3Scaling",
    "Model",
    "ModelConfig",
    "MultiHeadAttention",
    "NtkScaling",
    "PackedWeights",
    "ProfileTotal",
    "Profiler",
    "RMSNorm",
    "ResourceExhausted",
    "Sampling",
    "SystemFailure",
    "Tokenizer",
    "YarnScaling",
    "alibi_attention",
    "attention_update",
    "default_context",
    "dequantise",
    "ffn",
    "flash_attention",
    "flash_attention_paged",
    "forget_packed_weights",
    "fused_attention_block",
    "fused_ffn_block",
    "fused_layernorm",
    "fused_layernorm_linear",
    "fused_rmsnorm",
    "fused_rmsnorm_linear",
    "fused_rmsnorm_with_next",
    "fused_rope_attention",
    "gated_linear",
    "idle_output_bytes",
    "kv_rms_norm_rope_cache",
    "linear",
    "matmul",
    "norm_linear",
    "quantised_rmsnorm",
    "ring_attention_update",
    "rope_with_sin_cos_cache",
    "rotary_embedding",
    "rotary_mul",
    "supported_isas",
]


def __getattr__(name: str) -> Any:
    # Modules of PyTorch: it is imported when one of them is asked for.
    if name in ("FusedRMSNorm", "RMSNorm"):
        from . import modules

        return getattr(modules, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
