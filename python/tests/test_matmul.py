# SPDX-License-Identifier: Apache-2.0
"""matmul, integer weights, and what linear does to rows and results."""

import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops

ISAS = ops.supported_isas()


def matmul_reference(a, b, bias=0.0, activation="none", residual=0.0):
    a, b = a.astype(np.float64), b.astype(np.float64)
    magnitude = 1.13 * (np.abs(a) @ np.abs(b) + np.abs(bias)) + np.abs(residual)
    return references.activate(a @ b + bias, activation) + residual, magnitude


def strided(rng, shape, dtype, swapped, reverse):
    """An array of any strides: the last two dimensions swapped, every second element, or read backwards."""
    if swapped:
        array = rng.standard_normal((*shape[:-2], shape[-1], 2 * shape[-2]), np.float32).astype(dtype)
        array = array[..., ::2].swapaxes(-1, -2)
    else:
        array = rng.standard_normal((*shape[:-1], shape[-1] + 3), np.float32).astype(dtype)[..., 3:]
    return array[..., ::-1, :] if reverse else array


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    batch=st.lists(st.integers(1, 3), max_size=2),
    a_keeps=st.lists(st.booleans(), min_size=2, max_size=2),
    b_keeps=st.lists(st.booleans(), min_size=2, max_size=2),
    sizes=st.tuples(st.integers(0, 20), st.integers(0, 70), st.integers(0, 70)),
    transpose_b=st.booleans(),
    swapped=st.tuples(st.booleans(), st.booleans()),
    reverse=st.tuples(st.booleans(), st.booleans()),
    activation=st.sampled_from(["none", "relu", "silu"]),
    epilogue=st.booleans(),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 2**32 - 1),
)
def test_matmul_matches_reference(
    dtype, batch, a_keeps, b_keeps, sizes, transpose_b, swapped, reverse, activation, epilogue, isa, seed
):
    rng = np.random.default_rng(seed)
    m, n, k = sizes
    kind = references.DTYPES[dtype]
    a_batch = [size if keep else 1 for size, keep in zip(batch, a_keeps)]
    b_batch = [size if keep else 1 for size, keep in zip(batch, b_keeps)]
    a = strided(rng, (*a_batch, m, k), kind, swapped[0], reverse[0])
    b = strided(rng, (*b_batch, n, k) if transpose_b else (*b_batch, k, n), kind, swapped[1], reverse[1])
    shape = (*np.broadcast_shapes(tuple(a_batch), tuple(b_batch)), m, n)
    arguments = {}
    if epilogue:
        arguments = {
            "bias": rng.standard_normal(n, np.float32),
            "residual": rng.standard_normal(shape, np.float32).astype(kind),
        }
    out = ops.matmul(
        a, b, activation=activation, transpose_b=transpose_b, context=ops.Context(num_threads=2, isa=isa), **arguments
    )
    assert out.dtype == kind and out.shape == shape
    as_f64 = {name: value.astype(np.float64) for name, value in arguments.items()}
    expected, magnitude = matmul_reference(a, b.swapaxes(-1, -2) if transpose_b else b, activation=activation, **as_f64)
    references.assert_close(out, expected, k + 2, magnitude)


@given(
    a_dtype=st.sampled_from([np.int8, np.uint8]),
    b_dtype=st.sampled_from([np.int8, np.uint8]),
    sizes=st.tuples(st.integers(1, 20), st.integers(1, 70), st.integers(0, 300)),
    transpose_b=st.booleans(),
    zeros=st.tuples(st.integers(0, 255), st.integers(0, 255)),
    seed=st.integers(0, 2**32 - 1),
)
def test_integers_are_exact_at_every_level(a_dtype, b_dtype, sizes, transpose_b, zeros, seed):
    rng = np.random.default_rng(seed)
    m, n, k = sizes
    a = rng.integers(np.iinfo(a_dtype).min, np.iinfo(a_dtype).max + 1, (m, k), a_dtype)
    b = rng.integers(np.iinfo(b_dtype).min, np.iinfo(b_dtype).max + 1, (n, k) if transpose_b else (k, n), b_dtype)
    a_zero, b_zero = zeros[0] + np.iinfo(a_dtype).min, zeros[1] + np.iinfo(b_dtype).min
    expected = (a.astype(np.int64) - a_zero) @ ((b.T if transpose_b else b).astype(np.int64) - b_zero)
    for isa in ISAS:
        context = ops.Context(num_threads=2, isa=isa)
        out = ops.matmul(a, b, transpose_b=transpose_b, a_zero=int(a_zero), b_zero=int(b_zero), context=context)
        assert out.dtype == np.int32
        np.testing.assert_array_equal(out, expected)


