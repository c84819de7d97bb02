# SPDX-License-Identifier: Apache-2.0
"""Before and after: the same kernels unfused and fused, and Transformers beside them where it is installed.

Unfused: separate norm, rotation and projections, the full score matrix, with a KV cache; same model, same threads.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

import ops_transformer
from peers import Peer, PeerFailed

COMMAND = pathlib.Path(__file__).resolve().parent.parent / "build/release/bin/ops-transformer"


def transformers_figures(options) -> dict | None:
    """None, and a line on standard error, where they can't be measured here."""
    wanted = os.environ.get("PEERS_PYTHON")
    for python in [wanted] if wanted else [".peers/bin/python", sys.executable, "python3"]:
        try:
            peer = Peer("transformers", python, options.model, options.threads)
        except PeerFailed:
            continue
        try:
            for _ in range(2):  # the first round warms up
                prefill = peer.ask({"task": "prefill", "tokens": options.prompt_tokens})
                decode = peer.ask({"task": "decode", "depth": options.depth, "tokens": options.generate})
        except PeerFailed as failure:
            print(f"Transformers stays out of the table: {failure}", file=sys.stderr)
            return None
        peer.close()
        return {"name": "Transformers " + peer.versions["transformers"], "prefill": prefill["seconds"],
                "decode": decode["seconds"] / options.generate, "memory": decode["peak_memory_bytes"]}
    print("PyTorch and Transformers are not installed: they stay out of the table.", file=sys.stderr)
    return None


def our_figures(options) -> list[dict]:
    command = [COMMAND, "bench", "--compare", "--json", "--model", options.model, "--threads", options.threads,
               "--prompt-tokens", options.prompt_tokens, "--generate", options.generate, "--depth", options.depth,
               "--repeat", 3]
    measured = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True).stdout)
    return [{"name": name, "prefill": options.prompt_tokens / measured[name]["prefill_tokens_per_second"],
             "decode": 1 / measured[name]["decode_tokens_per_second"], "memory": measured[name]["peak_memory_bytes"]}
            for name in ("unfused", "fused")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=ops_transformer.Context().num_threads)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--depth", type=int, default=512)
    options = parser.parse_args()
    columns = our_figures(options)
    peer = transformers_figures(options)
    if peer:
        columns.insert(0, peer)
    fused = columns[-1]
    rows = [(f"prefill of {options.prompt_tokens} tokens, ms", "prefill", 1e3),
            (f"a token at depth {options.depth}, ms", "decode", 1e3), ("peak memory, MB", "memory", 1e-6)]
    print(f"{'':<28}" + "".join(f"{column['name']:>22}" for column in columns))
    for title, key, unit in rows:
        print(f"{title:<28}" + "".join(f"{column[key] * unit:>22.2f}" for column in columns))
    for title, key in (("speed-up of fused, prefill", "prefill"), ("speed-up of fused, decode", "decode"),
                       ("memory against fused", "memory")):
        print(f"{title:<28}" + "".join(f"{column[key] / fused[key]:>21.2f}x" for column in columns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
