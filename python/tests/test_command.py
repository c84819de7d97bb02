# SPDX-License-Identifier: Apache-2.0
"""The command, run as a user runs it: what it prints, its JSON, its exit codes, its errors."""
import json
import os
import subprocess

import pytest

from command import command_path, run_command

USAGE, BAD_FILE = 2, 3
QUESTION = "Why is the sky blue?"


def run(*arguments, stdin="", env=None):
    return run_command(*arguments, input=stdin, env={**os.environ, **(env or {})})


def run_json(*arguments, **kwargs):
    done = run(*arguments, "--json", **kwargs)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def generate(model_path, *arguments, **kwargs):
    return run_json("generate", "--model", model_path, *arguments, **kwargs)


@pytest.mark.parametrize("arguments", [[], ["generate"], ["chat"], ["inspect"], ["bench"], ["perplexity"], ["explain"]])
def test_help(arguments):
    done = run(*arguments, "--help")
    assert done.returncode == 0 and "Usage" in done.stdout and not done.stderr


def test_version():
    assert run("--version").stdout.strip().count(".") == 2


@pytest.mark.parametrize("arguments", [
    [], ["nonsense"], ["generate"], ["generate", "--prompt", "x"], ["generate", "--model", "/nowhere.gguf", "--prompt", "x"],
    ["explain", "linear", "--shape", "1,2"], ["explain", "nonsense", "--shape", "1"], ["explain", "linear", "--shape", "0,1,1"],
    ["explain", "linear", "--shape", "1,16,32", "--weights", "q9"], ["explain", "linear", "--shape", "1,16,32", "--isa", "mmx"],
    ["explain", "linear", "--shape", "1,16,33", "--weights", "q4_0"], ["explain", "linear", "--shape", "1,16,32", "--dtype", "i64"],
    ["explain", "flash_attention", "--shape", "9,3,769"], ["explain", "flash_attention", "--shape", "2147483648,1,64"],
    ["generate", "--model", "/etc/passwd", "--prompt", "x", "--system", "y"]])
def test_wrong_usage(arguments):
    done = run(*arguments)
    assert done.returncode == USAGE and done.stderr and not done.stdout


def test_unusable_file(tmp_path, model_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    cut = tmp_path / "cut.gguf"
    with open(model_path, "rb") as whole:
        cut.write_bytes(whole.read(90_000_000))
    for path, word in [(bad, "GGUF"), (cut, "90000000")]:
        for command in (["generate", "--prompt", "x"], ["inspect"], ["bench"]):
            done = run(command[0], "--model", path, *command[1:])
            assert done.returncode == BAD_FILE, (done.returncode, done.stderr)
            assert word in done.stderr


def test_unknown_level_and_threads(model_path):
    done = run("bench", "--model", model_path, env={"OPS_TRANSFORMER_ISA": "mmx"})
    assert done.returncode == USAGE and "mmx" in done.stderr and "avx2" in done.stderr
    done = run("bench", "--model", model_path, "--threads", 0)
    assert done.returncode == USAGE and "num_threads is 0" in done.stderr


def test_generate_streams_and_reports(model_path):
    done = run("generate", "--model", model_path, "--chat", "--prompt", QUESTION, "--max-tokens", 12)
    assert done.returncode == 0 and len(done.stdout.split()) >= 6 and "tokens/s" in done.stderr
    answer = generate(model_path, "--chat", "--prompt", QUESTION, "--max-tokens", 12)["answers"][0]
    assert answer["text"] == done.stdout.rstrip("\n")
    assert answer["finish"] == "length" and len(answer["tokens"]) == 12


def test_generate_is_deterministic(model_path):
    texts = {generate(model_path, "--prompt", "Once upon a time", "--max-tokens", 24, "--deterministic", "--threads", threads)
             ["answers"][0]["text"] for threads in (1, 2, 3)}
    assert len(texts) == 1


def test_seed_repeats(model_path):
    options = ["--prompt", "Once upon a time", "--max-tokens", 16, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95]
    first, again, other = (generate(model_path, *options, "--seed", seed)["answers"][0]["tokens"] for seed in (1, 1, 2))
    assert first == again != other


def test_stop_string_and_ignore_eos(model_path):
    plain = generate(model_path, "--chat", "--prompt", QUESTION, "--max-tokens", 20)["answers"][0]["text"]
    stop = plain[10:16]
    stopped = generate(model_path, "--chat", "--prompt", QUESTION, "--max-tokens", 20, "--stop", stop)["answers"][0]
    assert stopped["finish"] == "stop" and stopped["text"] == plain[:plain.index(stop)]
    endless = generate(model_path, "--prompt", "<|im_end|>", "--max-tokens", 40, "--ignore-eos")["answers"][0]
    assert len(endless["tokens"]) == 40


def test_batch_equals_single(model_path):
    prompts = ["The capital of", QUESTION, "1, 2, 3,"]
    options = ["--max-tokens", 10, "--deterministic"]
    batch = generate(model_path, *(word for prompt in prompts for word in ("--prompt", prompt)), *options)["answers"]
    for prompt, answer in zip(prompts, batch, strict=True):
        assert answer["tokens"] == generate(model_path, "--prompt", prompt, *options)["answers"][0]["tokens"]


def test_prompt_from_standard_input(model_path):
    answer = generate(model_path, "--prompt-file", "-", "--max-tokens", 4, stdin="The capital of")["answers"][0]
    assert answer == generate(model_path, "--prompt", "The capital of", "--max-tokens", 4)["answers"][0]


def test_context_is_a_limit(model_path):
    done = run("generate", "--model", model_path, "--prompt", "word " * 80, "--context", 64)
    assert done.returncode == USAGE and "the context holds 64" in done.stderr
    answer = generate(model_path, "--prompt", "one two three", "--context", 16, "--max-tokens", 100, "--ignore-eos")["answers"][0]
    assert answer["finish"] == "length" and answer["prompt_tokens"] + len(answer["tokens"]) == 16


@pytest.mark.parametrize(("option", "value"), [("--temperature", -1), ("--top-p", 0), ("--min-p", 2), ("--top-k", -1),
                                               ("--repetition-penalty", 0), ("--max-tokens", 0),
                                               ("--max-tokens", 2**63), ("--max-tokens", -1000000), ("--seed", -1), ("--seed", 2**64),
                                               ("--context", 2**63 - 1), ("--context", 1000000), ("--context", 0)])
def test_sampling_options_are_checked(model_path, option, value):
    done = run("generate", "--model", model_path, "--prompt", "x", option, value)
    assert done.returncode == USAGE and str(value) in done.stderr
    assert option.strip("-") in done.stderr.replace("_", "-")


def test_answers_of_any_length_fit(model_path):
    prompts = ["--prompt", "one", "--prompt", "two", "--prompt", "three"]
    answers = generate(model_path, *prompts, "--max-tokens", 2**63 - 1, "--context", 24, "--ignore-eos")["answers"]
    assert [answer["prompt_tokens"] + len(answer["tokens"]) for answer in answers] == [24] * 3


def test_bytes_outside_the_vocabulary_are_reported(model_path, tmp_path):
    prompt = tmp_path / "prompt"
    prompt.write_bytes(b"ab\xff\xfe")
    done = run("generate", "--model", model_path, "--prompt-file", prompt, "--max-tokens", 1)
    assert done.returncode == 0 and "2 bytes of the prompt" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["inspect", "--model"], ["inspect", "--json", "--model"],
                                       ["generate", "--prompt", "x", "--max-tokens", 2, "--model"],
                                       ["generate", "--prompt", "x", "--max-tokens", 2, "--json", "--model"]])
