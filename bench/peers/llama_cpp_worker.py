# SPDX-License-Identifier: Apache-2.0
"""llama.cpp through llama-cpp-python, at its best settings here: flash attention, batches of 512, last logits only.

Decoding feeds fixed tokens and samples nothing, as llama-bench does: the peer is charged for its forward pass alone.
"""

import argparse

import llama_cpp
from worker import prompt_tokens, seconds, serve


class Peer:
    def __init__(self, model: str, threads: int, context_len: int):
        self.settings = dict(
            model_path=model, n_ctx=context_len, n_batch=512, n_ubatch=512, n_threads=threads,
            n_threads_batch=threads, flash_attn=True, logits_all=False, verbose=False)
        self.llm = llama_cpp.Llama(**self.settings)
        self.tokens = prompt_tokens(context_len, self.llm.n_vocab())

    def cut_to(self, length: int) -> None:
        """Leaves the first `length` tokens in the cache; evaluates those that are missing."""
        if self.llm.n_tokens > length:
            self.llm._ctx.kv_cache_seq_rm(0, length, -1)
            self.llm.n_tokens = length
        elif self.llm.n_tokens < length:
            self.llm.eval(self.tokens[self.llm.n_tokens:length])

    def prefill(self, tokens: int) -> dict:
        self.cut_to(0)
        return {"seconds": seconds(lambda: self.llm.eval(self.tokens[:tokens]))}

    def decode(self, depth: int, tokens: int) -> dict:
        self.cut_to(max(depth, 1))

        def work():
            for token in self.tokens[depth:depth + tokens]:
                self.llm.eval([token])

        return {"seconds": seconds(work)}

    def first_token(self, prompt: str) -> dict:
        """Opening the file to the first token's logits; the interpreter and its imports are not counted."""

        def work():
            llm = llama_cpp.Llama(**{**self.settings, "n_ctx": 512})
            llm.eval(llm.tokenize(prompt.encode(), special=True))

        return {"seconds": seconds(work)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--context", type=int, default=4096 + 256)
    arguments = parser.parse_args()
    peer = Peer(arguments.model, arguments.threads, arguments.context)
    serve({"llama-cpp-python": llama_cpp.__version__},
          {"prefill": peer.prefill, "decode": peer.decode, "first_token": peer.first_token})


if __name__ == "__main__":
    main()
