# SPDX-License-Identifier: Apache-2.0
"""What the stubs mean by an array."""

from typing import Any, Protocol, TypeVar


class Array(Protocol):
    """NumPy arrays, PyTorch tensors and whatever else exports its memory through DLPack."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Array)
