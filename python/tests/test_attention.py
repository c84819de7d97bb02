# SPDX-License-Identifier: Apache-2.0
import ml_dtypes
import numpy as np
import pytest
import references
from hypothesis import given, settings
from hypothesis import strategies as st

import ops_transformer as ops


def limits(causal, window):
    """The reference's left and right."""
    left, right = (None, None)
    if isinstance(window, tuple):
        left, right = (None if side == -1 else side for side in window)
    elif window is not None:
        left = window - 1
    return left, 0 if causal else right


def check(result, q, k, v, scale, causal=False, window=None):
    check_expected(result, references.attention(q, k, v, scale, *limits(causal, window)), q.shape[-1], q.dtype)


def check_expected(result, expected, head_dim, dtype):
    out, lse = result
    assert out.dtype == dtype and lse.dtype == np.float32
    score_error = references.tolerance(head_dim, expected["score_magnitude"], 0, np.float32)
    # With bf16 keys the probabilities enter the second product as bf16.
    weight_error = 2 * 2.0**-8 if dtype == ml_dtypes.bfloat16 else 0
    allowed = references.tolerance(
        expected["num_keys"][..., None] + 1, expected["magnitude"], expected["out"], out.dtype
    ) + (2 * score_error + weight_error)[..., None] * expected["magnitude"]
    assert np.all(np.abs(out.astype(np.float64) - expected["out"]) <= allowed)
    assert np.all(out[expected["num_keys"] == 0] == 0)
    empty = np.isneginf(expected["lse"])
    assert np.all(np.isneginf(lse[empty]))
    # The maximum is kept in powers of two: two conversions of one value.
    finite = np.where(empty, 0, expected["lse"])
    allowed = references.tolerance(expected["num_keys"], 1 + np.abs(finite), finite, np.float32) + score_error + weight_error
    assert np.all(np.abs(lse[~empty] - expected["lse"][~empty]) <= allowed[~empty])


@given(
    dtype=st.sampled_from(sorted(references.DTYPES)),
    batch=st.integers(1, 2),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2), (3, 3), (9, 3)]),
    q_len=st.integers(1, 70),
    kv_len=st.integers(1, 140),
    head_dim=st.sampled_from([1, 3, 16, 33, 64, 80, 128]),
    value_dim=st.sampled_from([None, 1, 24]),
    causal=st.booleans(),
    window=st.sampled_from([None, None, 1, 7, 40, (3, 0), (0, 5), (-1, 2), (20, -1)]),
    softmax_scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_matches_reference(
    dtype, batch, heads, q_len, kv_len, head_dim, value_dim, causal, window, softmax_scale, seed
):
    if isinstance(window, int) and not causal:
        window = (window, window)
    rng = np.random.default_rng(seed)
    q, k, v = (
        rng.standard_normal(shape).astype(references.DTYPES[dtype])
        for shape in (
            (batch, heads[0], q_len, head_dim),
            (batch, heads[1], kv_len, head_dim),
            (batch, heads[1], kv_len, value_dim or head_dim),
        )
    )
    result = ops.flash_attention(q, k, v, causal, softmax_scale, window, return_lse=True)
    check(result, q, k, v, softmax_scale or head_dim**-0.5, causal, window)
    without_lse = ops.flash_attention(q, k, v, causal, softmax_scale, window)
    np.testing.assert_array_equal(without_lse.view(np.uint8), result[0].view(np.uint8))


def in_layout(array, layout):
    """[batch, heads, tokens, dim] as another layout has it."""
    batch, heads, tokens, dim = array.shape
    if layout == "BNSD":
        return array
    tokens_first = np.ascontiguousarray(array.transpose(0, 2, 1, 3))
    if layout == "BSND":
        return tokens_first
    if layout == "BSH":
        return tokens_first.reshape(batch, tokens, heads * dim)
    return np.ascontiguousarray(array.transpose(2, 0, 1, 3)).reshape(tokens, batch, heads * dim)


def from_layout(array, layout, heads):
    if layout == "BNSD":
        return array
    if layout == "BSND":
        return array.transpose(0, 2, 1, 3)
    if layout == "SBH":
        array = array.transpose(1, 0, 2)
    return array.reshape(*array.shape[:2], heads, -1).transpose(0, 2, 1, 3)


