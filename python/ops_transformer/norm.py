# SPDX-License-Identifier: Apache-2.0
"""Norms, alone and with what comes after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import _core
from ._array import Array, ArrayT
from ._core import Context, PackedWeights
from ._weights import is_array, packed_linear

NextLayer = Array | PackedWeights | Callable[[Any], Any]


def fused_rmsnorm(
    x: ArrayT,
    weight: Array,
    eps: float = 1e-5,
    residual: Array | None = None,
    out: ArrayT | None = None,
    *,
    next_layer: NextLayer | None = None,
    residual_out: Array | None = None,
    weight_offset: float = 0.0,
    context: Context | None = None,
) -> Any:
    """Root mean square normalisation (Zhang and Sennrich, 2019): x / sqrt(mean(x^2) + eps) * weight.

    x [..., hidden] f32, bf16 or f16, last dimension contiguous; weight [hidden] f32 or as x; out as x,
    or f32, and may be x itself. Computed in f32, rounded once. With a residual (as x), x + residual is
    what gets normalised; residual_out receives that sum and may be the residual or x. weight_offset is
    added to the weight (1 for Gemma).

    next_layer says where the rows go:
    - an array of x's shape is the next layer's input buffer: it is filled and returned;
    - PackedWeights or an array [num_outputs, hidden]: the result is norm(x) weights^T, in one pass over
      x (PackedWeights.gate_up: SwiGLU of it); neither residual nor out goes with it;
    - anything else that can be called gets the rows, and its result is returned.
    A square x's shape is a buffer, not a weight: pass PackedWeights there.

    >>> attention_input = fused_rmsnorm(x, weight, next_layer=buffer)        # buffer, filled
    >>> logits = fused_rmsnorm(x, weight, next_layer=head)                   # head [vocabulary, hidden]
    >>> hidden = fused_rmsnorm(x, weight, next_layer=torch.nn.Linear(8, 8))  # the module, called
    """

    def norm(into: ArrayT | None) -> Any:
        return _core.fused_rmsnorm(
            x, weight, eps, residual, into, residual_out=residual_out, weight_offset=weight_offset, context=context
        )

    if next_layer is None:
        return norm(out)
    operation = "fused_rmsnorm"
    if is_array(next_layer) and tuple(next_layer.shape) == tuple(x.shape):
        if out is not None and out is not next_layer:
            raise ValueError(f"{operation}: out and a next_layer buffer are both given, give one of them")
        return norm(next_layer)
    if isinstance(next_layer, PackedWeights) or is_array(next_layer):
        if out is not None or residual is not None or residual_out is not None:
            raise ValueError(f"{operation}: out, residual and residual_out don't go with a next_layer that is a weight")
        return _core.norm_linear(
            x,
            weight,
            _next_weights(operation, x, next_layer, context),
            eps=eps,
            activation="silu" if getattr(next_layer, "num_gated_outputs", 0) else "none",
            weight_offset=weight_offset,
            context=context,
        )
    if callable(next_layer):
        return next_layer(norm(out))
    raise TypeError(f"{operation}: next_layer must be an array, PackedWeights or callable, got {type(next_layer).__name__}")


def _next_weights(operation: str, x: Any, layer: Any, context: Context | None) -> PackedWeights:
    if not isinstance(layer, PackedWeights) and (len(layer.shape) != 2 or layer.shape[1] != x.shape[-1]):
        raise ValueError(
            f"{operation}: next_layer must have the shape of x, {list(x.shape)}, or be a weight "
            f"[num_outputs, {x.shape[-1]}], got {list(layer.shape)}"
        )
    return packed_linear(layer, context)


def fused_rmsnorm_with_next(
    x: ArrayT, weight: Array, eps: float, next_layer_input: NextLayer, *, context: Context | None = None
) -> Any:
    """fused_rmsnorm whose result goes to the next layer: see its next_layer."""
    return fused_rmsnorm(x, weight, eps, next_layer=next_layer_input, context=context)


def fused_layernorm_linear(
    x: ArrayT,
    ln_weight: Array,
    ln_bias: Array | None,
    weight: Array | PackedWeights,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    activation: str = "none",
    residual: Array | None = None,
    out: ArrayT | None = None,
    exact: bool = False,
    context: Context | None = None,
) -> ArrayT:
    """activation(layernorm(x) weight^T + bias) + residual, in one pass over x: rows go from the norm straight
    into the form that the matmul reads, and the first weights are fetched meanwhile.

    x [..., hidden] f32, bf16 or f16; ln_weight and ln_bias [hidden] f32 or as x; weight [num_outputs,
    hidden] or PackedWeights (a PyTorch tensor is packed once, a NumPy array at every call); bias
    [num_outputs]; residual and out [..., num_outputs]. The rest is as for linear.
    """
    return _core.norm_linear(
        x,
        ln_weight,
        packed_linear(weight, context),
        ln_bias,
        layer_norm=True,
        eps=eps,
        bias=bias if bias is None else _as_f32(bias),
        activation=activation,
        residual=residual,
        out=out,
        exact=exact,
        context=context,
    )


def fused_rmsnorm_linear(
    x: ArrayT,
    ln_weight: Array,
    weight: Array | PackedWeights,
    bias: Array | None = None,
    eps: float = 1e-5,
    *,
    activation: str = "none",
    residual: Array | None = None,
    out: ArrayT | None = None,
    weight_offset: float = 0.0,
    exact: bool = False,
    context: Context | None = None,
) -> ArrayT:
    """activation(rmsnorm(x) weight^T + bias) + residual, as fused_layernorm_linear."""
    return _core.norm_linear(
        x,
        ln_weight,
        packed_linear(weight, context),
        eps=eps,
        bias=bias if bias is None else _as_f32(bias),
        activation=activation,
        residual=residual,
        out=out,
        weight_offset=weight_offset,
        exact=exact,
        context=context,
    )


def _as_f32(bias: Any) -> Any:
    """A bias comes in the model's dtype; sums are f32."""
    if hasattr(bias, "detach"):
        return bias.detach().float()
    if not hasattr(bias, "astype"):
        return bias
    if bias.dtype == "uint16":  # the bits of bf16
        return (bias.astype("uint32") << 16).view("float32")
    return bias.astype("float32", copy=False)
