# SPDX-License-Identifier: Apache-2.0
"""Language models from GGUF files and safetensors folders: load, generate, look inside."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from ._core import BatchGeneration, Context, GenerateTiming, KvCache, LoadedModel, ModelConfig, Tokenizer
from .chat import ChatTemplate, Messages

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from typing_extensions import Unpack

Prompt = str | bytes | Sequence[int]


class Sampling(TypedDict, total=False):
    """How tokens are drawn. The steps run in this order: repetition penalty, temperature, top_k, top_p, min_p."""

    temperature: float
    """0 (default): always the most likely token; the next three then do nothing."""
    top_k: int
    """Keep the k most likely; 0 (default): all."""
    top_p: float
    """Keep the fewest of the most likely that together reach p; 1 (default): all."""
    min_p: float
    """Keep those at least min_p times as likely as the likeliest; 0 (default): all."""
    repetition_penalty: float
    """Logits of seen tokens are divided (negative ones multiplied) by it; 1 (default): off."""
    repetition_window: int
    """How many of the last tokens count as seen; default 64, -1: all."""
    seed: int
    """The same seed draws the same tokens; default 0."""


class Generation:
    """An answer that is being written: iterate over it for its text, piece by piece as it comes."""

    def __init__(self, batch: BatchGeneration) -> None:
        self._batch = batch

    def __iter__(self) -> Iterator[str]:
        while (pieces := self._batch.step()) is not None:
            for _, text in pieces:
                yield text

    def read(self) -> str:
        """Runs to the end; the whole answer."""
        for _ in self:
            pass
        return self.text

    def cancel(self) -> None:
        """Ends the answer at the next step."""
        self._batch.cancel()

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._batch.result(0).text

    @property
    def tokens(self) -> list[int]:
        """As sampled, the one that ended the answer included."""
        return self._batch.result(0).tokens

    @property
    def finish_reason(self) -> str:
        """running, end_of_text, stop, length or cancelled."""
        return self._batch.result(0).finish_reason

    @property
    def timing(self) -> GenerateTiming:
        return self._batch.timing


class Model:
    """A language model in memory. Any number of threads may use one; each answer has its own cache."""

    def __init__(self, loaded: LoadedModel, context: Context | None = None) -> None:
        self._loaded = loaded
        self._context = context
        self._templates: dict[str | None, ChatTemplate] = {}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        num_threads: int | None = None,
        *,
        exact: bool = False,
        context: Context | None = None,
    ) -> Model:
        """Loads a GGUF file, or a folder of safetensors as Transformers writes it.

        num_threads: a context of the model's own with that many; context: this one; neither: the
        default context. exact: f32 arithmetic on the dequantised weights and an f32 cache, to
        compare with; else the weights' own dot products and a bf16 cache. Raises InvalidFile with
        what is wrong and where, OSError where the file can't be read; warns of what the tokenizer had
        to assume.
        """
        if num_threads is not None:
            if context is not None:
                raise ValueError("give num_threads or context, not both")
            context = Context(num_threads=num_threads)
        loaded = LoadedModel.load(os.fspath(path), exact, context)
        for warning in loaded.tokenizer.warnings:
            warnings.warn(warning, stacklevel=2)
        return cls(loaded, context)

    @property
    def config(self) -> ModelConfig:
        return self._loaded.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self._loaded.tokenizer

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decoded token reads."""
        return self._loaded.weight_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        return self._loaded.kv_bytes_per_token

    def tokenize(self, text: str | bytes, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Token ids: Tokenizer.encode."""
        return self.tokenizer.encode(text, add_special, parse_special)

    def detokenize(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The tokens' text: Tokenizer.decode."""
        return self.tokenizer.decode(ids, skip_special)

    def generate(
        self,
        prompt: Prompt,
        max_tokens: int = 256,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Generation:
        """Continues a text or token ids: ``for piece in model.generate("Once"): print(piece, end="")``.

        stop: text that ends the answer and is no part of it. sampling: see Sampling.
        """
        return Generation(self._start([prompt], max_tokens, stop, ignore_eos, sampling))

    def generate_batch(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int = 256,
        *,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        **sampling: Unpack[Sampling],
    ) -> list[str]:
        """The answers to several prompts, computed together."""
        batch = self._start(prompts, max_tokens, stop, ignore_eos, sampling)
        while batch.step() is not None:
            pass
        return [batch.result(i).text for i in range(len(prompts))]

    def chat(
        self,
        messages: Messages,
        max_tokens: int = 256,
        *,
        template: str | None = None,
        variables: Mapping[str, Any] | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        **sampling: Unpack[Sampling],
    ) -> Generation:
        """Answers a conversation, [{"role": "user", "content": "…"}, …] or one question, in the model's chat format.

        template, variables: see chat_template and ChatTemplate.encode.
        """
        tokens = self.chat_template(template).encode(messages, variables=variables)
        return self.generate(tokens, max_tokens, stop=stop, ignore_eos=ignore_eos, **sampling)

    def chat_template(self, template: str | None = None) -> ChatTemplate:
        """What makes prompts of messages: the file's own template, a built-in one by name, or Jinja text."""
        if template not in self._templates:
            self._templates[template] = ChatTemplate(self.tokenizer, template)
        return self._templates[template]

    def logits(self, tokens: Sequence[int], *, context: Context | None = None) -> NDArray[np.float32]:
        """What the model expects after each of the tokens, [len(tokens), vocab_size]."""
        cache = self.new_cache(len(tokens))
        return self.forward(cache, [(cache.add_sequence(), tokens)], all_logits=True, context=context)

    def new_cache(self, num_tokens: int, num_sequences: int = 1) -> KvCache:
        """Room for num_tokens tokens in num_sequences sequences of any lengths."""
        return KvCache(self._loaded, num_tokens, num_sequences)

    def forward(
        self,
        cache: KvCache,
        slices: Sequence[tuple[int, Sequence[int]]],
        all_logits: bool = False,
        *,
        context: Context | None = None,
    ) -> NDArray[np.float32]:
        """Appends tokens to sequences of the cache, (sequence, tokens) each.

        The logits [rows, vocab_size] of the last token of each, or of all tokens. Raises ValueError
        or ResourceExhausted (the cache is full) before anything is written.
        """
        return self._loaded.forward(cache, slices, all_logits, context or self._context)

    def perplexity(
        self, text: Prompt, context_len: int = 512, max_windows: int = 0, *, context: Context | None = None
    ) -> tuple[float, int]:
        """exp of the mean negative log likelihood, and over how many tokens.

        Of non-overlapping windows the tokens after the middle are scored; max_windows 0: all windows.
        """
        ids = self.tokenize(text) if isinstance(text, (str, bytes)) else text
        return self._loaded.perplexity(ids, context_len, max_windows, context or self._context)

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt, add_special=True) if isinstance(prompt, (str, bytes)) else prompt

    def _start(
        self,
        prompts: Sequence[Prompt],
        max_tokens: int,
        stop: str | Sequence[str],
        ignore_eos: bool,
        sampling: Sampling,
    ) -> BatchGeneration:
        stops = [stop] if isinstance(stop, str) else list(stop)
        ids = [self._ids(prompt) for prompt in prompts]
        return BatchGeneration(self._loaded, ids, max_tokens, stops, ignore_eos, context=self._context, **sampling)
