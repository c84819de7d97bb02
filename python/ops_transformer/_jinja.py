# SPDX-License-Identifier: Apache-2.0
"""Renders a model file's own chat template with Jinja: in a sandbox, within limits, and so that it stays known which
characters of the prompt the template wrote and which the messages brought."""

from __future__ import annotations

import datetime
import functools
import json
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat import ChatTemplateError

MOST_STEPS = 200_000  # turns of loops, calls, filters and operators
MOST_CHARACTERS = 1 << 26  # made in all, the output included
MOST_SECONDS = 10.0  # of this thread's CPU time
MOST_NUMBER = 1_000_000  # as an argument: widths and counts
MOST_BITS = 4096  # of a whole number: a product of millions of digits takes Python minutes
# Roles that may be part of a control token's name, as in '<|' + message.role + '|>'.
PLAIN_ROLES = frozenset(["assistant", "developer", "function", "ipython", "model", "system", "tool", "user"])


class Traced(str):
    """Text of which some characters are the template's own. What str does that does not stand here, forgets it."""

    _own: bytes  # one byte a character; 1: the template's

    def __add__(self, other: str) -> str:
        return concat([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat([other, self]) if isinstance(other, str) else NotImplemented

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: Any) -> str:
        own = own_of(self)[key]
        return traced(str.__getitem__(self, key), own if isinstance(own, bytes) else bytes([own]))

    def lstrip(self, chars: str | None = None) -> str:
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> str:
        return self[: len(str.rstrip(self, chars))]

    def strip(self, chars: str | None = None) -> str:
        return self.lstrip(chars).rstrip(chars)

    def join(self, parts: Iterable[str]) -> str:
        between: list[str] = []
        for part in parts:
            between += [part, self]
        return concat(between[:-1])


def traced(text: str, own: bytes) -> str:
    result = Traced(text)
    result._own = own
    return result


def own_of(text: str) -> bytes:
    return getattr(text, "_own", None) or bytes(len(text))


def concat(parts: list[str]) -> str:
    return traced("".join(parts), b"".join(map(own_of, parts)))


class Generator(CodeGenerator):
    """Code in which the template's own texts are traced and the turns of loops are counted."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.own({str(node.value)!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.own({node.data!r})")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.own({''.join(group)!r})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        node.iter = nodes.Call(nodes.EnvironmentAttribute("counted"), [node.iter], [], None, None, lineno=node.lineno)
        super().visit_For(node, frame)


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what training looks at; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


class Namespace(jinja2.utils.Namespace):
    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace attribute {name!r} begins with an underscore")
        super().__setitem__(name, value)


def size_of(value: Any) -> int:
    if isinstance(value, int):
        return value.bit_length() // 8
    return len(value) if isinstance(value, (str, list, tuple)) else 0


class Environment(ImmutableSandboxedEnvironment):
    code_generator_class = Generator
    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self) -> None:
        # As Transformers has it; constants are not folded, so that Generator sees each of them.
        extensions = [GenerationTag, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, optimized=False)
        self.lock = threading.Lock()
        self.steps, self.characters, self.end = 0, 0, 0.0
        self.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now, "namespace": Namespace}
        del self.globals["lipsum"]
        self.filters["tojson"] = tojson
        self.filters = {name: self.guarded(function) for name, function in self.filters.items()}

    def step(self, size: int = 0) -> None:
        self.steps += 1
        self.characters += size
        if self.steps > MOST_STEPS:
            raise ChatTemplateError(f"the chat template takes more than {MOST_STEPS} steps")
        if self.characters > MOST_CHARACTERS:
            raise ChatTemplateError(f"the chat template makes more than {MOST_CHARACTERS} characters")
        if self.steps % 64 == 0 and time.thread_time() > self.end:
            raise ChatTemplateError(f"the chat template takes more than {MOST_SECONDS:g} seconds")

    def check_arguments(self, arguments: Iterable[Any]) -> None:
        """Refuses what could make one call's result far larger than its arguments."""
        sizes = [0, 0]
        for value in arguments:
            if isinstance(value, int) and abs(value) > MOST_NUMBER:
                raise ChatTemplateError(f"the chat template uses a number above {MOST_NUMBER}")
            if isinstance(value, str):
                sizes.append(len(value))
        first, second = sorted(sizes)[-2:]
        if first * second > 16 * MOST_CHARACTERS:
            raise ChatTemplateError(f"the chat template combines texts of {first} and {second} characters")

    def guarded(self, function: Any) -> Any:
        @functools.wraps(function)
        def filtered(*args: Any, **kwargs: Any) -> Any:
            self.check_arguments([*args, *kwargs.values()])
            result = function(*args, **kwargs)
            self.step(size_of(result))
            return result

        return filtered

    def own(self, text: str) -> str:
        return traced(text, b"\1" * len(text))

    def concat(self, parts: Iterable[str]) -> str:  # type: ignore[override]
        collected = []
        for part in parts:
            self.step(len(part))
            collected.append(part)
        return concat(collected)

    def counted(self, values: Any) -> Iterator[Any]:
        if isinstance(values, Undefined):
            values._fail_with_undefined_error()
        for value in values:
            self.step()
            yield value

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self = __self
        self.check_arguments([getattr(__obj, "__self__", None), *args, *kwargs.values()])
        if isinstance(__obj, LoopContext):
            args = (self.counted(args[0]), *args[1:])
        result = super().call(__context, __obj, *args, **kwargs)
        self.step(size_of(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        size = 0
        if isinstance(left, int) and isinstance(right, int):
            bits = {"*": left.bit_length() + right.bit_length(), "**": left.bit_length() * abs(right)}
            if bits.get(operator, 0) > MOST_BITS:
                raise ChatTemplateError(f"the chat template makes a number of more than {MOST_BITS} bits")
        elif operator == "*":
            numbers = [max(int(value), 0) if isinstance(value, (int, float)) else size_of(value) for value in (left, right)]
            size = 0 if all(isinstance(value, (int, float)) for value in (left, right)) else numbers[0] * numbers[1]
        elif operator == "%" and isinstance(left, str) and re.search(r"\d{5}|\*", left):
            size = MOST_CHARACTERS
        if size >= MOST_CHARACTERS:
            raise ChatTemplateError(f"the chat template makes more than {MOST_CHARACTERS} characters")
        result = super().call_binop(context, operator, left, right)
        self.step(size_of(result))
        return result


def raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)


def tojson(
    x: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def plain(value: Any) -> Any:
    """The same of JSON's types alone, copied: a template can reach nothing else."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if isinstance(value, str):
        return str.__str__(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise TypeError(f"messages may hold text, numbers, lists and dicts, not {type(value).__name__}")


def texts_of(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield key
            yield from texts_of(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from texts_of(entry)
    elif isinstance(value, str):
        yield value


def described(error: Exception) -> str:
    """The message, and the template's line where that is known."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in ("<template>", "<unknown>"):
            line = trace.tb_lineno
        trace = trace.tb_next
    line = getattr(error, "lineno", None) or line
    return f"{error}" if line is None else f"line {line}: {error}"


class JinjaTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._environment = Environment()
        self._special_tokens = {name: self._environment.own(text) for name, text in special_tokens.items()}
        try:
            self._template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"the chat template can't be read: {described(error)}") from None

    def render(
        self, messages: Any, add_generation_prompt: bool, variables: Mapping[str, Any]
    ) -> tuple[list[tuple[str, bool]], list[str]]:
        """The prompt as parts, (text, whether a message brought it), and all the texts that were brought."""
        environment = self._environment
        brought = {"tools": None, "documents": None, **plain(variables), "messages": plain(messages)}
        texts = list(texts_of(brought))
        for message in brought["messages"]:
            if not isinstance(message, dict):
                raise TypeError(f"a message must be a dict, not {type(message).__name__}")
            if message.get("role") in PLAIN_ROLES:
                message["role"] = environment.own(message["role"])
        with environment.lock:
            environment.steps, environment.characters = 0, 0
            environment.end = time.thread_time() + MOST_SECONDS
            try:
                text = self._template.render(
                    **{**self._special_tokens, "add_generation_prompt": add_generation_prompt, **brought}
                )
            except (ChatTemplateError, MemoryError):
                raise
            except RecursionError:
                raise ChatTemplateError("the chat template calls itself too deeply") from None
            except Exception as error:  # whatever a template does wrong, the caller gets to know
                raise ChatTemplateError(f"the chat template fails: {described(error)}") from None
        own = own_of(text)
        runs = re.finditer(rb"\x00+|\x01+", own)
        return [(text[run.start() : run.end()], own[run.start()] == 0) for run in runs], texts
