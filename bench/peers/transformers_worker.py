# SPDX-License-Identifier: Apache-2.0
"""Transformers on PyTorch: the same GGUF file's weights in bf16, sdpa attention, logits of the last token only."""

import argparse
import os
import resource

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from worker import prompt_tokens, seconds, serve


class Peer:
    def __init__(self, model: str, threads: int):
        torch.set_num_threads(threads)
        folder, name = os.path.split(os.path.abspath(model))
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16, attn_implementation="sdpa",
            quantization_config=transformers.GgufConfig(dequantize=True)).eval()
        self.tokens = prompt_tokens(8192, self.model.config.vocab_size)

    @torch.inference_mode()
    def forward(self, tokens: list[int], cache):
        out = self.model(torch.tensor([tokens]), cache=cache, use_cache=True, logits_to_keep=1)
        return out.cache

    def prefill(self, tokens: int) -> dict:
        return {"seconds": seconds(lambda: self.forward(self.tokens[:tokens], None)), **memory()}

    def decode(self, depth: int, tokens: int) -> dict:
        cache = self.forward(self.tokens[:max(depth, 1)], None)

        def work():
            for token in self.tokens[depth:depth + tokens]:
                self.forward([token], cache)

        return {"seconds": seconds(work), **memory()}


def memory() -> dict:
    return {"peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    peer = Peer(arguments.model, arguments.threads)
    serve({"transformers": transformers.__version__, "torch": torch.__version__},
          {"prefill": peer.prefill, "decode": peer.decode})


if __name__ == "__main__":
    main()
