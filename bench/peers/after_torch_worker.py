# SPDX-License-Identifier: Apache-2.0
"""Our thread pool right after a PyTorch operator, whose own threads may still spin on the cores that ours need."""

import argparse
import statistics

import ops_transformer
import torch
from worker import seconds, serve


def two_threads_to_one() -> dict:
    left, right = torch.randn(256, 256), torch.randn(256, 256)
    x, weight = torch.randn(512, 1024), torch.ones(1024)
    out = torch.empty_like(x)
    contexts = {1: ops_transformer.Context(num_threads=1), 2: ops_transformer.Context(num_threads=2)}
    times = {1: [], 2: []}
    for _ in range(100):
        for threads, context in contexts.items():
            torch.mm(left, right)
            work = lambda: ops_transformer.fused_rmsnorm(x, weight, out=out, context=context)
            times[threads].append(seconds(work))
    return {"value": statistics.median(times[2]) / statistics.median(times[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    serve({"torch": torch.__version__}, {"two_threads_to_one": two_threads_to_one})


if __name__ == "__main__":
    main()
