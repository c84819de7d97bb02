# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import references
from hypothesis import given
from hypothesis import strategies as st
from reference_model import yarn

import ops_transformer as ops

# What the library promises of cos and sin at any position.
ANGLE_ERROR = 1e-6


def check(out, x, positions, rotary_dim, **options):
    """x as rotary_embedding takes it; the reference wants tokens before head_dim."""
    positions = np.asarray(positions)
    if x.ndim == 3:
        expected, magnitude = references.rotary_embedding(x.transpose(1, 0, 2), positions[None], rotary_dim, **options)
        expected, magnitude = expected.transpose(1, 0, 2), magnitude.transpose(1, 0, 2)
    else:
        positions = positions[:, None] if positions.ndim == 2 else positions[None]
        expected, magnitude = references.rotary_embedding(x, positions, rotary_dim, **options)
    assert out.dtype == x.dtype and out.shape == x.shape
    largest = np.max(np.abs(x.astype(np.float64)), initial=0)
    error = np.abs(out.astype(np.float64) - expected)
    assert np.all(error <= references.tolerance(2, magnitude, expected, out.dtype) + 2 * ANGLE_ERROR * largest)


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5)),
    pairs=st.integers(1, 40),
    extra=st.integers(0, 9),
    packed=st.booleans(),
    per_sequence=st.booleans(),
    interleaved=st.booleans(),
    index=st.sampled_from([np.int32, np.int64]),
    furthest=st.sampled_from([10, 3000, 2**31 - 1]),
    theta=st.sampled_from([10000.0, 100000.0, 1e6]),
    position_scale=st.sampled_from([1.0, 4.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_reference(
    dtype, shape, pairs, extra, packed, per_sequence, interleaved, index, furthest, theta, position_scale, seed
):
    rng = np.random.default_rng(seed)
    batch, heads, length = shape
    head_dim = 2 * pairs + extra
    size = (length, heads, head_dim) if packed else (batch, heads, length, head_dim)
    x = rng.standard_normal(size).astype(references.DTYPES[dtype])
    places = (batch, length) if per_sequence and not packed else (length,)
    positions = rng.integers(-furthest, furthest, places).astype(index)
    options = dict(theta=theta, interleaved=interleaved, position_scale=position_scale)
    out = ops.rotary_embedding(x, positions, rotary_dim=2 * pairs, **options)
    check(out, x, positions, 2 * pairs, **options)


@pytest.mark.parametrize("isa", ops.supported_isas())
def test_every_level(isa, rng):
    x, positions = rng.standard_normal((2, 3, 33, 64), np.float32), np.arange(2030, 2063)
    check(ops.rotary_embedding(x, positions, context=ops.Context(isa=isa)), x, positions, 64)


@pytest.mark.parametrize("batch", [1, 3])
def test_one_token_for_each_sequence(batch, rng):
    x, positions = rng.standard_normal((batch, 4, 1, 32), np.float32), np.arange(batch)[:, None] * 100
    check(ops.rotary_embedding(x, positions), x, positions, 32)
    check(ops.rotary_embedding(x, positions[0]), x, positions[0], 32)


def test_strides_and_out(rng):
    """Tensors of a projection, [batch, seq, heads, head_dim], and an out of another layout."""
    x = rng.standard_normal((2, 7, 3, 16), np.float32).transpose(0, 2, 1, 3)
    positions = np.arange(14)[::2]
    out = np.full((2, 3, 7, 20), np.nan, np.float32)
    assert ops.rotary_embedding(x, np.ascontiguousarray(positions), 8, out=out[..., :16]) is not None
    check(out[..., :16], x, positions, 8)
    assert np.all(np.isnan(out[..., 16:]))
    before = x.copy()
    assert ops.rotary_embedding(x, np.arange(7), out=x) is x
    check(x, before, np.arange(7), 16)


def test_scalings():
    """Against Transformers' formulas, by what a unit vector turns to."""
    dim, theta, positions = 64, 5e5, np.array([0, 1, 700, 5000, 100000])
    plain = theta ** (-np.arange(0, dim, 2) / dim)
    turns = 8192 * plain / (2 * np.pi)
    kept = np.clip((turns - 1) / 3, 0, 1)
    scalings = [
        (ops.NtkScaling(4.0), (theta * 4.0 ** (dim / (dim - 2))) ** (-np.arange(0, dim, 2) / dim), 1.0),
        (ops.Llama3Scaling(), kept * plain + (1 - kept) * plain / 8, 1.0),
        (ops.YarnScaling(4.0, 4096), *yarn(theta, dim, 4.0, 4096)),
        (ops.YarnScaling(4.0, 4096, attention_factor=1.0), yarn(theta, dim, 4.0, 4096)[0], 1.0),
    ]
    x = np.zeros((len(positions), 1, dim), np.float32)
    x[..., : dim // 2] = 1
    for scaling, frequencies, amplitude in scalings:
        out = ops.rotary_embedding(x, positions, theta=theta, scaling=scaling)[:, 0]
        expected = amplitude * np.exp(1j * positions[:, None] * frequencies)
        np.testing.assert_allclose(out[:, : dim // 2], expected.real, rtol=0, atol=1.2e-6)
        np.testing.assert_allclose(out[:, dim // 2 :], expected.imag, rtol=0, atol=1.2e-6)
    with pytest.raises(ValueError, match="yarn.original_context_len is 0"):
        ops.rotary_embedding(x, positions, scaling=ops.YarnScaling(2.0, 0))


def test_many_tables(rng):
    """More settings than tables are kept."""
    x, positions = rng.standard_normal((1, 2, 5, 32), np.float32), np.arange(5)
    for round in range(2):
        for theta in range(10000, 10012):
            check(ops.rotary_embedding(x, positions, theta=theta), x, positions, 32, theta=theta)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(q=np.ones((2, 8), np.float32)), "q must be [batch, heads, seq, head_dim]"),
        (dict(positions=np.arange(4)), "positions must be [5]"),
        (dict(positions=np.zeros((3, 5), np.int64)), "positions must be [2, 5]"),
        (dict(positions=np.arange(5, dtype=np.float32)), "positions must be i32 or i64, got f32"),
        (dict(positions=np.array([0, 1, 2, 3, 2**40])), "positions"),
        (dict(rotary_dim=7), "rotary_dim is 7"),
        (dict(rotary_dim=10), "rotary_dim"),
        (dict(theta=0.0), "theta is 0"),
        (dict(out=np.ones((2, 3, 5, 9), np.float32)), "out must be [2, 3, 5, 8]"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(q=np.ones((2, 3, 5, 8), np.float32), positions=np.arange(5))
    with pytest.raises(ValueError) as error:
        ops.rotary_embedding(**(usable | arguments))
    assert message in str(error.value)


def rotated_by(mode, x):
    """y and rot(x) of x * cos + rot(x) * sin, by the modes' definitions."""
    x1, x2 = np.split(x, 2, axis=-1)
    if mode == "half":
        return x, np.concatenate([-x2, x1], -1)
    if mode == "interleave":
        return x, np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    if mode == "quarter":
        a, b, c, d = np.split(x, 4, axis=-1)
        return x, np.concatenate([-b, a, -d, c], -1)
    return np.concatenate([x[..., ::2], x[..., 1::2]], -1), np.concatenate([-x[..., 1::2], x[..., ::2]], -1)


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    shape=st.lists(st.integers(1, 4), max_size=3),
    quarters=st.integers(1, 20),
    extra=st.integers(0, 9),
    broadcast=st.lists(st.booleans(), min_size=3, max_size=3),
    mode=st.sampled_from(["half", "interleave", "quarter", "interleave_half"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rotary_mul_matches_reference(dtype, shape, quarters, extra, broadcast, mode, seed):
    rng = np.random.default_rng(seed)
    dim = 4 * quarters
    x = rng.standard_normal((*shape, dim + extra)).astype(references.DTYPES[dtype])
    sizes = [1 if b else n for b, n in zip(broadcast, shape)]
    cos, sin = rng.standard_normal((2, *sizes, dim)).astype(x.dtype)
    out = ops.rotary_mul(x, cos, sin, mode)
    y, turned = rotated_by(mode, x[..., :dim].astype(np.float64))
    a, b = y * cos.astype(np.float64), turned * sin.astype(np.float64)
    references.assert_close(out[..., :dim], a + b, 2, np.abs(a) + np.abs(b))
    np.testing.assert_array_equal(out[..., dim:], x[..., dim:])
    if mode != "interleave_half":
        given_turned = turned.astype(x.dtype)
        np.testing.assert_array_equal(ops.rotary_mul(x, cos, sin, mode, given_turned), out)
    before = x.copy()
    assert ops.rotary_mul(x, cos, sin, mode, out=x) is x
    np.testing.assert_array_equal(x, out)
    assert before.shape == x.shape


def test_rotary_mul_errors():
    x = np.ones((2, 8), np.float32)
    for arguments, message in [
        (dict(mode="full"), "mode is 'full'"),
        (dict(cos=np.ones((1, 10), np.float32)), "cos has rows of 10"),
        (dict(sin=np.ones((3, 8), np.float32)), "sin must be"),
        (dict(x=np.ones((1, 1, 1, 2, 8), np.float32)), "x must have 1 to 4 dimensions"),
    ]:
        with pytest.raises(ValueError) as error:
            ops.rotary_mul(**(dict(x=x, cos=np.ones((1, 8), np.float32), sin=np.ones((1, 8), np.float32)) | arguments))
        assert message in str(error.value)


@given(
    tokens=st.integers(1, 6),
    heads=st.integers(1, 3),
    half=st.integers(3, 20),
    extra=st.integers(0, 5),
    interleaved=st.booleans(),
    sections=st.sampled_from(["none", "blocks", "turns"]),
    flat=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_sin_cos_cache_matches_reference(tokens, heads, half, extra, interleaved, sections, flat, seed):
    rng = np.random.default_rng(seed)
    head_dim = 2 * half + extra
    q, k = (rng.standard_normal((tokens, n, head_dim), np.float32) for n in (heads, 1))
    cache = rng.standard_normal((50, 2 * half)).astype(np.float32)
    counts, row_of = None, np.zeros(half, int)
    if sections != "none":
        cuts = np.sort(rng.integers(0, half + 1, 2))
        counts = np.diff([0, *cuts, half]).tolist()
        if sections == "blocks":
            row_of = np.repeat([0, 1, 2], counts)
        else:
            pair = np.arange(half)
            for row in (1, 2):
                row_of[(pair % 3 == row) & (pair < 3 * counts[row])] = row
    positions = rng.integers(0, 50, (3, tokens) if counts else tokens)
    places = positions[row_of] if counts else np.broadcast_to(positions, (half, tokens))  # [pair, token]
    cos, sin = cache[places.T, np.arange(half)], cache[places.T, half + np.arange(half)]
    shape = lambda a: a.reshape(tokens, -1) if flat else a
    results = ops.rope_with_sin_cos_cache(
        positions, shape(q), shape(k), cache, head_dim, interleaved, counts, sections == "turns"
    )
    first = np.arange(half) * 2 if interleaved else np.arange(half)
    second = first + 1 if interleaved else first + half
    for x, out in zip((q, k), results):
        out = out.reshape(x.shape)
        a, b, c, s = x[..., first].astype(np.float64), x[..., second].astype(np.float64), cos[:, None], sin[:, None]
        size = (np.abs(a) + np.abs(b)) * (np.abs(c) + np.abs(s))
        references.assert_close(out[..., first], a * c - b * s, 2, size)
        references.assert_close(out[..., second], b * c + a * s, 2, size)
        np.testing.assert_array_equal(out[..., 2 * half :], x[..., 2 * half :])