def test_output_that_cannot_be_written_fails(model_path, arguments):
    command = [command_path(), *map(str, arguments), *([model_path] if arguments[-1] == "--model" else [])]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1 and "standard output" in done.stderr
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1 and "standard output" in done.stderr


def test_text_files_are_checked(model_path, tmp_path):
    for path, word in [(tmp_path, "directory"), ("/dev/zero", "268435456"), ("", "can't open")]:
        for command in (["generate", "--prompt-file", path], ["perplexity", "--file", path]):
            done = run(*command, "--model", model_path)
            assert done.returncode == 1 and word in done.stderr, done.stderr


def test_chat_keeps_the_conversation(model_path):
    lines = ["Remember this number: 7421.", "Write the number again."]
    turns = run_json("chat", "--model", model_path, "--max-tokens", 24, stdin="\n".join(lines) + "\n")["turns"]
    assert [turn["user"] for turn in turns] == lines
    assert "7421" in turns[1]["assistant"]


def test_inspect(model_path):
    found = run_json("inspect", "--model", model_path, "--context", 1024)
    assert found["architecture"] == "llama" and len(found["tensors"]) == 272
    assert found["file_bytes"] == model_path.stat().st_size
    assert found["kv_cache_bytes"] == 30 * 2 * 3 * 64 * 2 * 1024
    text = run("inspect", "--model", model_path).stdout
    assert "llama.block_count" in text and "q4_1" in text


def test_bench(model_path):
    options = ["--model", model_path, "--prompt-tokens", 16, "--generate", 4, "--depth", 8, "--repeat", 1]
    for extra in ([], ["--unfused"]):
        found = run_json("bench", *options, *extra)
        assert found["prefill_tokens_per_second"] > 0 and found["decode_tokens_per_second"] > 0 and found["peak_memory_bytes"] > 0
    both = run_json("bench", *options, "--compare")
    assert both["unfused"]["unfused"] and not both["fused"]["unfused"]
    table = run("bench", *options, "--compare").stdout
    assert "unfused" in table and "peak memory" in table


@pytest.mark.parametrize("arguments", [["--depth", 10**9], ["--depth", 2**63 - 1], ["--generate", 2**62], ["--prompt-tokens", 8193],
                                       ["--repeat", 0], ["--unfused", "--depth", 2**58], ["--unfused", "--depth", 8192],
                                       ["--compare", "--exact"], ["--unfused", "--exact"], ["--compare", "--profile", "x"]])
