# SPDX-License-Identifier: Apache-2.0
"""Custom ops under torch.compile and opcheck, and scaled_dot_product_attention beside PyTorch's own."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ops_transformer as ops

torch = pytest.importorskip("torch")
from ops_transformer import torch as ops_torch

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two pools on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tensors(seed, dtype, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def compare(q, k, v, **options):
    """Ours against PyTorch's in float64, within what rounding inputs and probabilities to the dtype allows."""
    exact = dict(options)
    if exact.get("attn_mask") is not None and exact["attn_mask"].dtype != torch.bool:
        exact["attn_mask"] = exact["attn_mask"].double()  # another type than the query's is misread
    expected = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), **exact)
    ours = ops_torch.scaled_dot_product_attention(q, k, v, **options)
    assert ours.shape == expected.shape and ours.dtype == q.dtype
    scale = v.double().abs().amax() if v.numel() else 1.0
    assert torch.all((ours.double() - expected).abs() <= TOLERANCE[q.dtype] * scale)


@given(
    dtype=st.sampled_from(list(TOLERANCE)),
    leading=st.sampled_from([None, (), (1,), (3,), (2, 2)]),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (4, 1)]),
    lengths=st.tuples(st.integers(1, 40), st.integers(1, 70)),
    dims=st.sampled_from([(16, 16), (64, 64), (33, 8)]),
    mask=st.sampled_from([None, "causal", "boolean", "row", "additive", "by head"]),
    scale=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_is_the_original(dtype, leading, heads, lengths, dims, mask, scale, seed):
    (q_len, kv_len), (head_dim, value_dim) = lengths, dims
    q_lead, kv_lead = ((), ()) if leading is None else ((*leading, heads[0]), (*leading, heads[1]))
    q, k, v = tensors(
        seed, dtype, (*q_lead, q_len, head_dim), (*kv_lead, kv_len, head_dim), (*kv_lead, kv_len, value_dim)
    )
    random = torch.Generator().manual_seed(seed)
    options = {"scale": scale, "enable_gqa": leading is not None and heads[0] != heads[1]}
    if mask == "causal":
        options["is_causal"] = True
    elif mask in ("boolean", "row"):
        options["attn_mask"] = torch.rand((1 if mask == "row" else q_len, kv_len), generator=random) > 0.4
    elif mask is not None:
        shape = (*q_lead[-1:], q_len, kv_len) if mask == "by head" else (q_len, kv_len)
        options["attn_mask"] = torch.randn(shape, generator=random)
    compare(q, k, v, **options)


