# SPDX-License-Identifier: Apache-2.0
import gguf
import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops

ACTIVATIONS = ["none", "relu", "silu", "gelu_tanh", "gelu_erf", "gelu_fast"]
QUANTISED = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
# gguf reads these and writes none; where their blocks have f16 scales and minima.
HALVES_OF_K = {"q2_k": [80, 82], "q3_k": [108], "q4_k": [0, 2], "q5_k": [0, 2], "q6_k": [208]}


def gguf_type(dtype):
    """The type, elements of a block, bytes of a block."""
    kind = gguf.GGMLQuantizationType[dtype[:2].upper() + dtype[2:].upper()]
    return kind, *gguf.GGML_QUANT_SIZES[kind]


def quantise(weight, dtype):
    """GGUF blocks of a weight, and the values that they stand for. K types: any codes, small scales."""
    kind, block_len, block_bytes = gguf_type(dtype)
    if dtype in HALVES_OF_K:
        rng = np.random.default_rng(weight.size)
        blocks = rng.integers(0, 256, (*weight.shape[:-1], weight.shape[-1] // block_len, block_bytes), np.uint8)
        for at in HALVES_OF_K[dtype]:
            halves = (0.003 * rng.standard_normal((*blocks.shape[:-1], 1))).astype(np.float16)
            blocks[..., at : at + 2] = halves.view(np.uint8)
        blocks = blocks.reshape(*weight.shape[:-1], -1)
    else:
        blocks = gguf.quants.quantize(weight, kind)
    return blocks, gguf.quants.dequantize(blocks, kind)


@pytest.mark.parametrize("dtype", QUANTISED + list(HALVES_OF_K))
def test_dequantise_gives_the_bits_of_gguf(dtype, rng):
    kind, block_len, block_bytes = gguf_type(dtype)
    random = rng.integers(0, 256, (200, 5 * block_bytes), np.uint8)  # NaN and infinite scales among them
    quantised, _ = quantise(rng.standard_normal((3, 4 * block_len), np.float32), dtype)
    for blocks in (random, quantised):
        with np.errstate(invalid="ignore", over="ignore"):
            expected = gguf.quants.dequantize(blocks, kind)
        values = ops.dequantise(blocks, dtype)
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(values), nan)
        np.testing.assert_array_equal(values.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
    out = np.empty((3, 5 * block_len), np.float32)[:, : 4 * block_len]
    assert ops.dequantise(quantised, dtype, out) is out
    np.testing.assert_array_equal(out, values)
    # The exact product with a unit vector is the value too, out of the packed form.
    packed = ops.PackedWeights(quantised, dtype)
    assert packed.nbytes <= 1.1 * 16 / 3 * quantised.nbytes
    unit = np.eye(4 * block_len, dtype=np.float32)
    np.testing.assert_array_equal(ops.linear(unit, packed, exact=True), values.T)


def test_dequantise_checks_its_arguments():
    blocks = np.zeros((2, 144), np.uint8)
    for arguments, message in [
        ((blocks, "f32"), "dtype is 'f32'"),
        ((blocks[:, :143], "q4_k"), "whole blocks of 144 bytes"),
        ((blocks[0], "q4_k"), "2 dimensions"),
        ((blocks, "q4_k", np.zeros((2, 255), np.float32)), "out must be [2, 256]"),
        ((blocks, "q4_k", np.zeros((2, 256), np.float16)), "out must be f32"),
    ]:
        with pytest.raises(ValueError) as error:
            ops.dequantise(*arguments)
        assert message in str(error.value)


def as_kernels_see(x, dtype, exact):
    if not exact and dtype == "bf16":
        return x.astype(np.float32).astype(ml_dtypes.bfloat16)
    if not exact and (dtype in QUANTISED or dtype in HALVES_OF_K):
        return references.quantise_activations(x)
    return x


def pack(weight, dtype, **arguments):
    if dtype in QUANTISED or dtype in HALVES_OF_K:
        blocks, values = quantise(weight, dtype)
        return ops.PackedWeights(blocks, dtype, **arguments), values
    values = weight.astype(references.DTYPES[dtype])
    return ops.PackedWeights(values, **arguments), values


@given(
    x_dtype=st.sampled_from(sorted(references.DTYPES)),
    weight_dtype=st.sampled_from(sorted(references.DTYPES) + QUANTISED),
    leading=st.lists(st.integers(1, 6), max_size=2),
    blocks=st.integers(1, 6),
    odd_inputs=st.integers(0, 31),
    num_outputs=st.integers(1, 70),
    activation=st.sampled_from(ACTIVATIONS),
    with_bias=st.booleans(),
    with_residual=st.booleans(),
    exact=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_linear_matches_reference(
    x_dtype, weight_dtype, leading, blocks, odd_inputs, num_outputs, activation, with_bias, with_residual, exact, seed
):
    rng = np.random.default_rng(seed)
    num_inputs = 32 * blocks + (0 if weight_dtype in QUANTISED else odd_inputs)
    x = rng.standard_normal((*leading, num_inputs)).astype(references.DTYPES[x_dtype])
    packed, values = pack(rng.standard_normal((num_outputs, num_inputs), np.float32), weight_dtype)
    assert (packed.dtype, packed.num_outputs, packed.num_inputs) == (weight_dtype, num_outputs, num_inputs)
    arguments = {}
    if with_bias:
        arguments["bias"] = rng.standard_normal(num_outputs, np.float32)
    if with_residual:
        arguments["residual"] = rng.standard_normal((*leading, num_outputs)).astype(x.dtype)
    out = ops.linear(x, packed, activation=activation, exact=exact, **arguments)
    assert out.dtype == x.dtype
    expected, magnitude = references.linear(
        as_kernels_see(x, weight_dtype, exact), values, activation=activation, **arguments
    )
    references.assert_close(out, expected, num_inputs + 2, magnitude)


@pytest.mark.parametrize("isa", ops.supported_isas())
@pytest.mark.parametrize("dtype", sorted(references.DTYPES) + QUANTISED + list(HALVES_OF_K))
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_every_level(isa, dtype, rows, rng):
    num_inputs = 512 if dtype in HALVES_OF_K else 320
    context = ops.Context(num_threads=2, isa=isa)
    packed, values = pack(rng.standard_normal((100, num_inputs), np.float32), dtype, context=context)
    x = rng.standard_normal((rows, num_inputs), np.float32)
    expected, magnitude = references.linear(as_kernels_see(x, dtype, False), values)
    references.assert_close(ops.linear(x, packed, context=context), expected, num_inputs + 2, magnitude)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4_1"])
def test_rows_do_not_depend_on_their_number_or_on_threads(dtype, rng):
    packed, _ = pack(rng.standard_normal((96, 256), np.float32), dtype)
    x = rng.standard_normal((130, 256), np.float32)
    expected = ops.linear(x, packed, context=ops.Context(num_threads=1))
    for threads in (2, 3):
        context = ops.Context(num_threads=threads)
        for rows in (1, 3, 17, 130):
            np.testing.assert_array_equal(ops.linear(x[:rows], packed, context=context), expected[:rows])


@given(
    weight_dtype=st.sampled_from(["f32", "bf16"] + QUANTISED),
    rows=st.integers(1, 20),
    num_outputs=st.integers(1, 50),
    activation=st.sampled_from(ACTIVATIONS),
    exact=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_gated_linear_matches_reference(weight_dtype, rows, num_outputs, activation, exact, seed):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, 96), np.float32)
    gate, up = rng.standard_normal((2, num_outputs, 96), np.float32)
    if weight_dtype in QUANTISED:
        (gate_blocks, gate), (up_blocks, up) = quantise(gate, weight_dtype), quantise(up, weight_dtype)
        packed = ops.PackedWeights.gate_up(gate_blocks, up_blocks, weight_dtype)
    else:
        gate, up = gate.astype(references.DTYPES[weight_dtype]), up.astype(references.DTYPES[weight_dtype])
        packed = ops.PackedWeights.gate_up(gate, up)
    assert packed.num_gated_outputs == num_outputs
    seen = as_kernels_see(x, weight_dtype, exact)
    gates, gates_magnitude = references.linear(seen, gate, activation=activation)
    ups, ups_magnitude = references.linear(seen, up)
    out = ops.gated_linear(x, packed, activation, exact=exact)
    references.assert_close(out, gates * ups, 98, gates_magnitude * ups_magnitude)


def test_stacked_weights(rng):
    parts = [rng.standard_normal((outputs, 64), np.float32) for outputs in (48, 16, 7)]
    x = rng.standard_normal((3, 64), np.float32)
    packed = ops.PackedWeights.stack(parts)
    assert packed.num_outputs == 71
    np.testing.assert_array_equal(ops.linear(x, packed), ops.linear(x, ops.PackedWeights(np.concatenate(parts))))


def test_strides_and_out(rng):
    packed, values = pack(rng.standard_normal((20, 64), np.float32), "f32")
    x = rng.standard_normal((3, 4, 100), np.float32).transpose(1, 0, 2)[..., 7:71]
    expected, magnitude = references.linear(x, values)
    out = np.full((4, 3, 30), np.nan, np.float32)[..., :20]
    assert ops.linear(x, packed, out=out) is out
    references.assert_close(out, expected, 66, magnitude)
    half = np.empty((4, 3, 20), np.float16)
    ops.linear(x, packed, out=half)
    references.assert_close(half, expected, 66, magnitude)
    residual = expected.astype(np.float32)
    ops.linear(x, packed, residual=residual, out=residual)
    references.assert_close(residual, 2 * expected, 66, magnitude + np.abs(expected))


WEIGHTS = ops.PackedWeights(np.ones((16, 64), np.float32))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(x=np.ones((2, 63), np.float32)), "x must be"),
        (dict(x=np.float32(1)), "x must have at least one dimension"),
        (dict(bias=np.ones(15, np.float32)), "bias must be [16]"),
        (dict(bias=np.ones(16, np.float16)), "bias must be f32"),
        (dict(residual=np.ones((1, 16), np.float32)), "residual must be [2, 16]"),
        (dict(activation="tanh"), "activation is 'tanh'"),
        (dict(out=np.ones((2, 17), np.float32)), "out must be [2, 16]"),
        (dict(weights=ops.PackedWeights.gate_up(*np.ones((2, 16, 64), np.float32))), "gated_linear"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(x=np.ones((2, 64), np.float32), weights=WEIGHTS)
    with pytest.raises(ValueError) as error:
        ops.linear(**(usable | arguments))
    assert message in str(error.value)


@pytest.mark.parametrize(
    "weight, dtype, message",
    [
        (np.ones(8, np.float32), None, "2 dimensions"),
        (np.ones((2, 8), np.int32), None, "is i32, must be f32 or bf16"),
        (np.ones((2, 18), np.uint8), "q9", "dtype is 'q9'"),
        (np.ones((2, 18), np.uint8), "f32", "dtype is 'f32'"),
        (np.ones((2, 17), np.uint8), "q4_0", "whole blocks of 18 bytes, got 17"),
        (np.ones((2, 18), np.float32), "q4_0", "weight must be u8"),
    ],
)
def test_weights_are_checked(weight, dtype, message):
    with pytest.raises(ValueError, match=message):
        ops.PackedWeights(weight, dtype)


def test_stacked_weights_are_checked():
    for weights in ([], [np.ones((8, 4), np.float32), np.ones((8, 4), np.float32)], [np.ones((16, 4)), WEIGHTS]):
        with pytest.raises((ValueError, TypeError)):
            ops.PackedWeights.stack(weights)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "q4_1", "q6_k"])
def test_weights_are_saved_and_loaded(dtype, rng, tmp_path):
    packed, _ = pack(rng.standard_normal((40, 256), np.float32), dtype)
    packed.save(str(tmp_path / "weights"))
    loaded = ops.PackedWeights.load(str(tmp_path / "weights"))
    assert (loaded.dtype, loaded.num_outputs, loaded.num_inputs) == (dtype, 40, 256)
    x = rng.standard_normal((3, 256), np.float32)
    np.testing.assert_array_equal(ops.linear(x, loaded), ops.linear(x, packed))
    data = bytearray((tmp_path / "weights").read_bytes())
    data[200] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    with pytest.raises(ops.InvalidFile, match="damaged"):
        ops.PackedWeights.load(str(tmp_path / "damaged"))
    (tmp_path / "cut").write_bytes(data[:-1])
    with pytest.raises(ops.InvalidFile, match="bytes"):
        ops.PackedWeights.load(str(tmp_path / "cut"))