def test_matmul_errors():
    a, b = np.ones((2, 3), np.float32), np.ones((4, 5), np.float32)
    with pytest.raises(ValueError, match="b has 4 inputs, must have 3"):
        ops.matmul(a, b)
    with pytest.raises(ValueError, match="a must have at least 2 dimensions"):
        ops.matmul(np.ones(3, np.float32), b)
    with pytest.raises(ValueError, match="broadcast"):
        ops.matmul(np.ones((2, 2, 4), np.float32), np.ones((3, 4, 5), np.float32))


def rounded(x, group_len, scale=None):
    """x as int8 in groups by their largest values, or by a given scale: what the codes stand for."""
    groups = x.astype(np.float32).reshape(x.shape[0], -1, group_len or x.shape[1])
    if scale is not None:
        codes = np.clip(np.rint(groups / np.float32(scale)), -128, 127)
        return (codes.astype(np.float64) * np.float32(scale)).reshape(x.shape)
    most = np.abs(groups).max(axis=-1, keepdims=True)
    inverse = np.float32(127) / np.where(most == 0, np.float32(1), most)
    return (np.rint(groups * inverse).astype(np.float64) * (most / np.float32(127))).reshape(x.shape)


def integer_weights(rng, dtype, num_outputs, num_inputs, group_len, scale_dtype, with_zeros):
    low, high = {"s8": (-128, 127), "u8": (0, 255), "s4": (-8, 7)}[dtype]
    codes = rng.integers(low, high + 1, (num_outputs, num_inputs))
    num_groups = num_inputs // group_len if group_len else 1
    scales = (0.01 * rng.standard_normal((num_outputs, num_groups))).astype(scale_dtype)
    zeros = rng.integers(low, high + 1, (num_outputs, num_groups)) * with_zeros
    each = num_inputs // num_groups
    values = np.repeat(scales.astype(np.float64), each, 1) * (codes - np.repeat(zeros, each, 1))
    kind = np.uint8 if dtype == "u8" else np.int8
    if dtype == "s4":
        stored, name = (codes[:, ::2] & 15 | (codes[:, 1::2] & 15) << 4).astype(np.uint8), "s4"
    else:
        stored, name = codes.astype(kind), None
    packed = ops.PackedWeights.integers(stored, scales, zeros.astype(kind) if with_zeros else None, group_len, name)
    assert (packed.dtype, packed.num_inputs, packed.group_len) == (dtype, num_inputs, group_len)
    return packed, values


@given(
    dtype=st.sampled_from(["s8", "u8", "s4"]),
    group_len=st.sampled_from([0, 32, 64, 128, 256]),
    scale_dtype=st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]),
    with_zeros=st.booleans(),
    rows=st.integers(1, 20),
    num_outputs=st.integers(1, 70),
    num_inputs=st.integers(1, 3),
    exact=st.booleans(),
    static=st.booleans(),
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 2**32 - 1),
)
def test_integer_weights_match_reference(
    dtype, group_len, scale_dtype, with_zeros, rows, num_outputs, num_inputs, exact, static, isa, seed
):
    rng = np.random.default_rng(seed)
    num_inputs = num_inputs * group_len if group_len else 2 * int(rng.integers(1, 200))
    packed, values = integer_weights(rng, dtype, num_outputs, num_inputs, group_len, scale_dtype, with_zeros)
    x = rng.standard_normal((rows, num_inputs), np.float32)
    scale = np.float32(0.03) if static and not exact else None
    arguments = {} if scale is None else {"x_scales": np.array([scale])}
    out = ops.linear(x, packed, exact=exact, context=ops.Context(num_threads=2, isa=isa), **arguments)
    expected, magnitude = references.linear(x if exact else rounded(x, group_len, scale), values)
    references.assert_close(out, expected, num_inputs + 2, magnitude)