def test_bench_options_are_checked(model_path, arguments):
    done = run("bench", "--model", model_path, *arguments)
    assert done.returncode == USAGE and len(done.stderr) < 500


def test_bench_compare_passes_failures_on(tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"not a model")
    assert run("bench", "--compare", "--model", bad).returncode == BAD_FILE


def test_perplexity(model_path, tmp_path):
    text = tmp_path / "text"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    found = run_json("perplexity", "--model", model_path, "--file", text, "--context", 64, "--chunks", 2)
    assert found["tokens"] == 2 * (32 - 1) and 1 < found["perplexity"] < 100
    done = run("perplexity", "--model", model_path, "--file", text, "--context", 2048)
    assert done.returncode == USAGE and "must have at least 2048" in done.stderr
    assert run("perplexity", "--model", model_path, "--file", tmp_path / "none").returncode == 1


@pytest.mark.parametrize(("op", "shape", "options"), [
    ("linear", "512,4096,4096", ["--weights", "q4_1"]), ("linear", "1,576,576", ["--weights", "bf16", "--exact"]),
    ("gated_linear", "16,1536,576", ["--weights", "q8_0", "--isa", "avx2"]), ("flash_attention", "9,3,64", ["--dtype", "bf16"])])
def test_explain(op, shape, options):
    found = run_json("explain", op, "--shape", shape, "--threads", 2, *options)
    assert found["plan"] and len(found["reasons"]) >= 3


def test_compare_attention(tmp_path):
    page = tmp_path / "page.html"
    options = ["--lens", "64,32", "--heads", 6, "--kv-heads", 3, "--head-dim", 40, "--repeat", 2]
    for dtype in ("f32", "bf16"):
        found = run_json("compare", "attention", *options, "--dtype", dtype)
        assert [point["size"] for point in found["points"]] == [32, 64]
        for point in found["points"]:
            naive, flash = (point[side] for side in found["sides"])
            inputs = (4 if dtype == "f32" else 2) * (2 * 6 + 2 * 3) * 40 * point["size"]
            assert flash["bytes_moved"] == inputs and naive["bytes_moved"] == inputs + 4 * 4 * 6 * point["size"] ** 2
            assert min(naive["seconds"], flash["seconds"], naive["peak_memory_bytes"], flash["peak_memory_bytes"]) > 0
    table = run("compare", "attention", *options, "--html", page).stdout
    assert "naive" in table and "flash_attention" in table
    text = page.read_text()
    assert text.count("<svg") == 2 and text.count("<tr>") == 4 and "<script" not in text and "http" not in text
    for _ in range(2):
        done = run("compare", "attention", *options, "--html", page)
        assert done.returncode == USAGE and "already" in done.stderr
        page.write_text("mine")
    assert page.read_text() == "mine"
    assert run("compare", "attention", *options, "--html", page, "--force").returncode == 0 and "<svg" in page.read_text()


def test_compare_attention_leaves_out_what_does_not_fit():
    """2.1 GB of scores under a limit of 2 GB."""
    command = [command_path(), "compare", "attention", "--lens", "4096", "--heads", "32", "--head-dim", "1", "--repeat", "1", "--json"]
    done = subprocess.run(["sh", "-c", 'ulimit -v 2000000 && exec "$@"', "sh", *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    naive, flash = (found["points"][0][side] for side in found["sides"])
    assert "2.0 GB are free" in naive["refused"] and flash["seconds"] > 0


@pytest.mark.parametrize(("options", "word"), [
    (["--lens", "0"], "--lens"), (["--lens", "2,x"], "--lens"), (["--heads", 6, "--kv-heads", 4], "--heads is 6"),
    (["--head-dim", 769], "--head-dim"), (["--dtype", "q4_0"], "--dtype"), (["--repeat", 0], "--repeat"),
    (["--html", "/nowhere/page"], "/nowhere/page"), (["--threads", 0], "threads")])
def test_compare_options_are_checked(options, word):
    done = run("compare", "attention", *options)
    assert done.returncode in (1, USAGE) and word in done.stderr and not done.stdout


def test_profile(model_path, tmp_path):
    trace = tmp_path / "trace.json"
    done = run("generate", "--model", model_path, "--prompt", "x", "--max-tokens", 2, "--profile", trace)
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"linear", "gated_linear", "rms_norm", "flash_attention_paged"} <= names
    assert "GB/s" in done.stderr
    for path in (tmp_path / "no" / "trace", "/dev/full"):
        done = run("generate", "--model", model_path, "--prompt", "x", "--max-tokens", 2, "--profile", path)
        assert done.returncode == 1 and "can't write the trace" in done.stderr and not done.stdout
    done = run("chat", "--model", model_path, "--max-tokens", 2, "--profile", trace, stdin="Hello\n")
    assert done.returncode == 0 and "GB/s" in done.stderr
