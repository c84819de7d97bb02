# SPDX-License-Identifier: Apache-2.0
"""A peer in its own process: reads one JSON request a line, answers one JSON line.

    {"task": "prefill", "tokens": 512}  ->  {"seconds": 1.03}

The first line it prints, unasked, tells the versions. Everything the peer itself prints goes to standard error.
"""

import json
import os
import sys
import time


def prompt_tokens(count: int, vocab_size: int) -> list[int]:
    """The same ids for every peer; spread over the vocabulary, special tokens (the lowest ids) left out."""
    return [100 + (i * 7919) % (vocab_size - 200) for i in range(count)]


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def serve(versions: dict, tasks: dict) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps({"versions": versions}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = tasks[request.pop("task")](**request)
        print(json.dumps(answer), file=answers, flush=True)
