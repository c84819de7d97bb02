# SPDX-License-Identifier: Apache-2.0
"""Float64 definitions of the operators, and the one bound that every comparison uses."""

import math

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


def layer_norm(x, weight, bias, eps):
    """Also the size of what was added for each element."""
    x, weight, bias = x.astype(np.float64), weight.astype(np.float64), np.asarray(bias, np.float64)
    mean, size = x.mean(-1, keepdims=True), np.abs(x).mean(-1, keepdims=True)
    deviation = np.sqrt(np.mean((x - mean) ** 2, axis=-1, keepdims=True) + eps)
    return (x - mean) / deviation * weight + bias, (np.abs(x) + size) / deviation * np.abs(weight) + np.abs(bias)


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


def attention(q, k, v, scale, left=None, right=None, **rules):
    """Keys p - left … p + right of query i, p = i + kv_len - q_len (i where top_left); None: no limit. One dict of what
    tests compare."""
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    k, v = (np.repeat(a, q.shape[1] // a.shape[1], axis=1) for a in (k, v))
    place = np.arange(q.shape[2])[:, None] + (0 if rules.get("top_left") else k.shape[2] - q.shape[2])
    keys = np.arange(k.shape[2])[None]
    seen = np.ones((q.shape[0], q.shape[1], q.shape[2], k.shape[2]), bool)
    if left is not None:
        seen &= keys >= place - left
    if right is not None:
        seen &= keys <= place + right
    if (prefix := rules.get("prefix_lens")) is not None:
        seen |= keys < np.asarray(prefix)[:, None, None, None]
    if (visible := rules.get("visible")) is not None:
        seen &= visible
    if (tree := rules.get("tree")) is not None:
        first = k.shape[2] - q.shape[2]
        seen[..., first:] &= tree[:, None]
    bias = np.float64(0) if rules.get("bias") is None else rules["bias"].astype(np.float64)
    seen &= ~np.isneginf(bias)
    bias = np.where(np.isneginf(bias), 0, bias)
    before, after = (bias, 0 * bias) if rules.get("bias_before_scale") else (0 * bias, bias)
    scores = (q @ k.swapaxes(-1, -2) + before) * scale
    size = (np.abs(q) @ np.abs(k).swapaxes(-1, -2) + np.abs(before)) * abs(scale) + np.abs(after)
    if cap := rules.get("logit_soft_cap"):
        scores = cap * np.tanh(scores / cap)
    scores = scores + after
    if (slopes := rules.get("alibi_slopes")) is not None and len(slopes):
        distance = np.asarray(slopes, np.float64)[:, None, None] * np.abs(place - keys)
        scores, size = scores - distance, size + distance
    scores = np.where(seen, scores, -np.inf)
    size = np.where(seen, size, 0).max(axis=-1, initial=0)
    largest = scores.max(axis=-1, initial=-np.inf)
    if (sinks := rules.get("sinks")) is not None and len(sinks):
        sink = np.broadcast_to(np.asarray(sinks, np.float64)[:, None], largest.shape)
        largest = np.maximum(largest, sink)
    else:
        sink = np.full(largest.shape, -np.inf)
    finite = np.where(np.isneginf(largest), 0, largest)
    weights = np.exp(scores - finite[..., None])
    total = weights.sum(axis=-1) + np.exp(sink - finite)
    with np.errstate(divide="ignore"):
        lse = np.log(total) + finite
    weights = weights / np.where(total == 0, 1, total)[..., None]
    if (dropout := rules.get("dropout_mask")) is not None:
        bits = np.unpackbits(dropout, axis=-1, bitorder="little")[..., : k.shape[2]]
        weights = weights * bits / rules["keep_prob"]
    return {
        "out": weights @ v,
        "magnitude": weights @ np.abs(v),
        "lse": lse,
        "max": largest,
        "sum": total,
        "num_keys": seen.sum(-1),
        "score_magnitude": size,
    }


def activate(x, activation):
    return {
        "none": lambda: x,
        "relu": lambda: np.maximum(x, 0),
        "silu": lambda: x / (1 + np.exp(-x)),
        "gelu_tanh": lambda: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
        "gelu_fast": lambda: x / (1 + np.exp(-1.702 * x)),
        "gelu_erf": lambda: 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2))),
    }[activation]()


def linear(x, weight, bias=0.0, activation="none", residual=0.0):
    """Also the sum of |a||b| of each element; no activation here has a slope above 1.13."""
    x, weight, bias, residual = (np.asarray(a, np.float64) for a in (x, weight, bias, residual))
    magnitude = 1.13 * (np.abs(x) @ np.abs(weight).T + np.abs(bias)) + np.abs(residual)
    return activate(x @ weight.T + bias, activation) + residual, magnitude


def quantise_activations(x):
    """Blocks of 32 as int8 codes with one scale, as the int8 dot products see them: bf16 values often lie on a tie, so
    the f32 steps are those of the definition (quantise_rows_kernel.h)."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.float32(127) / np.where(most == 0, np.float32(1), most)
    return (np.rint(blocks * inverse).astype(np.float64) * (most / np.float32(127))).reshape(x.shape)
