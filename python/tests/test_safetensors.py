# SPDX-License-Identifier: Apache-2.0
"""Folders of safetensors: loaded, inspected, converted to GGUF, refused."""

import json
import os
import signal
import subprocess
import time

import gguf
import numpy as np
import pytest

import ops_transformer as ops

pytest.importorskip("safetensors")
from command import command_path, run_command  # noqa: E402
from reference_transformers import LLAMA3, VOCAB, logits, make_config, make_tensors, write_folder  # noqa: E402

TOKENS = [104, 101, 32, 258, 7, 256, 99, 250, 0, 17, 33, 65, 66, 67, 104, 101, 31, 8, 9, 200]
USAGE, BAD_FILE = 2, 3
V5_ROPE = {"full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4.0},
           "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"}}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama 3": ("llama", {"rope_scaling": LLAMA3}),
    "llama 3, new": ("llama", {"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 2e4}}),
    "llama linear": ("llama", {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 2.0}}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"attention_bias": False}),
    "gemma3": ("gemma3", {}),
    "gemma3, new": ("gemma3", {"rope_theta": None, "rope_parameters": V5_ROPE}),
}


def convert(*arguments):
    done = run_command("convert", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def llama(tmp_path, rng):
    """A folder, its config and its tensors."""
    config = make_config("llama")
    tensors = make_tensors("llama", config, rng)
    return write_folder(tmp_path / "llama", config, tensors), config, tensors


@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_logits_and_conversion(name, num_shards, tmp_path, rng):
    kind, changes = MODELS[name]
    config = make_config(kind, **changes)
    tensors = make_tensors(kind, config, rng)
    folder = write_folder(tmp_path / "model", config, tensors, num_shards=num_shards)
    model = ops.Model.load(folder, exact=True)
    expected = logits(kind, config, tensors, TOKENS)
    found = model.logits(TOKENS)
    assert np.max(np.abs(found - expected)) <= 1e-5 * np.max(np.abs(expected))
    assert model.tokenizer.encode("hehe", parse_special=True) == [258, 258] and model.tokenizer.eos == 256
    convert(folder, "--output", tmp_path / "model.gguf")
    np.testing.assert_array_equal(ops.Model.load(tmp_path / "model.gguf", exact=True).logits(TOKENS), found)


def test_half_precision(tmp_path, rng):
    config = make_config("qwen3")
    tensors = make_tensors("qwen3", config, rng)
    rounded = {name: value.astype(np.float16) for name, value in tensors.items()}
    folder = write_folder(tmp_path / "half", config, tensors, np.float16, 2)
    expected = logits("qwen3", config, rounded, TOKENS)
    found = ops.Model.load(folder, exact=True).logits(TOKENS)
    assert np.max(np.abs(found - expected)) <= 1e-5 * np.max(np.abs(expected))
    convert(folder, "--output", tmp_path / "f32.gguf", "--dtype", "f32")
    np.testing.assert_array_equal(ops.Model.load(tmp_path / "f32.gguf", exact=True).logits(TOKENS), found)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_types_have_the_bits_of_gguf(llama, tmp_path, dtype):
    folder, _, tensors = llama
    tensors["model.layers.0.mlp.up_proj.weight"][:3] = 0
    tensors["model.layers.0.mlp.up_proj.weight"][3, :32] = 1.0
    write_folder(folder, make_config("llama"), tensors)
    assert convert(folder, "--output", tmp_path / "x.gguf", "--dtype", dtype)["f16_instead"] == 0
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    found = {t.name: t for t in reader.tensors}
    for ours, theirs in [("token_embd", "model.embed_tokens"), ("output", "lm_head"), ("blk.0.ffn_up", "model.layers.0.mlp.up_proj"),
                         ("blk.2.ffn_down", "model.layers.2.mlp.down_proj"), ("blk.1.attn_v", "model.layers.1.self_attn.v_proj")]:
        tensor, value = found[ours + ".weight"], tensors[theirs + ".weight"]
        assert tensor.tensor_type == kind and list(tensor.shape) == list(value.shape[::-1])
        expected = np.ascontiguousarray(gguf.quants.quantize(value, kind))
        assert tensor.data.tobytes() == expected.tobytes(), ours
    assert found["output_norm.weight"].tensor_type == gguf.GGMLQuantizationType.F32
    assert reader.fields["general.file_type"].contents() == {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}[dtype]
    model = ops.Model.load(tmp_path / "x.gguf", exact=True)
    assert model.config.vocab_size == VOCAB and np.isfinite(model.logits(TOKENS)).all()
    assert run_command("convert", tmp_path / "x.gguf", "-o", tmp_path / "again.gguf", "--dtype", "f32").returncode == 0
    np.testing.assert_array_equal(ops.Model.load(tmp_path / "again.gguf", exact=True).logits(TOKENS), model.logits(TOKENS))


@pytest.mark.parametrize("form", ["gemma", "llama 2", "metaspace"])
def test_sentencepiece_bpe(llama, tmp_path, rng, form):
    """BPE with byte fallback, in the three ways that tokenizer.json writes SentencePiece's spaces."""
    tokenizers = pytest.importorskip("tokenizers")
    folder, _, _ = llama
    path = folder / "tokenizer.json"
    file = json.loads(path.read_text())
    pieces = ["<unk>", "<end>", "<begin>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abcdeé"]
    merges = [("a", "b"), ("\u2581", "a"), ("ab", "c"), ("\u2581", "\u2581"), ("a", "a"), ("c", "d"), ("ab", "cd"), ("abc", "d"), ("aa", "ab"),
              ("\u2581a", "b"), ("\u2581", "ab")]  # fmt: skip
    pieces += dict.fromkeys("".join(merge) for merge in merges)
    file["added_tokens"] = [token | {"id": pieces.index(token["content"])} for token in file["added_tokens"]]
    file["model"] |= {"vocab": {piece: i for i, piece in enumerate(pieces)}, "merges": [list(merge) for merge in merges],
                      "byte_fallback": True, "fuse_unk": True, "unk_token": "<unk>"}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    file["normalizer"] = {"gemma": replace, "metaspace": None, "llama 2": {
        "type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]}}[form]
    file["pre_tokenizer"] = {"gemma": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
                             "llama 2": None, "metaspace": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "never", "split": False}}[form]
    file["decoder"] = None
    path.write_text(json.dumps(file))
    convert(folder, "--output", tmp_path / "x.gguf", "--dtype", "q8_0")
    peer = tokenizers.Tokenizer.from_file(str(path))
    for source in (folder, tmp_path / "x.gguf"):
        ours = ops.Tokenizer.load(str(source))
        for _ in range(200):
            text = "".join(rng.choice([*"abcde  é\n", "ñ", "歪"], size=int(rng.integers(1, 20))))
            assert ours.encode(text) == peer.encode(text, add_special_tokens=False).ids, text
    file["normalizer"] = {"type": "BertNormalizer"}
    path.write_text(json.dumps(file))
    done = run_command("inspect", "--model", folder)
    assert done.returncode == BAD_FILE and "BertNormalizer" in done.stderr


def test_inspect(llama):
    folder, config, tensors = llama
    for path in (folder, folder / "model.safetensors"):
        done = run_command("inspect", "--model", path, "--json")
        found = json.loads(done.stdout)
        assert found["architecture"] == "llama" and len(found["tensors"]) == len(tensors)
    assert "safetensors (1 file)" in run_command("inspect", "--model", folder).stdout


def test_refusals(llama, tmp_path):
    folder, config, tensors = llama

    def refused(*parts, code=BAD_FILE, **changes):
        (folder / "config.json").write_text(json.dumps({k: v for k, v in (config | changes).items() if v is not None}))
        done = run_command("inspect", "--model", folder)
        assert done.returncode == code, done
        for part in parts:
            assert part in done.stderr, done.stderr

    refused("unsupported architecture 'FooForCausalLM'", "Qwen3ForCausalLM", architectures=["FooForCausalLM"])
    refused("num_hidden_layers", "is missing", num_hidden_layers=None)
    refused("num_hidden_layers", "1024", num_hidden_layers=10**9)
    refused("hidden_size", "'x'", hidden_size="x")
    refused("model.layers.3.input_layernorm.weight", "is missing", num_hidden_layers=4)
    refused("has no place", num_hidden_layers=2)
    refused("quantization_config", quantization_config={"quant_method": "gptq"})
    refused("rope_type", "longrope", rope_scaling={"rope_type": "longrope"})
    refused("hidden_act", "relu", hidden_act="relu")
    for size in (100, 299, 2**31 - 1):
        refused(f"vocab_size is {size}", "300 rows", vocab_size=size)
    refused("self_attn.q_proj.weight", "128", "256", num_attention_heads=8)
    (folder / "config.json").write_text("[" * 100000)
    assert run_command("inspect", "--model", folder).returncode == BAD_FILE
    (folder / "config.json").write_text('{"a": 1, "a": 2}')
    assert "twice" in run_command("inspect", "--model", folder).stderr
    (folder / "config.json").unlink()
    assert run_command("inspect", "--model", folder).returncode == 1
    os.mkfifo(folder / "config.json")
    assert "not a regular file" in run_command("inspect", "--model", folder).stderr


def test_wrong_indices(tmp_path, rng):
    config = make_config("qwen2")
    folder = write_folder(tmp_path / "m", config, make_tensors("qwen2", config, rng), num_shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())

    def refused(changes, *parts, code=BAD_FILE):
        path.write_text(json.dumps({"weight_map": {k: v for k, v in (index["weight_map"] | changes).items() if v != ""}}))
        done = run_command("inspect", "--model", folder)
        assert done.returncode == code, done
        for part in parts:
            assert part in done.stderr, done.stderr

    other = {v: k for k, v in index["weight_map"].items()}
    refused({"model.norm.weight": "../x.safetensors"}, "model.norm.weight", "in this folder")
    refused({"model.norm.weight": "/etc/x.safetensors"}, "in this folder")
    refused({"model.norm.weight": "x"}, "in this folder")
    refused({"model.norm.weight": 3}, "model.norm.weight")
    refused({"model.norm.weight": "absent.safetensors"}, "absent.safetensors", code=1)
    refused({"model.norm.weight": ""}, "model.norm.weight", "not in the index")
    refused({"another": next(iter(other))}, "another", "not there")
    refused({"model.norm.weight": next(name for name in other if name != index["weight_map"]["model.norm.weight"])}, "model.norm.weight")
    path.write_text(json.dumps(index))
    shard = folder / next(iter(other))
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    assert run_command("inspect", "--model", folder).returncode == 0


def test_output_is_whole_or_not_there(llama, tmp_path):
    folder, config, tensors = llama
    output = tmp_path / "out" / "model.gguf"
    assert run_command("convert", folder, "-o", output).returncode == 1
    output.parent.mkdir()
    output.write_text("mine")
    done = run_command("convert", folder, "-o", output)
    assert done.returncode == USAGE and "already" in done.stderr and output.read_text() == "mine"
    assert run_command("convert", folder, "-o", output, "--force").returncode == 0 and output.stat().st_size > 1000
    assert run_command("convert", folder, "-o", output.parent, "--force").returncode == USAGE
    for dtype, part in (("q4_k", "q4_k"), ("q9", "q9")):
        done = run_command("convert", folder, "-o", tmp_path / "x.gguf", "--dtype", dtype)
        assert done.returncode == USAGE and part in done.stderr
    run_command("convert", folder, "-o", output, "--force", "--dtype", "q8_0")
    done = run_command("convert", output, "-o", tmp_path / "x.gguf", "--dtype", "q4_0")
    assert done.returncode == USAGE and "already" in done.stderr
    tensors["model.layers.2.mlp.down_proj.weight"][5, 7] = 1e6
    write_folder(folder, config, tensors)
    before = output.read_bytes()
    done = run_command("convert", folder, "-o", output, "--force", "--dtype", "f16")
    assert done.returncode == BAD_FILE and "ffn_down" in done.stderr and "1000000" in done.stderr
    assert output.read_bytes() == before and os.listdir(output.parent) == ["model.gguf"]
    done = run_command("convert", folder, "-o", output, "--force", preexec_fn=lambda: __import__("resource").setrlimit(
        __import__("resource").RLIMIT_FSIZE, (10000, 10000)))
    assert done.returncode != 0 and output.read_bytes() == before


def test_interrupted(tmp_path, model_path):
    for delay in (0.02, 0.05, 0.2):
        process = subprocess.Popen([command_path(), "convert", model_path, "-o", tmp_path / "x.gguf", "--dtype", "f32", "--force"])
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (-signal.SIGINT, 0)
        whole = [name for name in os.listdir(tmp_path)]
        assert whole in ([], ["x.gguf"])


SENTENCE = "The capital of France is Paris, and that of Italy is"


def check_export(path, folder):
    """A GGUF file as Transformers writes it into a folder has the same tokens and logits; those tokens."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    options = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**options, dtype=torch.float32)
    model.hf_quantizer, model.is_quantized = None, False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    transformers.AutoTokenizer.from_pretrained(**options).save_pretrained(folder)
    model.save_pretrained(folder, max_shard_size="200MB")
    expected, found = ops.Model.load(path, exact=True), ops.Model.load(folder, exact=True)
    prompt = expected.tokenize(SENTENCE)
    assert found.tokenize(SENTENCE) == prompt
    assert np.max(np.abs(found.logits(prompt) - expected.logits(prompt))) <= 1e-3
    return prompt


@pytest.mark.slow  # a minute: Transformers makes the tokenizer of 262 144 tokens anew
def test_gemma3_as_transformers_writes_it(tmp_path, gemma_path):
    check_export(gemma_path, tmp_path)


def test_smollm2_as_transformers_writes_it(tmp_path, model_path):
    prompt = check_export(model_path, tmp_path)
    llama_cpp = pytest.importorskip("llama_cpp")
    convert(tmp_path, "--output", tmp_path / "model.gguf", "--dtype", "bf16")
    peer = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_ctx=256, verbose=False, n_threads=2)
    tokens = [token for token, _ in zip(peer.generate(prompt, temp=0.0, top_k=1), range(12))]
    ours = ops.Model.load(tmp_path / "model.gguf", exact=True).generate(prompt, 12, ignore_eos=True)
    ours.read()
    assert ours.tokens == tokens
