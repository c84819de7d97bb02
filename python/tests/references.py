# SPDX-License-Identifier: Apache-2.0
"""Float64 definitions of the operators, and the one bound that every comparison uses."""

import ml_dtypes
import numpy as np

DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
EPSILON = {np.dtype(np.float32): 2.0**-24, np.dtype(ml_dtypes.bfloat16): 2.0**-8, np.dtype(np.float16): 2.0**-11}


def tolerance(terms, magnitude, expected, out_dtype, accumulate=np.float32):
    """|error| allowed for a sum of `terms` products, rounded once to out_dtype; magnitude is the sum of |a||b|."""
    smallest = 2.0**-25 if out_dtype == np.float16 else 2.0**-140
    rounding = EPSILON[np.dtype(out_dtype)] * np.abs(expected)
    return 2 * (terms + 8) * EPSILON[np.dtype(accumulate)] * magnitude + rounding + smallest


def assert_close(actual, expected, terms, magnitude, accumulate=np.float32):
    assert actual.shape == expected.shape
    error = np.abs(actual.astype(np.float64) - expected)
    allowed = tolerance(terms, magnitude, expected, actual.dtype, accumulate)
    # NaN in a result has to fail.
    assert np.all(error <= allowed), f"error is {np.max(error / allowed):.3g} times the bound"


def rms_norm(x, weight, eps, weight_offset=0.0):
    x = x.astype(np.float64)
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * (weight_offset + weight.astype(np.float64))


def rotary_embedding(x, positions, rotary_dim, theta=10000.0, interleaved=False, position_scale=1.0):
    """x [..., heads, tokens, head_dim] with positions [..., 1, tokens]; also the sum of |a||b| of each element."""
    x = x.astype(np.float64)
    half = rotary_dim // 2
    angles = (np.asarray(positions, np.float64) / position_scale)[..., None] * theta ** (-2.0 * np.arange(half) / rotary_dim)
    cosines, sines = np.cos(angles), np.sin(angles)
    first = np.arange(half) * 2 if interleaved else np.arange(half)
    second = first + 1 if interleaved else first + half
    a, b = x[..., first], x[..., second]
    out, magnitude = x.copy(), np.abs(x)
    out[..., first], out[..., second] = a * cosines - b * sines, b * cosines + a * sines
    magnitude[..., first] = np.abs(a * cosines) + np.abs(b * sines)
    magnitude[..., second] = np.abs(b * cosines) + np.abs(a * sines)
    return out, magnitude
