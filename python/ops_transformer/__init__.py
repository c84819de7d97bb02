# SPDX-License-Identifier: Apache-2.0
"""Fused transformer operators for CPUs, and language models that run on them.

Arrays are NumPy arrays, PyTorch tensors or anything that speaks DLPack, in CPU memory; nothing is
copied on the way in, and results come back as the kind of the first array: tensors for tensors,
NumPy for the rest. bf16 is torch.bfloat16, ml_dtypes.bfloat16 or its bits in a uint16 array.
Every operator writes into `out` where it is given and runs on `context`, else on
`default_context()`. The GIL is released meanwhile: don't change an array that is being read.
"""

from ._core import (
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
    flash_attention,
    flash_attention_paged,
    fused_rmsnorm,
    fused_rope_attention,
    gated_linear,
    idle_output_bytes,
    linear,
    matmul,
    ring_attention_update,
    rotary_embedding,
    supported_isas,
)
from .model import Generation, Model, Sampling
from .multi_head_attention import MultiHeadAttention

__version__ = "0.1.0"
__all__ = [
    "Context",
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
    "ResourceExhausted",
    "Sampling",
    "SystemFailure",
    "Tokenizer",
    "YarnScaling",
    "alibi_attention",
    "attention_update",
    "default_context",
    "dequantise",
    "flash_attention",
    "flash_attention_paged",
    "fused_rmsnorm",
    "fused_rope_attention",
    "gated_linear",
    "idle_output_bytes",
    "linear",
    "matmul",
    "ring_attention_update",
    "rotary_embedding",
    "supported_isas",
]
