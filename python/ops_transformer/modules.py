# SPDX-License-Identifier: Apache-2.0
"""Layers: modules of PyTorch where it is installed, else plain objects with a NumPy weight."""

from __future__ import annotations

from typing import Any

from .norm import NextLayer, fused_rmsnorm, fused_rmsnorm_with_next

try:
    import torch

    class _Layer(torch.nn.Module):
        def __init__(self, dim: int):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(dim))

except ImportError:
    import numpy as np

    class _Layer:  # type: ignore[no-redef]
        def __init__(self, dim: int):
            self.weight = np.ones(dim, np.float32)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return self.forward(*args, **kwargs)  # type: ignore[attr-defined]


class RMSNorm(_Layer):
    """RMSNorm(dim, eps=1e-6) with a weight of ones; called with x [..., dim], and where the rows go:
    next_layer_input as next_layer of fused_rmsnorm. Inference only: results carry no gradient.
    """

    def __init__(self, dim: int, eps: float = 1e-6):
        if dim < 1:
            raise ValueError(f"RMSNorm: dim is {dim}, must be at least 1")
        super().__init__(dim)
        self.eps = eps

    def forward(self, x: Any, next_layer_input: NextLayer | None = None) -> Any:
        if next_layer_input is not None:
            return fused_rmsnorm_with_next(x, self.weight, self.eps, next_layer_input)
        return fused_rmsnorm(x, self.weight, self.eps)


class FusedRMSNorm(RMSNorm):
    """RMSNorm by its other name."""
