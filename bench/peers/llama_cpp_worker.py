# SPDX-License-Identifier: Apache-2.0
"""llama.cpp through llama-cpp-python, at its best settings here: flash attention, batches of 512, last logits only.

Decoding feeds fixed tokens and samples nothing, as llama-bench does: the peer is charged for its forward pass alone.
"""

import argparse

import llama_cpp
from worker import prompt_tokens, seconds, serve


class Peer:
    def __init__(self, model: str, threads: int):
        self.settings = dict(
            model_path=model, n_batch=512, n_ubatch=512, n_threads=threads, n_threads_batch=threads,
            flash_attn=True, logits_all=False, verbose=False)
        self.instances: dict[int, llama_cpp.Llama] = {}

    def at_depth(self, depth: int, tokens: int) -> tuple[llama_cpp.Llama, list[int]]:
        """An instance with `depth` tokens in its cache, made once for each depth, and the tokens to come."""
        if depth not in self.instances:
            self.instances[depth] = llama_cpp.Llama(n_ctx=depth + 512, **self.settings)
        llm = self.instances[depth]
        all_tokens = prompt_tokens(depth + tokens, llm.n_vocab())
        if llm.n_tokens > depth:
            llm._ctx.kv_cache_seq_rm(0, depth, -1)
            llm.n_tokens = depth
        elif llm.n_tokens < depth:
            llm.eval(all_tokens[llm.n_tokens:depth])
        return llm, all_tokens[depth:]

    def prefill(self, tokens: int) -> dict:
        llm, new_tokens = self.at_depth(0, tokens)
        return {"seconds": seconds(lambda: llm.eval(new_tokens))}

    def decode(self, depth: int, tokens: int) -> dict:
        llm, new_tokens = self.at_depth(depth, tokens)

        def work():
            for token in new_tokens:
                llm.eval([token])

        return {"seconds": seconds(work)}

    def first_token(self, prompt: str) -> dict:
        """Opening the file to the first token's logits; the interpreter and its imports are not counted."""

        def work():
            llm = llama_cpp.Llama(n_ctx=512, **self.settings)
            llm.eval(llm.tokenize(prompt.encode(), special=True))

        return {"seconds": seconds(work)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    peer = Peer(arguments.model, arguments.threads)
    serve({"llama-cpp-python": llama_cpp.__version__},
          {"prefill": peer.prefill, "decode": peer.decode, "first_token": peer.first_token})


if __name__ == "__main__":
    main()
