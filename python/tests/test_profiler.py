# SPDX-License-Identifier: Apache-2.0
import gc
import json

import numpy as np

import ops_transformer as ops


def test_calls_are_recorded_while_it_is_set(tmp_path):
    x, weight = np.ones((16, 64), np.float32), np.ones(64, np.float32)
    context, profiler = ops.Context(num_threads=1), ops.Profiler()
    ops.fused_rmsnorm(x, weight, context=context)
    assert context.profiler is None and profiler.totals() == []
    context.profiler = profiler
    for _ in range(3):
        ops.fused_rmsnorm(x, weight, context=context)
    context.profiler = None
    ops.fused_rmsnorm(x, weight, context=context)
    (total,) = profiler.totals()
    assert total.op == "rms_norm" and total.calls == 3 and total.bytes > 0 and total.seconds >= total.self_seconds > 0
    assert "rms_norm" in profiler.table()
    profiler.write_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == json.loads(profiler.trace_json())
    profiler.clear()
    assert profiler.totals() == []


def test_a_context_keeps_its_profiler_alive():
    context = ops.Context(num_threads=1)
    context.profiler = ops.Profiler()
    gc.collect()
    ops.fused_rmsnorm(np.ones((4, 8), np.float32), np.ones(8, np.float32), context=context)
    assert context.profiler.totals()[0].calls == 1
