# SPDX-License-Identifier: Apache-2.0
"""Measures every row of bench/bars.toml, ours and the peers' by turns, and writes docs/performance.md.

Run it through scripts/bench.sh. Each round measures everything once; a figure is the median over the rounds.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import platform
import shlex
import statistics
import subprocess
import sys
import time
import tomllib

import ops_transformer
from peers import Peer, PeerFailed

ROOT = pathlib.Path(__file__).resolve().parent.parent
BIN = ROOT / "build/release/bin"
DEFAULT_MODEL = "smollm2"  # of every row of bars.toml that names no other
PROMPT = "What is the capital of France?"
# What our command makes of the prompt, so that the peer reads the same tokens.
TEMPLATED_PROMPT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
                    f"<|im_start|>user\n{PROMPT}<|im_end|>\n<|im_start|>assistant\n")


def run_ours(spec: dict, model: str, threads: int) -> float:
    command = shlex.split(spec["command"].format(model=shlex.quote(model), threads=threads, prompt=PROMPT))
    command[0] = str(BIN / command[0])
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    wall = time.perf_counter() - start
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr}")
    if spec.get("wall"):
        return wall
    value = json.loads(done.stdout)
    for key in spec["member"].split("."):
        value = value[int(key) if isinstance(value, list) else key]
    return float(value)


def model_of(spec: dict) -> str:
    return spec.get("model", DEFAULT_MODEL)


def run_peer(peer: Peer, spec: dict) -> float:
    request = {key: value.format(templated_prompt=TEMPLATED_PROMPT) if isinstance(value, str) else value
               for key, value in spec["task"].items()}
    answer = peer.ask(request)
    if "value" in answer:
        return answer["value"]
    return spec["tokens"] / answer["seconds"] if "tokens" in spec else answer["seconds"]


def machine_peaks(*arguments: str) -> dict:
    return json.loads(subprocess.run([BIN / "machine_peaks", *arguments], capture_output=True, check=True).stdout)


class ModelBytes:
    """What decoding one token must read: every matrix once (a tied embedding as the output matrix), and the cache."""

    def __init__(self, model: str):
        import gguf
        reader = gguf.GGUFReader(model)
        architecture = reader.fields["general.architecture"].contents()

        def field(name: str, default: int = 0) -> int:
            key = f"{architecture}.{name}"
            return int(reader.fields[key].contents()) if key in reader.fields else default

        matrices = [t for t in reader.tensors if len(t.shape) == 2]
        tied = not any(t.name == "output.weight" for t in matrices)
        self.file = os.path.getsize(model)
        self.weights = sum(int(t.n_bytes) for t in matrices if tied or t.name != "token_embd.weight")
        head_dim = field("attention.key_length", field("embedding_length") // field("attention.head_count"))
        values_per_token = 2 * field("attention.head_count_kv") * head_dim  # of one layer
        self.kv_per_layer, self.num_layers = 2 * values_per_token, field("block_count")  # bf16
        self.window = field("attention.sliding_window")
        global_every = field("attention.sliding_window_pattern", 6) if architecture == "gemma3" else 0
        self.global_layers = self.num_layers // global_every if global_every else 0 if self.window else self.num_layers

    @property
    def kv_per_token(self) -> int:
        return self.num_layers * self.kv_per_layer

    def kv_read(self, depth: int) -> int:
        """What a token reads of the cache behind `depth` others."""
        local = (self.num_layers - self.global_layers) * min(depth, self.window or depth)
        return (self.global_layers * depth + local) * self.kv_per_layer


def measure(bars: dict, options) -> tuple[dict, dict, dict]:
    """Samples by name, the pure read beside each of ours, and versions by peer; a peer that fails has no samples."""
    peers, samples, reads = {}, collections.defaultdict(list), collections.defaultdict(list)

    def drop(key: tuple[str, str], failure: PeerFailed) -> None:
        print(f"without {' on '.join(key)}: {failure}", file=sys.stderr)
        peers.pop(key, None)
        for name, spec in bars["peer"][key[0]].items():
            if model_of(spec) == key[1]:
                samples.pop(f"{key[0]}.{name}", None)

    def ask(peer_name: str, name: str) -> None:
        spec = bars["peer"][peer_name].get(name)
        key = (peer_name, model_of(spec or {}))
        if spec and key in peers:
            try:
                samples[f"{peer_name}.{name}"].append(run_peer(peers[key], spec))
            except PeerFailed as failure:
                drop(key, failure)

    # One process for each model that a peer runs.
    for key in sorted({(peer_name, model_of(spec)) for peer_name, tasks in bars["peer"].items() for spec in tasks.values()}):
        try:
            peers[key] = Peer(key[0], options.peers_python, options.models[key[1]], options.threads)
        except PeerFailed as failure:
            drop(key, failure)
    for round_number in range(options.rounds):
        print(f"round {round_number + 1} of {options.rounds}", file=sys.stderr)
        for name, spec in bars["ours"].items():
            reads[name].append(machine_peaks("read")["read_bytes_per_second"])
            samples[name].append(run_ours(spec, options.models[model_of(spec)], options.threads))
            for peer_name in bars["peer"]:
                ask(peer_name, name)
        for peer_name, tasks in bars["peer"].items():
            for name in tasks:
                if name not in bars["ours"]:
                    ask(peer_name, name)
    for peer in peers.values():
        peer.close()
    return samples, reads, {peer_name: peer.versions for (peer_name, _), peer in peers.items()}


def judge(bar: dict, samples: dict, reads: dict, size: ModelBytes) -> dict:
    """The row's own figures and whether it is met; met is None where the peer is not here."""
    figures = {name: statistics.median(values) for name, values in samples.items()}
    ours = figures.get(bar.get("ours"))
    peer = figures.get(bar.get("peer"))
    if "peer_alone" in bar:
        value = figures.get(bar["peer_alone"])
    elif "peer" in bar:
        value = ours / peer if peer else None
    elif "limit" in bar:
        peer = bar["limit"]["file"] * size.file + bar["limit"]["kv_tokens"] * size.kv_per_token
        value = ours / peer
    else:
        value = ours
    lower = bar.get("better") == "lower"
    met = None if value is None else (value <= bar["bar"] if lower else value >= bar["bar"])
    share = None
    if "share_of_read" in bar:
        token = size.weights + size.kv_read(bar["share_of_read"]["depth"])
        # Each against the read just before it: the machine's memory changes its speed within a run.
        share = statistics.median(rate * token / read for rate, read in zip(samples[bar["ours"]], reads[bar["ours"]]))
        if share >= bar["share_of_read"]["bar"]:
            met = True
    return {"ours": ours, "peer": peer, "value": value, "share": share, "met": met}


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def report(bars: dict, samples: dict, reads: dict, versions: dict, peaks: dict, sizes: dict, options) -> str:
    all_reads = [read for beside in reads.values() for read in beside] or [peaks["read_bytes_per_second"]]
    rows = []
    for bar in bars["bar"]:
        row = judge(bar, samples, reads, sizes[model_of(bars["ours"].get(bar.get("ours"), {}))])
        sign = "≤" if bar.get("better") == "lower" else "≥"
        share = f"{row['share']:.0%}" if row["share"] is not None else ""
        verdict = {True: "yes", False: "**no**", None: "not measured"}[row["met"]]
        ours = f"{number(row['ours'])} {bar['unit']}" if row["ours"] is not None else "–"
        rows.append(f"| {bar['what']} | {ours} | {number(row['peer'])} | "
                    f"{number(row['value'])} | {sign} {bar['bar']} | {share} | {verdict} |")
    cpu = next((line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.machine())
    peer_versions = sorted({f"{name} {version}" for each in versions.values() for name, version in each.items()})
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    compiler = subprocess.run(["c++", "--version"], capture_output=True, text=True).stdout.splitlines()[0]
    giga = lambda name: f"{peaks[name] / 1e9:,.0f}" if name in peaks else "–"
    lines = [
        "<!-- SPDX-License-Identifier: Apache-2.0 -->",
        "# Performance",
        "",
        "Written by `scripts/bench.sh`, which measures everything below in one run: ours and the peers by turns,",
        f"median of {options.rounds} rounds. The rows stand in `bench/bars.toml`.",
        "",
        f"- {datetime.date.today():%d %B %Y}, commit {commit.strip()}, {compiler}",
        f"- CPU: {cpu}, {options.threads} threads",
        *(f"- Model: {os.path.basename(options.models[name])} ({size.file / 1e6:.0f} MB; decoding reads "
          f"{size.weights / 1e6:.0f} MB of weights and {size.kv_per_token / 1e3:.0f} kB of cache for each token before"
          f"{f', {size.window} of them in local layers' if size.window else ''})" for name, size in sizes.items()),
        f"- Peers: {', '.join(peer_versions) or 'none installed'}",
        f"- Machine's peaks, measured beside: f32 {giga('f32_operations_per_second')}, bf16 "
        f"{giga('bf16_operations_per_second')} GFLOP/s, int8 {giga('int8_operations_per_second')} GOP/s (register-blocked"
        f" loops), pure read {statistics.median(all_reads) / 1e9:.1f} GB/s ({min(all_reads) / 1e9:.1f} to "
        f"{max(all_reads) / 1e9:.1f} over the run)",
        "",
        "| What | Ours | Peer or limit | Ratio or value | Bar | Share of pure read | Met |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *rows,
        "",
        "Decode is also met where weights and cache are read at 75 % of the pure read timed beside it or more.",
        "",
    ]
    return "\n".join(lines)


def named_file(argument: str) -> tuple[str, str]:
    name, separator, file = argument.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"'{argument}' must be NAME=FILE")
    return name, file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", dest="models", action="append", required=True, metavar="NAME=FILE", type=named_file,
                        help="a model that rows of bars.toml name, once for each")
    parser.add_argument("--threads", type=int, default=ops_transformer.Context().num_threads)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers-python", required=True, help="interpreter that has the peers installed")
    parser.add_argument("--only", nargs="*", default=[], help="measure the bars whose `what` holds one of these words")
    parser.add_argument("--output", help="file of the report, - to print it (default: docs/performance.md; - with --only)")
    options = parser.parse_args()
    options.models = dict(options.models)
    os.environ["OPS_TRANSFORMER_NUM_THREADS"] = str(options.threads)  # for those that take no option: peaks, base_bench
    with open(ROOT / "bench/bars.toml", "rb") as file:
        bars = tomllib.load(file)
    if options.only:
        bars["bar"] = [bar for bar in bars["bar"] if any(word in bar["what"] for word in options.only)]
        bars["ours"] = {name: spec for name, spec in bars["ours"].items()
                        if any(bar.get("ours") == name for bar in bars["bar"])}
        used = {bar.get("peer", bar.get("peer_alone")) for bar in bars["bar"]}
        bars["peer"] = {peer: kept for peer, tasks in bars["peer"].items()
                        if (kept := {name: spec for name, spec in tasks.items() if f"{peer}.{name}" in used})}
    used_models = {model_of(spec) for tasks in (bars["ours"], *bars["peer"].values()) for spec in tasks.values()}
    if missing := used_models - options.models.keys():
        parser.error(f"no --model for {', '.join(sorted(missing))}")
    peaks = machine_peaks()
    samples, reads, versions = measure(bars, options)
    peaks = {name: max(value, peaks[name]) for name, value in machine_peaks().items()}  # before and after
    sizes = {name: ModelBytes(file) for name, file in options.models.items()}
    text = report(bars, samples, reads, versions, peaks, sizes, options)
    output = options.output or ("-" if options.only else ROOT / "docs/performance.md")
    if output == "-":
        print(text)
    else:
        pathlib.Path(output).write_text(text)
        print(f"wrote {output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
