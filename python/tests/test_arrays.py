# SPDX-License-Identifier: Apache-2.0
"""How arrays come in and go out, seen through one operator."""

import gc

import ml_dtypes
import numpy as np
import pytest

import ops_transformer as ops

WEIGHT = np.ones(64, np.float32)


class OnlyDLPack:
    """What any other library's array looks like."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def norm(x, **arguments):
    return ops.fused_rmsnorm(x, WEIGHT, **arguments)


@pytest.fixture
def x(rng):
    return rng.standard_normal((3, 64), np.float32)


def test_read_only_inputs_are_accepted(x):
    expected = norm(x)
    x.setflags(write=False)
    np.testing.assert_array_equal(norm(x), expected)
    np.testing.assert_array_equal(norm(np.frombuffer(x.tobytes(), np.float32).reshape(3, 64)), expected)


def test_read_only_out_is_refused(x):
    out = np.zeros_like(x)
    out.setflags(write=False)
    with pytest.raises(ValueError, match="out is read-only"):
        norm(x, out=out)


def test_other_kinds_of_arrays(x):
    expected = norm(x)
    for other in (OnlyDLPack(x), memoryview(x)):
        result = norm(other)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, expected)


def test_bfloat16_as_its_bits(x):
    typed = x.astype(ml_dtypes.bfloat16)
    expected, bits = norm(typed), norm(typed.view(np.uint16))
    assert expected.dtype == ml_dtypes.bfloat16 and bits.dtype == np.uint16
    np.testing.assert_array_equal(bits, expected.view(np.uint16))
    typed.setflags(write=False)
    np.testing.assert_array_equal(norm(typed), expected)


def test_float16(x):
    assert norm(x.astype(np.float16)).dtype == np.float16


@pytest.mark.parametrize("x", [[[1.0] * 64], 1.0, "text", None, np.array(["a"]), np.array([object()])])
def test_what_is_no_array_of_numbers_is_a_type_error(x):
    with pytest.raises(TypeError):
        norm(x)


@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.uint32, ml_dtypes.float8_e4m3fn])
def test_other_element_types_are_refused(dtype):
    with pytest.raises((ValueError, TypeError), match="x"):
        norm(np.ones((2, 64), dtype))


def test_too_many_dimensions():
    with pytest.raises(ValueError, match="x has 9 dimensions, must have at most 8"):
        norm(np.ones((1,) * 8 + (64,), np.float32))


def test_large_outputs_are_recycled(rng):
    big = rng.standard_normal((8192, 64), np.float32)
    out = norm(big)
    address, expected = out.ctypes.data, out.copy()
    view = out[5:]
    del out
    assert norm(big).ctypes.data != address, "memory that a view still shows was used again"
    np.testing.assert_array_equal(view, expected[5:])
    del view
    gc.collect()
    again = [norm(big) for _ in range(3)]
    assert address in [array.ctypes.data for array in again]
    for array in again:
        np.testing.assert_array_equal(array, expected)
    assert all(array.ctypes.data % 64 == 0 for array in again)


def test_idle_outputs_are_bounded():
    x = np.zeros((1 << 19, 64), np.float32)  # 128 MiB
    outs = [norm(x) for _ in range(4)]
    assert ops.idle_output_bytes() <= 256 << 20
    del outs
    gc.collect()
    assert ops.idle_output_bytes() <= 256 << 20


def test_inputs_are_not_kept(x):
    import sys

    before = sys.getrefcount(x), sys.getrefcount(WEIGHT)
    for _ in range(10):
        norm(x)
        with pytest.raises(ValueError):
            norm(x[:, :3])
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(WEIGHT)) == before


def test_torch_tensors(x):
    torch = pytest.importorskip("torch")
    expected = norm(x)
    tensor = torch.from_numpy(x)
    result = norm(tensor)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_array_equal(result.numpy(), expected)
    assert isinstance(ops.fused_rmsnorm(tensor, torch.nn.Parameter(torch.ones(64))), torch.Tensor)

    out = torch.full_like(tensor, float("nan"))
    assert norm(tensor, out=out) is out
    np.testing.assert_array_equal(out.numpy(), expected)

    half = norm(tensor.bfloat16())
    assert half.dtype == torch.bfloat16
    np.testing.assert_array_equal(
        half.view(torch.uint16).numpy(), norm(x.astype(ml_dtypes.bfloat16)).view(np.uint16)
    )
    big = torch.ones(8192, 64)
    address = norm(big).data_ptr()
    assert norm(big).data_ptr() == address


def test_tensors_on_other_devices_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="CPU memory.* on meta"):
        norm(torch.zeros(2, 64, device="meta"))
