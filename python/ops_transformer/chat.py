# SPDX-License-Identifier: Apache-2.0
"""How conversations become prompts: the model file's own Jinja template, or one that is built in."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ._core import BuiltInTemplate, ChatPrompt, Tokenizer

if TYPE_CHECKING:
    from ._jinja import JinjaTemplate

Messages = str | Sequence[Mapping[str, Any]]

_INSTALL = "pip install 'ops-transformer[chat]' brings Jinja, which renders any template"


class ChatTemplateError(ValueError):
    """The model file's chat template is broken, refuses the messages or takes too long."""


def _jinja(source: str, tokenizer: Tokenizer) -> JinjaTemplate | None:
    try:
        from ._jinja import JinjaTemplate
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        return None
    tokens = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos}
    texts = {name: tokenizer.token_bytes(id).decode(errors="replace") for name, id in tokens.items() if id is not None}
    return JinjaTemplate(source, texts)


class ChatTemplate:
    """Turns messages into a prompt. No control token is ever made from what a message brings.

    template: Jinja text, or the name of a built-in template (ChatTemplate.names()); None: the file's
    own Jinja text, rendered by jinja2 where that is installed, else by the built-in template that it
    is. A file without a template gets the built-in one that its control tokens belong to, with a
    warning. Raises ValueError where nothing fits, ChatTemplateError for Jinja text that can't be read.
    """

    def __init__(self, tokenizer: Tokenizer, template: str | None = None) -> None:
        self._tokenizer = tokenizer
        self._own: JinjaTemplate | None = None
        source = tokenizer.chat_template if template is None else template if "{" in template else None
        if source is not None:
            self._own = _jinja(source, tokenizer)
            if self._own is not None:
                return
            if template is not None:
                raise ValueError(f"template: Jinja text needs jinja2; {_INSTALL}")
        try:
            self._built_in = BuiltInTemplate(tokenizer, template or "")
        except ValueError as error:
            if source is None:
                raise
            raise ValueError(f"{error}; or {_INSTALL}") from None
        for warning in self._built_in.warnings:
            warnings.warn(warning, stacklevel=3)

    @staticmethod
    def names() -> list[str]:
        """The templates that are built in."""
        return BuiltInTemplate.names()

    @property
    def name(self) -> str:
        """jinja, or a name of names()."""
        return "jinja" if self._own else self._built_in.name

    def render(
        self, messages: Messages, add_generation_prompt: bool = True, variables: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt as text. variables: what else a Jinja template may ask for, such as tools."""
        return self._prompt(messages, add_generation_prompt, variables or {})[0].text

    def encode(
        self, messages: Messages, add_generation_prompt: bool = True, variables: Mapping[str, Any] | None = None
    ) -> list[int]:
        """The prompt's token ids, with exactly one BOS where the model asks for one.

        Limits of a Jinja template: 200 000 turns of loops, calls and operators, 2^26 characters made
        in all, whole numbers of 4096 bits, 10 seconds of CPU time. Raises ChatTemplateError beyond
        them, with the message of a template that raises, and for a loop over a field that is not there.
        """
        prompt, brought = self._prompt(messages, add_generation_prompt, variables or {})
        ids, dropped = prompt.encode(self._tokenizer)
        if dropped:
            warnings.warn(f"{dropped} bytes of the prompt are not in the vocabulary and were left out", stacklevel=3)
        if self._own:
            self._check_marks(prompt.text, ids, brought)
        return ids

    def _prompt(
        self, messages: Messages, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> tuple[ChatPrompt, list[str]]:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        if self._own:
            parts, brought = self._own.render(messages, add_generation_prompt, variables)
            return ChatPrompt.of_parts(parts), brought
        if variables:
            raise ValueError(f"variables: the built-in templates have none; {_INSTALL}")
        turns = [(message["role"], message["content"]) for message in messages]
        return self._built_in.render(turns, add_generation_prompt), []

    def _check_marks(self, text: str, ids: list[int], brought: list[str]) -> None:
        """A control token that no message spells, yet can't be seen to be the template's, would be lost silently."""

        def marks(ids: list[int]) -> Counter[int]:
            return Counter(id for id in ids if self._tokenizer.is_special(id))

        for id in marks(self._tokenizer.encode(text, parse_special=True)) - marks(ids):
            name = self._tokenizer.token_bytes(id).decode(errors="replace")
            if not any(name in part for part in brought):
                raise ChatTemplateError(
                    f"the chat template makes '{name}' in a way in which it can't be told from a message's text"
                )
