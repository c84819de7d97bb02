# SPDX-License-Identifier: Apache-2.0
"""Weights as callers hold them, packed for the matmuls.

Packing reads and writes a whole weight, so what PyTorch tensors were packed into is kept while they live
and stay as they are: a tensor's version counter, address, shape and a sample of its elements tell. A write
that none of these shows (some elements through `.data` or a NumPy view) needs `forget_packed_weights()`.
NumPy arrays have no version and are packed at every call: pass PackedWeights instead.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from ._core import Context, PackedWeights

_Packed = TypeVar("_Packed")
_SAMPLES = 64
_kept: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}


def is_array(value: object) -> bool:
    return hasattr(value, "__dlpack__") and hasattr(value, "shape")


def _state(tensor: Any) -> tuple[Any, ...]:
    flat = tensor.detach().reshape(-1)
    sample = flat[:: max(1, flat.numel() // _SAMPLES)]
    return tensor.data_ptr(), tensor._version, tuple(tensor.shape), tensor.dtype, tuple(sample.tolist())


def pack_once(kind: object, arrays: tuple[Any, ...], pack: Callable[[], _Packed]) -> _Packed:
    """pack() of these arrays, or what it gave before. `kind` tells apart what else the result rests on."""
    torch = sys.modules.get("torch")
    if torch is None or not all(isinstance(a, torch.Tensor) and a.is_contiguous() for a in arrays):
        return pack()
    key = (kind, *(id(a) for a in arrays))
    state = tuple(_state(a) for a in arrays)
    if (entry := _kept.get(key)) is not None and entry[0] == state:
        return entry[1]
    packed = pack()
    if key not in _kept:
        for array in arrays:
            weakref.finalize(array, _kept.pop, key, None).atexit = False
    _kept[key] = (state, packed)
    return packed


def packed_linear(weight: Any, context: Context | None) -> PackedWeights:
    """weight [num_outputs, num_inputs], or PackedWeights as they are."""
    if isinstance(weight, PackedWeights):
        return weight
    return pack_once("linear", (weight,), lambda: PackedWeights(weight, context=context))


def forget_packed_weights() -> None:
    """Drops what tensors were packed into; the next calls pack them again."""
    _kept.clear()