@st.composite
def broadcast_arrays(draw, rng_values, shape):
    """An array that broadcasts to shape: some dimensions 1, leading ones left out, memory in another order."""
    sizes = [size if draw(st.booleans()) else 1 for size in shape]
    sizes = sizes[draw(st.integers(0, 3)) if all(size == 1 for size in sizes[:3]) else 0 :]
    array = rng_values(sizes)
    return array.swapaxes(-1, -2).copy().swapaxes(-1, -2) if len(sizes) > 1 and draw(st.booleans()) else array


@settings(max_examples=200)
@given(data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_rules_and_layouts_in_every_combination(data, seed):
    rng = np.random.default_rng(seed)
    dtype = references.DTYPES[data.draw(st.sampled_from(sorted(references.DTYPES)))]
    kv_heads, group = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 2, 4, 9]))
    heads, batch = kv_heads * group, data.draw(st.integers(1, 2))
    q_len, kv_len = data.draw(st.sampled_from([1, 2, 33, 70])), data.draw(st.integers(1, 140))
    head_dim, value_dim = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 40))
    q, k, v = (
        rng.standard_normal(shape).astype(dtype)
        for shape in (
            (batch, heads, q_len, head_dim),
            (batch, kv_heads, kv_len, head_dim),
            (batch, kv_heads, kv_len, value_dim),
        )
    )
    scores = (batch, heads, q_len, kv_len)
    rules = {}
    if data.draw(st.booleans()):
        rules["visible"] = data.draw(broadcast_arrays(lambda shape: rng.random(shape) < 0.6, scores))
    if data.draw(st.booleans()):

        def with_hidden(shape):
            values = rng.standard_normal(shape)
            return np.where(rng.random(shape) < 0.2, -np.inf, values).astype(dtype)

        rules["bias"] = data.draw(broadcast_arrays(with_hidden, scores))
        rules["bias_before_scale"] = data.draw(st.booleans())
    if data.draw(st.booleans()):
        rules["logit_soft_cap"] = data.draw(st.sampled_from([1.5, 30.0]))
    if data.draw(st.booleans()):
        rules["alibi_slopes"] = rng.random(heads).astype(np.float32)
    if data.draw(st.booleans()):
        rules["sinks"] = rng.standard_normal(heads).astype(np.float32)
    if data.draw(st.booleans()):
        rules["dropout_mask"] = rng.integers(0, 256, (batch, heads, q_len, -(-kv_len // 8)), np.uint8)
        rules["keep_prob"] = 0.5
    causal = data.draw(st.booleans())
    band = None
    if data.draw(st.booleans()):
        rules["prefix_lens"] = rng.integers(0, kv_len + 1, batch)
    elif data.draw(st.booleans()):
        band = (data.draw(st.integers(-20, 60)), data.draw(st.integers(-20, 60)))
    top_left = data.draw(st.booleans())
    if "visible" not in rules and q_len <= kv_len and data.draw(st.booleans()):
        rules["tree"] = np.tril(rng.random((batch, q_len, q_len)) < 0.7) | np.eye(q_len, dtype=bool)
    layout = data.draw(st.sampled_from(["BNSD", "BSND", "BSH", "SBH"]))
    context = ops.Context(
        num_threads=data.draw(st.integers(1, 3)),
        isa=data.draw(st.sampled_from(ops.supported_isas())),
        deterministic=data.draw(st.booleans()),
    )
    largest, sums = (np.full((batch, heads, q_len, 8), np.nan, np.float32) for _ in range(2))
    out, lse = ops.flash_attention(
        *(in_layout(array, layout) for array in (q, k, v)),
        causal=causal,
        softmax_scale=0.3,
        band=band,
        num_heads=heads if layout != "BNSD" else None,
        layout=layout if layout == "SBH" or data.draw(st.booleans()) else None,
        align="first" if top_left else "last",
        softmax_max=largest,
        softmax_sum=sums,
        return_lse=True,
        context=context,
        **rules,
    )
    left, right = band or (None, None)
    rules["top_left"] = top_left
    expected = references.attention(q, k, v, 0.3, left, right if not causal else min(0, right or 0), **rules)
    result = from_layout(out, layout, heads), lse
    check_expected(result, expected, head_dim, dtype)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(largest + np.log(sums), np.repeat(lse[..., None], 8, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ops.supported_isas())
@pytest.mark.parametrize("dtype", sorted(references.DTYPES))
@pytest.mark.parametrize("q_len", [1, 65])
def test_every_level(isa, dtype, q_len, rng):
    q, k, v = (
        rng.standard_normal((1, heads, length, 64)).astype(references.DTYPES[dtype])
        for heads, length in ((9, q_len), (3, 200), (3, 200))
    )
    for threads in (1, 2):
        context = ops.Context(num_threads=threads, isa=isa)
        check(ops.flash_attention(q, k, v, causal=True, return_lse=True, context=context), q, k, v, 0.125, True)


@pytest.mark.parametrize("dtype", sorted(references.DTYPES))
def test_block_size_overrides_the_plan(dtype, rng):
    """The article's block_size=128; any other gives the same within rounding, in deterministic mode too."""
    q, k, v = (rng.standard_normal((1, heads, 300, 40)).astype(references.DTYPES[dtype]) for heads in (4, 2, 2))
    for block_size in (0, 1, 16, 64, 100, 128, 256, 1 << 40):
        for context in (None, ops.Context(deterministic=True)):
            result = ops.flash_attention(q, k, v, causal=True, block_size=block_size, return_lse=True, context=context)
            check(result, q, k, v, 40**-0.5, True)
    with pytest.raises(ValueError, match="block_size is -1, must be >= 0"):
        ops.flash_attention(q, k, v, block_size=-1)


def test_article_names_and_strides(rng):
    """Tensors as projections leave them, [batch, seq, heads, head_dim] seen as [batch, heads, seq, head_dim]."""
    q, k, v = (rng.standard_normal((2, 17, heads, 32), np.float32).transpose(0, 2, 1, 3) for heads in (4, 2, 2))
    scale = 1.0 / (32**0.5)
    out = np.full((2, 17, 4, 32), np.nan, np.float32).transpose(0, 2, 1, 3)
    returned = ops.flash_attention(query=q, key=k, value=v, causal=True, softmax_scale=scale, out=out)
    assert returned is out
    _, lse = ops.flash_attention(q, k, v, causal=True, softmax_scale=scale, return_lse=True)
    check((out, lse), q, k, v, scale, True)
    k.setflags(write=False)
    np.testing.assert_array_equal(ops.flash_attention(q, k, v, True, scale), out)


def test_packed_sequences(rng):
    """Each sequence on its own, empty ones too."""
    q_offsets, kv_offsets = [0, 3, 3, 20], [0, 40, 47, 90]
    q, k, v = (rng.standard_normal((tokens, heads, 16), np.float32) for tokens, heads in ((20, 4), (90, 2), (90, 2)))
    out, lse = ops.flash_attention(
        q, k, v, causal=True, layout="TND", q_offsets=q_offsets, kv_offsets=kv_offsets, return_lse=True
    )
    assert out.shape == q.shape and lse.shape == (20, 4)
    for first_q, last_q, first_kv, last_kv in zip(q_offsets, q_offsets[1:], kv_offsets, kv_offsets[1:]):
        one = [a.transpose(1, 0, 2)[None] for a in (q[first_q:last_q], k[first_kv:last_kv], v[first_kv:last_kv])]
        result = out[first_q:last_q].transpose(1, 0, 2)[None], lse[first_q:last_q].T[None]
        check(result, *one, 0.25, True)
    same = ops.flash_attention(q, q, q, layout="TND", q_offsets=np.array(q_offsets))
    assert same.shape == q.shape


def test_alibi(rng):
    """Counts that are no power of two, and the limit on the length."""
    q, k, v = (rng.standard_normal((2, 50, heads, 32), np.float32) for heads in (6, 3, 3))
    slopes = [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    by_heads = [a.transpose(0, 2, 1, 3) for a in (q, k, v)]
    for causal in (False, True):
        out = ops.alibi_attention(q, k, v, num_heads=6, max_seq_len=50, causal=causal)
        assert out.shape == q.shape
        lse = ops.flash_attention(*by_heads, causal=causal, alibi_slopes=slopes, return_lse=True)[1]
        expected = references.attention(*by_heads, 32**-0.5, None, 0 if causal else None, alibi_slopes=slopes)
        check_expected((out.transpose(0, 2, 1, 3), lse), expected, 32, np.float32)
    with pytest.raises(ValueError, match="q_len is 50, must be at most max_seq_len, 49"):
        ops.alibi_attention(q, k, v, num_heads=6, max_seq_len=49)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_fused_rope(dtype, interleaved, rng):
    """The article's call; the same as rotating first, within the rounding that it saves."""
    q, k, v = (rng.standard_normal((2, heads, 40, 32)).astype(references.DTYPES[dtype]) for heads in (4, 2, 2))
    positions = np.stack([np.arange(40), np.arange(40) * 7 + 3000])
    out = ops.fused_rope_attention(q, k, v, positions=positions, rotary_dim=24, causal=True, interleaved=interleaved)
    rotated_q, rotated_k = (
        references.rotary_embedding(a, positions[:, None], 24, interleaved=interleaved)[0] for a in (q, k)
    )
    expected = references.attention(rotated_q, rotated_k, v, 32**-0.5, None, 0)
    # cos and sin are within 1e-6, so that a value is within 2e-6 of its pair's length.
    length = np.linalg.norm(q.astype(np.float64), axis=-1).max() * np.linalg.norm(k.astype(np.float64), axis=-1).max()
    expected["score_magnitude"] = np.full_like(expected["score_magnitude"], length * 32**-0.5)
    lse = expected["lse"].astype(np.float32)
    check_expected((out, lse), expected, 32, references.DTYPES[dtype])
    same = ops.fused_rope_attention(
        *(in_layout(a, "BSND") for a in (q, k, v)), positions, 24, True, interleaved=interleaved, num_heads=4
    )
    np.testing.assert_array_equal(from_layout(same, "BSND", 4), out)
    with pytest.raises(ValueError, match="positions must be"):
        ops.fused_rope_attention(q, k, v, positions[:, 1:])


def test_keys_and_values_expanded_over_heads_and_batch(rng):
    q = rng.standard_normal((3, 4, 5, 16), np.float32)
    k, v = (np.broadcast_to(rng.standard_normal((1, 1, 9, 16), np.float32), (3, 4, 9, 16)) for _ in range(2))
    check(ops.flash_attention(q, k, v, return_lse=True), q, k, v, 0.25)


def test_masks_align_with_the_end_of_the_keys():
    """Equal scores make the result the mean of the visible values."""

    def mean_of(q_len, values, **options):
        zeros = np.zeros((1, 1, len(values), 1), np.float32)
        v = np.array(values, np.float32).reshape(1, 1, -1, 1)
        return ops.flash_attention(zeros[:, :, :1].repeat(q_len, 2), zeros, v, return_lse=True, **options)

    out, lse = mean_of(2, range(5), causal=True)
    np.testing.assert_allclose(out.ravel(), [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(lse.ravel(), np.log([4, 5]), rtol=1e-6)
    out, lse = mean_of(5, [10, 20], causal=True)
    np.testing.assert_allclose(out.ravel(), [0, 0, 0, 10, 15])
    assert np.all(np.isneginf(lse.ravel()[:3]))
    np.testing.assert_allclose(mean_of(5, range(5), window=(1, 1))[0].ravel(), [0.5, 1, 2, 3, 3.5])
    np.testing.assert_allclose(mean_of(1, range(10), causal=True, window=4)[0].ravel(), [7.5])
    plain = mean_of(1, range(10), causal=True)[0]
    assert mean_of(1, range(10), causal=True, window=10)[0] == plain == mean_of(1, range(10), causal=True, window=11)[0]


def test_empty_tensors():
    ones = np.ones((2, 2, 3, 4), np.float32)
    for axis in (0, 2):
        empty = np.delete(ones, range(ones.shape[axis]), axis)
        other = ones if axis == 2 else empty
        assert ops.flash_attention(empty, other, other).shape == empty.shape
    out, lse = ops.flash_attention(ones, ones[:, :, :0], ones[:, :, :0], return_lse=True)
    assert np.all(out == 0) and np.all(np.isneginf(lse))
    with pytest.raises(ValueError, match="head_dim is 0"):
        ops.flash_attention(ones[..., :0], ones[..., :0], ones)


ONES = np.ones((1, 4, 3, 8), np.float32)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(query=ONES[0]), "give num_heads= for [batch, tokens, heads * dim], or layout="),
        (dict(query=ONES[0, 0]), "query must have 3 or 4 dimensions"),
        (dict(num_heads=4), 'axis 2 must be the heads [batch, tokens, heads, dim]; give layout="BNSD"'),
        (dict(num_heads=5, layout="BNSD"), "num_heads is 5, query has 4 in layout BNSD"),
        (dict(query=ONES[0], layout="BSH"), "layout BSH needs num_heads"),
        (dict(query=ONES[0], num_heads=3), "query is [4, 3, 8] f32, its last dimension must be a multiple of 3 heads"),
        (dict(query=ONES[0], key=ONES[0, ..., :7], num_heads=4), "its last dimension must be a multiple of head_dim, 2"),
        (dict(layout="bsh"), "layout is 'bsh', must be BSH"),
        (dict(query=ONES[0], key=ONES[0], value=ONES[0], layout="TND"), "layout TND needs q_offsets"),
        (dict(q_offsets=[0, 3]), "q_offsets is given, which only layout TND has"),
        (dict(keep_prob=0.5), "keep_prob is 0.5 and needs dropout_mask"),
        (dict(keep_prob=0.0, dropout_mask=np.zeros(1, np.uint8)), "keep_prob is 0"),
        (dict(align="left"), "align is 'left'"),
        (dict(window=(1, 1), band=(1, 1)), "window and band are both given"),
        (dict(logit_soft_cap=-1.0), "logit_soft_cap is -1"),
        (dict(alibi_slopes=[1.0]), "alibi_slopes has 1 entries"),
        (dict(visible=ONES), "visible must be bool"),
        (dict(bias=np.ones((3, 3, 3), np.float32)), "its dimension 0 must be 4 or 1"),
        (dict(tree=np.ones((1, 3, 3), bool), visible=np.ones(3, bool)), "tree and visible are both given"),
        (dict(prefix_lens=[4]), "prefix_lens[0] is 4, must be from 0 to the sequence's 3 keys"),
        (dict(sinks=[0, 0, 0, np.nan]), "sinks[3] is nan"),
        (dict(softmax_max=np.ones((1, 4, 3), np.float32)), "softmax_max must have 4 dimensions, got 3"),
        (dict(value=ONES[0]), "value must have 4 dimensions"),
        (dict(key=ONES[:, :3], value=ONES[:, :3]), "num_q_heads is 4, must be a multiple of num_kv_heads, 3"),
        (dict(key=ONES[..., :7]), "k must be"),
        (dict(value=ONES[:, :, :2]), "v must be"),
        (dict(key=ONES.astype(np.float16)), "k must be f32 or bf16 or s8, got f16"),
        (dict(out=ONES[..., :4].copy()), "out must be"),
        (dict(softmax_scale=float("inf")), "softmax_scale is inf"),
        (dict(window=0, causal=True), "window is 0"),
        (dict(window=3), "window is 3 and needs the causal mask"),
        (dict(window=(-2, 0)), "window_left is -2"),
        (dict(out=ONES), "out must not overlap"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    usable = dict(query=ONES, key=ONES, value=ONES)
    with pytest.raises(ValueError) as error:
        ops.flash_attention(**(usable | arguments))
    assert message in str(error.value)


def test_torch_against_its_own_attention():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 50, 64, dtype=torch.bfloat16) for heads in (4, 2, 2))
    out, lse = ops.flash_attention(q, k, v, causal=True, return_lse=True)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(out.double(), expected, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_torch_masks_against_its_own_attention(kind):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, length, 24) for length in (30, 50, 50))
    mask = torch.rand(2, 1, 30, 50) < 0.7
    if kind == "additive":
        mask = torch.randn(4, 30, 50).masked_fill(torch.rand(4, 30, 50) < 0.3, float("-inf"))
    out = ops.flash_attention(q, k, v, **({"visible": mask} if kind == "boolean" else {"bias": mask}))
    wanted = mask if kind == "boolean" else mask.double()
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=wanted)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)