def test_integer_weights_are_saved_and_loaded(rng, tmp_path):
    packed, _ = integer_weights(rng, "s4", 40, 256, 64, np.float16, True)
    packed.save(str(tmp_path / "weights"))
    loaded = ops.PackedWeights.load(str(tmp_path / "weights"))
    assert (loaded.dtype, loaded.group_len, loaded.nbytes) == ("s4", 64, packed.nbytes)
    x = rng.standard_normal((3, 256), np.float32)
    np.testing.assert_array_equal(ops.linear(x, loaded), ops.linear(x, packed))


def test_codes_in_and_out(rng):
    packed, values = integer_weights(rng, "s8", 24, 64, 0, np.float32, False)
    codes = rng.integers(0, 256, (5, 64), np.uint8)
    scales = rng.uniform(0.01, 0.1, 5).astype(np.float32)
    out = ops.linear(codes, packed, x_scales=scales, x_zero=130)
    assert out.dtype == np.float32
    expected, magnitude = references.linear(scales[:, None].astype(np.float64) * (codes.astype(int) - 130), values)
    references.assert_close(out, expected, 66, magnitude)
    y = ops.linear(codes, packed, x_scales=scales, x_zero=130, out_scale=0.05, out_zero=3, out_dtype="s8")
    assert y.dtype == np.int8
    difference = y - np.clip(np.rint(out.astype(np.float64) / np.float32(0.05)) + 3, -128, 127)
    assert np.abs(difference).max() <= 1 and np.count_nonzero(difference) <= 1  # on a tie
    sums = ops.linear(codes, ops.PackedWeights.integers(np.ones((2, 64), np.int8)), out_dtype="i32")
    np.testing.assert_array_equal(sums, np.repeat(codes.astype(np.int32).sum(1)[:, None], 2, 1))


@given(rows=st.integers(1, 60), num_tokens=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_rows_are_gathered_and_scatter_added(rows, num_tokens, seed):
    rng = np.random.default_rng(seed)
    weight = rng.standard_normal((20, 33), np.float32)
    x = rng.standard_normal((num_tokens, 33), np.float32)
    ids = rng.integers(0, num_tokens, rows, np.int32)
    targets = rng.integers(-1, 4, rows, np.int32)
    factors = rng.standard_normal(rows, np.float32)
    out = rng.standard_normal((4, 20), np.float32)
    expected, magnitude = out.astype(np.float64), np.abs(out.astype(np.float64))
    sums, sizes = references.linear(x[ids], weight)
    for row in range(rows):
        if targets[row] >= 0:
            expected[targets[row]] += factors[row].astype(np.float64) * sums[row]
            magnitude[targets[row]] += np.abs(factors[row]) * sizes[row]
    packed = ops.PackedWeights(weight)
    assert ops.linear(x, packed, x_rows=ids, row_scales=factors, out_rows=targets, out=out) is out
    references.assert_close(out, expected, 35 + rows, magnitude)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(x_rows=np.array([5], np.int32)), "x_rows[0] is 5, must be below 2 and from 0"),
        (dict(out_rows=np.array([0, 1], np.int32)), "so out must be"),
        (dict(x_scales=np.ones(1, np.float32)), "x_scales is given, but x is f32"),
        (dict(out_dtype="i32"), "out is i32"),
        (dict(out_dtype="x9"), "out_dtype is 'x9'"),
        (dict(out_scale=0.0, out_dtype="s8"), "out_scale is 0"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    packed = ops.PackedWeights(np.ones((3, 4), np.float32))
    with pytest.raises(ValueError) as error:
        ops.linear(np.ones((2, 4), np.float32), packed, **arguments)
    assert message in str(error.value)
