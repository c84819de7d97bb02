# SPDX-License-Identifier: Apache-2.0
"""A token of a Transformers model at a depth: attn_implementation="ops_transformer" against "sdpa", by turns.

Run it with an interpreter that has PyTorch, Transformers and this package. The cache holds random keys and values: what
they are does not matter to time. Rows: the model's whole step with Transformers' own cache, sdpa so against ours with
GrowingCache, and the attention function alone (all layers).
"""

import argparse
import json
import os
import statistics
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import AttentionInterface

import ops_transformer
import ops_transformer.transformers as ours


def load(path: str, dtype: torch.dtype):
    arguments = {"dtype": dtype, "attn_implementation": "sdpa"}
    if path.endswith(".gguf"):
        path, arguments["gguf_file"] = os.path.split(os.path.abspath(path))
        arguments["quantization_config"] = transformers.GgufConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(path, **arguments).eval()


def filled_cache(model, cache, depth: int):
    config = model.config
    shape = (1, config.num_key_value_heads, depth, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(shape, dtype=model.dtype) for _ in range(2)), layer)
    return cache


def seconds_of_a_token(model, cache, tokens: int) -> float:
    start = time.perf_counter()
    for i in range(tokens):
        model(torch.tensor([[100 + i]]), cache=cache, use_cache=True, logits_to_keep=1)
    taken = time.perf_counter() - start
    cache.crop(-tokens)
    return taken / tokens


def seconds_of_attention(model, cache, tokens: int) -> float:
    attend = AttentionInterface()[model.config._attn_implementation]
    layers = [layer.self_attn for layer in model.model.layers]
    keys = [(layer.keys, layer.values) for layer in cache.layers]
    query = torch.randn(1, model.config.num_attention_heads, 1, model.config.head_dim, dtype=model.dtype)
    start = time.perf_counter()
    for _ in range(tokens):
        for layer, (key, value) in zip(layers, keys):
            attend(layer, query, key, value, None, scaling=layer.scaling)
    return (time.perf_counter() - start) / tokens


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file or a folder of safetensors")
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=8, help="of each round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="of both; default: the CPUs this process may use")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.threads:
        os.environ["OPS_TRANSFORMER_NUM_THREADS"] = str(options.threads)  # read when the default context is made
    options.threads = ops_transformer.default_context().num_threads
    torch.set_num_threads(options.threads)
    model = load(options.model, getattr(torch, options.dtype))
    dynamic = filled_cache(model, transformers.DynamicCache(config=model.config), options.depth)
    growing = filled_cache(model, ours.GrowingCache(model.config), options.depth)
    for cache in (dynamic, growing):
        seconds_of_a_token(model, cache, 1)
    rows = {"step": [("sdpa", dynamic), (ours.NAME, dynamic)],
            "step, GrowingCache": [("sdpa", dynamic), (ours.NAME, growing)],
            "attention": [("sdpa", dynamic), (ours.NAME, dynamic)]}
    samples = {(row, name): [] for row in rows for name in ("sdpa", ours.NAME)}
    for round_number in range(options.rounds + 1):
        for row, sides in rows.items():
            for name, cache in sides:
                model.set_attn_implementation(name)
                run = seconds_of_attention if row == "attention" else seconds_of_a_token
                seconds = run(model, cache, options.tokens)
                if round_number:  # the first warms up
                    samples[row, name].append(seconds)
    figures = {key: statistics.median(values) for key, values in samples.items()}
    result = {"depth": options.depth, "threads": options.threads, "dtype": options.dtype, "torch": torch.__version__,
              "transformers": transformers.__version__, "ops_transformer": ops_transformer.__version__}
    for row in rows:
        peer, own = figures[row, "sdpa"], figures[row, ours.NAME]
        result[row] = {"sdpa_ms": peer * 1e3, "ops_transformer_ms": own * 1e3, "ratio": peer / own}
    if options.json:
        print(json.dumps(result))
        return
    print(f"a token at depth {options.depth}, {options.dtype}, {options.threads} threads; torch {torch.__version__}, "
          f"transformers {transformers.__version__}; median of {options.rounds} rounds by turns")
    print(f"{'':<20}{'sdpa':>12}{'ours':>12}{'ratio':>9}")
    for row in rows:
        print(f"{row:<20}{result[row]['sdpa_ms']:>9.2f} ms{result[row]['ops_transformer_ms']:>9.2f} ms"
              f"{result[row]['ratio']:>8.2f}x")


if __name__ == "__main__":
    main()
