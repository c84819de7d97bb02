# SPDX-License-Identifier: Apache-2.0
"""Threads, the GIL, fork and other libraries in the same process."""

import importlib.util
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

import ops_transformer as ops

RNG = np.random.default_rng(3)
X = RNG.standard_normal((4096, 256), np.float32)
WEIGHT = np.ones(256, np.float32)
PACKED = ops.PackedWeights(RNG.standard_normal((320, 256), np.float32))
QKV = RNG.standard_normal((3, 2, 4, 65, 64), np.float32)


def every_operator(context):
    return [
        ops.fused_rmsnorm(X, WEIGHT, context=context),
        ops.rotary_embedding(X.reshape(4096, 4, 64), np.arange(4096), context=context),
        ops.linear(X, PACKED, context=context),
        ops.flash_attention(*QKV, causal=True, context=context),
    ]


def num_threads_of_process():
    return len(os.listdir("/proc/self/task"))


def run_fresh(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_one_thread_starts_no_other():
    context = ops.Context(num_threads=1)
    before = num_threads_of_process()
    for _ in range(25):
        every_operator(context)
    assert num_threads_of_process() == before


def test_isa_is_capped_by_the_environment():
    code = "import ops_transformer as o; print(*o.supported_isas())"
    environment = os.environ | {"OPS_TRANSFORMER_ISA": "generic"}
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True).stdout == b"generic\n"


def test_contexts_are_checked():
    for arguments, message in [
        (dict(num_threads=0), "num_threads is 0, must be from 1 to 1024"),
        (dict(isa="sse9"), "isa is 'sse9'"),
    ]:
        with pytest.raises(ValueError, match=message):
            ops.Context(**arguments)
    context = ops.Context(num_threads=3, deterministic=True, isa="generic")
    assert (context.num_threads, context.deterministic, context.isa) == (3, True, "generic")


def child(expected, context, connection):
    results = every_operator(context) + every_operator(ops.Context(num_threads=4)) + every_operator(None)
    connection.send([np.array_equal(result, expected[i % len(expected)]) for i, result in enumerate(results)])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_computes_the_same():
    """With the parent's context, one of its own and the default one."""
    context = ops.Context(num_threads=4)
    expected = every_operator(context)
    every_operator(None)
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=child, args=(expected, context, theirs))
    process.start()
    try:
        assert ours.poll(30), "the child hangs"
        assert all(ours.recv())
        process.join(30)
        assert process.exitcode == 0
    finally:
        process.kill()
    for result, same in zip(every_operator(context), expected):
        np.testing.assert_array_equal(result, same)


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_deterministic_bits_for_any_number_of_threads(kind):
    """Sums of 4097 terms."""
    dtype = np.float32 if kind == "f32" else ml_dtypes.bfloat16
    x, weight = RNG.standard_normal((3, 4097)).astype(dtype), RNG.standard_normal((33, 4097)).astype(dtype)
    q, k, v = (RNG.standard_normal((1, 2, length, 64)).astype(dtype) for length in (1, 4097, 4097))
    results = []
    for threads in (1, 2, 3, 8):
        context = ops.Context(num_threads=threads, deterministic=True)
        results.append(
            [
                ops.fused_rmsnorm(x, weight[0], context=context),
                ops.linear(x, ops.PackedWeights(weight), context=context),
                ops.flash_attention(q, k, v, context=context),
            ]
        )
    for other in results[1:]:
        for first, same in zip(results[0], other):
            np.testing.assert_array_equal(same, first)


def test_other_python_threads_run_meanwhile():
    """While one call computes, the interpreter is free: a counting thread gets on."""
    x = np.ones((1 << 17, 256), np.float32)
    out = np.empty_like(x)
    context = ops.Context(num_threads=1)
    inside = threading.Event()
    finished = threading.Event()

    def compute():
        inside.set()
        for _ in range(3):
            ops.fused_rmsnorm(x, WEIGHT, out=out, context=context)
        finished.set()

    # Without a switch while it holds the GIL, a call would keep this thread from counting at all.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        inside.wait()
        count = 0
        while not finished.is_set():
            count += 1
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert count > 20


def test_calls_from_two_threads_share_one_context():
    expected = ops.fused_rmsnorm(X, WEIGHT)
    failures = []

    def work():
        for _ in range(30):
            if not np.array_equal(ops.fused_rmsnorm(X, WEIGHT), expected):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in threads)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("order", [("torch", "ops_transformer"), ("ops_transformer", "torch")])
def test_imported_before_and_after_torch(order):
    code = f"""
import {order[0]}, {order[1]}
import os, torch, ops_transformer as ops
x, w = torch.randn(512, 256), torch.ones(256)
x = x @ torch.eye(256)  # starts torch's own threads
alone = ops.Context(num_threads=1)
before = len(os.listdir("/proc/self/task"))
for _ in range(20):
    ops.fused_rmsnorm(x @ torch.eye(256), w, context=alone)
assert len(os.listdir("/proc/self/task")) == before
for _ in range(20):
    y = ops.fused_rmsnorm(x @ torch.eye(256), w)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (256,), w, 1e-5))
print("done")
"""
    assert run_fresh(code) == "done\n"