def test_rows_without_keys_are_zero():
    q, k, v = tensors(1, torch.float32, (1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    for attn_mask in (mask, torch.where(mask, 0.0, -torch.inf)):
        compare(q, k, v, attn_mask=attn_mask)
        assert torch.all(ops_torch.scaled_dot_product_attention(q, k, v, attn_mask)[:, :, 1] == 0)


def test_heads_and_batches_broadcast():
    q, k, v = tensors(2, torch.float32, (2, 4, 5, 8), (1, 1, 7, 8), (2, 4, 7, 8))
    compare(q, k, v)
    compare(q[:, :1], k.expand(1, 4, 7, 8), v)
    compare(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2), is_causal=True)


def test_what_the_original_refuses():
    q, k, v = tensors(3, torch.float32, (1, 4, 5, 8), (1, 2, 5, 8), (1, 2, 5, 8))
    with pytest.raises(RuntimeError, match="4, 2 and 2 heads"):
        ops_torch.scaled_dot_product_attention(q, k, v)
    with pytest.raises(RuntimeError, match="attn_mask and is_causal"):
        ops_torch.scaled_dot_product_attention(q, q, q, torch.ones(5, 5, dtype=torch.bool), is_causal=True)
    with pytest.raises(RuntimeError, match="2 dimensions"):
        ops_torch.scaled_dot_product_attention(q[0, 0, 0], k, v)


def test_what_is_not_there_is_said():
    q, k, v = tensors(3, torch.float32, *[(1, 4, 5, 8)] * 3)
    with pytest.raises(ValueError, match="dropout_p is 1.5"):
        ops_torch.scaled_dot_product_attention(q, k, v, dropout_p=1.5)
    with pytest.raises(ValueError, match="element type"):
        ops_torch.scaled_dot_product_attention(q.double(), k.double(), v.double())
    q.requires_grad_()
    with pytest.raises(RuntimeError, match="through ops_transformer.flash_attention"):
        ops_torch.scaled_dot_product_attention(q, k, v).sum().backward()


def test_dropout():
    """Values are one-hot, so that the result is the weights themselves."""
    q, k = tensors(6, torch.float32, (2, 3, 50, 16), (2, 3, 60, 16))
    v = torch.eye(60).expand(2, 3, 60, 60)
    weights = ops_torch.scaled_dot_product_attention(q, k, v)
    torch.manual_seed(5)
    first, second = (ops_torch.scaled_dot_product_attention(q, k, v, dropout_p=0.3) for _ in range(2))
    torch.manual_seed(5)
    assert torch.equal(ops_torch.scaled_dot_product_attention(q, k, v, dropout_p=0.3), first)
    assert not torch.equal(first, second)
    kept = first != 0
    torch.testing.assert_close(first[kept], weights[kept] / 0.7)
    assert abs(kept.float().mean() - 0.7) < 5 * (0.21 / kept.numel()) ** 0.5
    assert torch.all(ops_torch.scaled_dot_product_attention(q, k, v, dropout_p=1.0) == 0)


def cases():
    q, k, v = tensors(4, torch.float32, (2, 4, 6, 16), (2, 2, 9, 16), (2, 2, 9, 8))
    positions = torch.arange(9)
    return [
        (ops_torch.flash_attention, (q, k, v), {"causal": True, "window_left": 3, "sinks": torch.randn(4)}),
        (ops_torch.flash_attention, (q.bfloat16(), k.bfloat16(), v.bfloat16()), {"visible": torch.rand(6, 9) > 0.3}),
        (ops_torch.flash_attention, (q, k, v), {"dropout_seed": torch.tensor(7), "keep_prob": 0.5}),
        (ops_torch.alibi_attention, (q, k, v), {"causal": True}),
        (ops_torch.fused_rope_attention, (q, k, v, positions), {"rotary_dim": 8, "causal": True}),
        (ops_torch.rotary_embedding, (q, torch.arange(6)), {"theta": 5e5}),
        (ops_torch.rotary_embedding, (q.transpose(1, 2).contiguous().transpose(1, 2), torch.arange(6)), {}),
        (ops_torch.fused_rmsnorm, (q, torch.randn(16)), {}),
        (ops_torch.fused_rmsnorm, (q[:, ::2], torch.randn(16)), {"eps": 1e-5}),
    ]


@pytest.mark.parametrize("case", range(len(cases())))
def test_opcheck(case):
    op, arguments, options = cases()[case]
    torch.library.opcheck(op, arguments, options)


def test_are_the_operators():
    """The ops add nothing: the same bits as the package's functions."""
    q, k, v = tensors(5, torch.float32, (2, 4, 6, 16), (2, 2, 9, 16), (2, 2, 9, 8))
    for name, extra in (("flash_attention", ()), ("alibi_attention", ()), ("fused_rope_attention", (torch.arange(9),))):
        ours = getattr(torch.ops.ops_transformer, name)(q, k, v, *extra)
        positions = {"positions": extra[0]} if extra else {}
        assert torch.equal(ours, getattr(ops, name)(q, k, v, **positions)), name
    assert torch.equal(ops_torch.fused_rmsnorm(q, torch.ones(16)), ops.fused_rmsnorm(q, torch.ones(16)))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(32, 96)
        self.norm = torch.nn.Parameter(torch.randn(32))

    def forward(self, x):
        x = ops_torch.fused_rmsnorm(x, self.norm)
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        q = ops_torch.rotary_embedding(q, torch.arange(x.shape[1]))
        return ops_torch.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_traces_the_ops(dynamic):
    """One graph, no break, with the ops in it; any backend, so that no compiler is needed."""
    torch.manual_seed(1)
    graphs = []

    def backend(module, inputs):
        graphs.append([str(node.target) for node in module.graph.nodes])
        return module.forward

    with torch.inference_mode():
        block = Block().eval()
        x = torch.randn(2, 7, 32)
        compiled = torch.compile(block, fullgraph=True, dynamic=dynamic, backend=backend)
        torch.testing.assert_close(compiled(x), block(x))
        assert sum("ops_transformer" in target for target in graphs[0]) == 3, graphs


def test_the_package_does_not_import_it():
    code = "import sys, ops_transformer; print('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_numpy_stays_numpy():
    assert type(ops.flash_attention(*[np.ones((1, 1, 2, 4), np.float32)] * 3)) is np.ndarray
