# SPDX-License-Identifier: Apache-2.0
"""Small random models as Transformers writes them, and their forwards in float64, from the architectures' definitions.

Everything is in Transformers' own form: rotation pairs i with i + head_dim / 2, Gemma's norms multiply by 1 + w.
"""

import json

import numpy as np
from safetensors.numpy import save_file

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 64, 96, 3, 4, 2, 32, 300
CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip


def make_config(kind, **changes):
    config = {
        "architectures": [CLASSES[kind]], "model_type": kind, "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "vocab_size": VOCAB, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
        "hidden_act": "silu", "rope_theta": 10000.0, "eos_token_id": 256, "bos_token_id": 257,
    }  # fmt: skip
    if kind == "mistral":
        config["sliding_window"] = 9
    if kind == "gemma3":
        config |= {"model_type": "gemma3_text", "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
                   "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 7, "query_pre_attn_scalar": HEAD_DIM,
                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}  # fmt: skip
        del config["hidden_act"]
    return {key: value for key, value in (config | changes).items() if value is not None}


def make_tensors(kind, config, rng):
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if kind == "gemma3":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for i in range(LAYERS):
        layer = {f"self_attn.{n}_proj": (rows, HIDDEN) for n, rows in (("q", q), ("k", kv), ("v", kv))}
        layer |= {"self_attn.o_proj": (HIDDEN, q), "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
        layer |= {"mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN)}
        layer |= {norm: (HIDDEN,) for norm in norms}
        if kind in ("qwen3", "gemma3"):
            layer |= {"self_attn.q_norm": (HEAD_DIM,), "self_attn.k_norm": (HEAD_DIM,)}
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
        if kind == "qwen2":
            shapes |= {f"model.layers.{i}.self_attn.{n}_proj.bias": (rows,) for n, rows in (("q", q), ("k", kv), ("v", kv))}
    tensors = {}
    for name, shape in shapes.items():
        center = 0.0 if len(shape) == 2 or name.endswith("bias") or kind == "gemma3" else 1.0
        spread = 0.3 if len(shape) == 1 else 1.0 if "embed" in name else 2 / np.sqrt(shape[-1])
        tensors[name] = (center + spread * rng.standard_normal(shape)).astype(np.float32)
    return tensors


def write_tokenizer(folder):
    """Every byte, two special tokens, and fewer tokens than the embedding has rows."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
    vocab = {symbols[byte]: byte for byte in range(256)} | {"<end>": 256, "<begin>": 257, "he": 258}
    added = [{"id": i, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for text, i in (("<end>", 256), ("<begin>", 257))]  # fmt: skip
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                 "pre_tokenizer": level, "post_processor": None, "decoder": level,
                 "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                           "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                           "vocab": {k: v for k, v in vocab.items() if v not in (256, 257)}, "merges": ["h e"]}}  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<end>", "bos_token": {"content": "<begin>"}}))


def write_folder(folder, config, tensors, dtype=np.float32, num_shards=1):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    stored = {name: np.ascontiguousarray(value.astype(dtype)) for name, value in tensors.items()}
    if num_shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map = {}
    for i in range(num_shards):
        shard = f"model-{i + 1:05}-of-{num_shards:05}.safetensors"
        names = sorted(stored)[i::num_shards]
        save_file({name: stored[name] for name in names}, folder / shard)
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": sum(value.nbytes for value in stored.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def frequencies(theta, scaling):
    f = theta ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    if not scaling or scaling["rope_type"] == "default":
        return f
    if scaling["rope_type"] == "linear":
        return f / scaling["factor"]
    assert scaling["rope_type"] == "llama3"
    length, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    wavelength = 2 * np.pi / f
    smooth = (length / wavelength - low) / (high - low)
    blended = (1 - smooth) * f / scaling["factor"] + smooth * f
    return np.where(wavelength > length / low, f / scaling["factor"], np.where(wavelength < length / high, f, blended))


def logits(kind, config, tensors, tokens):
    """[tokens, vocab] of one sequence, in float64."""
    w = {name: value.astype(np.float64) for name, value in tensors.items()}
    gemma = kind == "gemma3"
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or rope.get("full_attention", rope)
    theta = scaling.get("rope_theta", config.get("rope_theta"))

    def norm(x, name):
        weight = w[name + ".weight"]
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + config["rms_norm_eps"]) * (1 + weight if gemma else weight)

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def rotate(x, f):
        angles = (np.arange(len(x))[:, None] * f)[:, None, :]
        a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def activation(x):
        if gemma:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    x = w["model.embed_tokens.weight"][np.asarray(tokens)] * (np.sqrt(HIDDEN) if gemma else 1.0)
    distance = np.arange(len(x))[:, None] - np.arange(len(x))
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        local = gemma and config["layer_types"][i] == "sliding_attention"
        windowed = local or kind == "mistral"
        f = frequencies(config["rope_local_base_freq"], None) if local else frequencies(theta, scaling)
        h = norm(x, layer + "input_layernorm")
        q, k, v = (linear(h, f"{layer}self_attn.{n}_proj").reshape(len(x), -1, HEAD_DIM) for n in "qkv")
        if kind in ("qwen3", "gemma3"):
            q, k = norm(q, layer + "self_attn.q_norm"), norm(k, layer + "self_attn.k_norm")
        q, k = rotate(q, f), rotate(k, f)
        visible = (distance >= 0) & (distance < (config["sliding_window"] if windowed else len(x)))
        out = np.empty_like(q)
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = np.where(visible, q[:, head] @ k[:, group].T / np.sqrt(HEAD_DIM), -np.inf)
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, group]
        h = linear(out.reshape(len(x), -1), layer + "self_attn.o_proj")
        x = x + (norm(h, layer + "post_attention_layernorm") if gemma else h)
        h = norm(x, layer + ("pre_feedforward_layernorm" if gemma else "post_attention_layernorm"))
        h = linear(activation(linear(h, layer + "mlp.gate_proj")) * linear(h, layer + "mlp.up_proj"), layer + "mlp.down_proj")
        x = x + (norm(h, layer + "post_feedforward_layernorm") if gemma else h)
    output = w["model.embed_tokens.weight"] if config["tie_word_embeddings"] else w["lm_head.weight"]
    return norm(x, "model.norm") @ output.T
