# SPDX-License-Identifier: Apache-2.0
"""The measuring itself, with peers and figures made up here."""

import argparse
import os
import pathlib
import sys
import types

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import compare
import measure
import peers

WORKER = """
import json, sys
print("warning " * 50000, file=sys.stderr, flush=True)  # more than a pipe holds
print(json.dumps({"versions": {"fake": "1"}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["task"] in ("die", "decode"):
        sys.exit("out of luck")
    print(json.dumps({"seconds": 2.0, "peak_memory_bytes": 1}), flush=True)
"""
OPTIONS = argparse.Namespace(models={"smollm2": "none"}, threads=1, peers_python=sys.executable, rounds=3)
SIZE = types.SimpleNamespace(weights=100, kv_per_token=1, kv_read=lambda depth: depth, file=100)


@pytest.fixture
def worker(tmp_path, monkeypatch):
    for name in ("fake", "transformers"):
        (tmp_path / f"{name}_worker.py").write_text(WORKER)
    monkeypatch.setattr(peers, "FOLDER", tmp_path)


def test_a_peer_that_says_much_is_heard(worker):
    peer = peers.Peer("fake", sys.executable, "none", 1)
    assert peer.versions == {"fake": "1"}
    assert peer.ask({"task": "wait"})["seconds"] == 2.0
    peer.close()


def test_a_peer_that_dies_says_why(worker):
    peer = peers.Peer("fake", sys.executable, "none", 1)
    for _ in range(2):
        with pytest.raises(peers.PeerFailed, match="out of luck"):
            peer.ask({"task": "die"})
    with pytest.raises(peers.PeerFailed, match="No such file"):
        peers.Peer("fake", "/nonexistent/python", "none", 1)


def test_a_peer_that_dies_leaves_the_rest_of_the_run(worker, monkeypatch, capsys):
    monkeypatch.setattr(measure, "machine_peaks", lambda *_: {"read_bytes_per_second": 1.0})
    monkeypatch.setattr(measure, "run_ours", lambda *_: 5.0)
    bars = {"ours": {"prefill": {}},
            "peer": {"fake": {"prefill": {"task": {"task": "wait"}}, "late": {"task": {"task": "die"}}}}}
    samples, reads, versions = measure.measure(bars, OPTIONS)
    assert samples == {"prefill": [5.0] * 3} and reads == {"prefill": [1.0] * 3} and versions == {}
    assert "without fake on smollm2: out of luck" in capsys.readouterr().err
    row = measure.judge({"ours": "prefill", "peer": "fake.prefill", "bar": 1.0}, samples, reads, SIZE)
    assert row["met"] is None


def test_the_table_comes_without_a_peer_that_dies(worker, monkeypatch, capsys):
    monkeypatch.setenv("PEERS_PYTHON", sys.executable)
    options = argparse.Namespace(model="none", threads=1, prompt_tokens=1, depth=0, generate=1)
    assert compare.transformers_figures(options) is None
    assert "out of the table: out of luck" in capsys.readouterr().err


def test_the_share_of_a_read_is_that_of_the_read_beside_it():
    bar = {"ours": "decode", "bar": 2.0, "peer": "fake.decode", "share_of_read": {"bar": 0.75, "depth": 0}}
    reads = {"decode": [200.0, 1000.0, 1000.0], "other": [200.0] * 10}
    samples = {"decode": [1.5, 7.0, 7.0], "fake.decode": [5.0] * 3}
    row = measure.judge(bar, samples, reads, SIZE)
    assert row["share"] == pytest.approx(0.7) and row["met"] is False
    del samples["fake.decode"]
    assert measure.judge(bar, samples, reads, SIZE)["met"] is None


@pytest.mark.parametrize(
    "arguments, printed",
    [(["--only", "Prefill"], True), (["--only", "Prefill", "--output", "OUT"], False), ([], False)],
)
def test_only_some_rows_are_printed_not_written(arguments, printed, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    (tmp_path / "bench").mkdir(), (tmp_path / "docs").mkdir()
    (tmp_path / "bench/bars.toml").write_text("ours = {}\npeer = {}\nbar = []")
    monkeypatch.setattr(measure, "machine_peaks", lambda *_: {})
    monkeypatch.setattr(measure, "measure", lambda *_: ({}, {}, {}))
    monkeypatch.setattr(measure, "ModelBytes", lambda _: SIZE)
    monkeypatch.setattr(measure, "report", lambda *_: "the report")
    output = str(tmp_path / "report.md")
    arguments = [output if word == "OUT" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", ["measure.py", "--model", "smollm2=m", "--peers-python", "p", "--threads", "3", *arguments])
    monkeypatch.setenv("OPS_TRANSFORMER_NUM_THREADS", "1")
    assert measure.main() == 0
    assert os.environ["OPS_TRANSFORMER_NUM_THREADS"] == "3"  # machine_peaks and base_bench read it
    assert ("the report" in capsys.readouterr().out) == printed
    assert (tmp_path / "docs/performance.md").exists() == (not arguments)


def test_each_model_has_its_own_peer_process(worker, monkeypatch, capsys):
    monkeypatch.setattr(measure, "machine_peaks", lambda *_: {"read_bytes_per_second": 1.0})
    monkeypatch.setattr(measure, "run_ours", lambda spec, model, threads: {"none": 5.0, "other": 7.0}[model])
    options = argparse.Namespace(**{**vars(OPTIONS), "models": {"smollm2": "none", "gemma3": "other"}, "rounds": 1})
    bars = {"ours": {"a": {}, "b": {"model": "gemma3"}},
            "peer": {"fake": {"a": {"task": {"task": "die"}}, "b": {"model": "gemma3", "task": {"task": "wait"}}}}}
    samples, _, versions = measure.measure(bars, options)
    assert samples == {"a": [5.0], "b": [7.0], "fake.b": [2.0]} and versions == {"fake": {"fake": "1"}}
    assert "without fake on smollm2" in capsys.readouterr().err


def test_a_window_bounds_what_local_layers_read(tmp_path):
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3")
    for add, value in ((writer.add_block_count, 12), (writer.add_head_count, 4), (writer.add_head_count_kv, 1),
                       (writer.add_key_length, 32), (writer.add_sliding_window, 100), (writer.add_embedding_length, 64)):
        add(value)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    size = measure.ModelBytes(tmp_path / "m.gguf")
    assert size.kv_per_token == 12 * 2 * 32 * 2
    assert size.kv_read(50) == 50 * size.kv_per_token
    assert size.kv_read(1000) == (2 * 1000 + 10 * 100) * 2 * 32 * 2
