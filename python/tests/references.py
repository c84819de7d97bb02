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
