"""Prompt templates and the span of the text in them (CASE, section 3.1 and section 4), and their flags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from raycase.errors import RequestError, is_utf8
from raycase.io.json_values import from_json
from raycase.io.storage import json_file
from raycase.names import PromptStyle

INSTRUCT = "Instruct: {instruction}\nQuery: {text}"
COND_INSTRUCTION = "Retrieve semantically similar texts to a given Condition, given the Sentence : {sentence}"
SENT_INSTRUCTION = "Retrieve semantically similar texts to a given Sentence, given the Condition : {condition}"
BASE_INSTRUCTION = "Retrieve semantically similar texts"


class TokenSpan(StrEnum):
    """Which tokens are pooled."""

    SENTENCE = "sentence"
    CONDITION = "condition"
    ALL = "all"  # special tokens too, as in the published code of mean-pooled encoders


INSTRUCTIONS = {  # style -> instruction before the text, and which text it is
    PromptStyle.COND: (COND_INSTRUCTION, TokenSpan.CONDITION),
    PromptStyle.SENT: (SENT_INSTRUCTION, TokenSpan.SENTENCE),
}
PATTERNS = {  # style -> pattern of the pair, pattern of the condition alone
    PromptStyle.CONCAT_CS: ("{condition}{separator}{sentence}", "{condition}"),
    PromptStyle.CONCAT_SC: ("{sentence}{separator}{condition}", "{condition}"),
    PromptStyle.QUESTION: ("{sentence} What is the {condition}?", "What is the {condition}?"),
    PromptStyle.STATEMENT: ("{sentence} The {condition} is", "The {condition} is"),
}
BUILT_IN = (*INSTRUCTIONS, *PATTERNS)


def parse_views(prompt: str) -> list[tuple[PromptStyle, TokenSpan | None]]:
    """The views of `a+b`: the style of each, and the span that it pools (`concat-sc:sentence`), or None."""
    views: list[tuple[PromptStyle, TokenSpan | None]] = []
    for view in prompt.split("+"):
        style, colon, span = view.partition(":")
        if style not in list(PromptStyle):
            names = ", ".join(BUILT_IN)
            raise RequestError(
                f"--prompt: expected {names}, several joined by +, or a file NAME.json with a template, got {view!r}"
            )
        if colon and (span not in list(TokenSpan) or style not in PATTERNS):
            wanted = f"{', '.join(PATTERNS)} with :{', :'.join(TokenSpan)}"
            raise RequestError(f"--prompt: expected a span for {wanted}, got {view!r}")
        views.append((PromptStyle(style), TokenSpan(span) if colon else None))
    if len(set(views)) < len(views):
        raise RequestError(f"--prompt: expected each view once, got {prompt!r}")
    return views


class PooledPart(StrEnum):
    """Which tokens of a prompt of one's own are pooled: by `last` the last, else those that mean and latent average."""

    LAST = "last"  # of the whole prompt, and so the end token, if there is one
    CONDITION = "condition"
    SENTENCE = "sentence"
    ALL = "all"


@dataclass(frozen=True, kw_only=True)
class OwnPrompt:
    """A prompt of one's own: the templates of the view `template`, and which of its tokens are pooled."""

    template: str  # with {sentence} and {condition} once each; other braces are text
    base_template: str | None = None  # of the base (eq. 1), with {condition} once; None: nothing can be subtracted
    pool: PooledPart | None = None  # None where the encoder's pooling leaves no choice

    def __post_init__(self) -> None:
        for name, sentences, expected in (
            ("template", 1, "{sentence} and {condition} once each"),
            ("base_template", 0, "{condition} once and no {sentence}"),
        ):
            text = getattr(self, name)
            if text is None:
                continue
            if not is_utf8(text) or (text.count("{sentence}"), text.count("{condition}")) != (sentences, 1):
                raise RequestError(f"{name}: expected {expected}, got {text[:200]!r}")

    @property
    def prompts(self) -> PromptSet:
        """The templates, for all that reads prompts."""
        span = TokenSpan(self.pool) if self.pool in list(TokenSpan) else TokenSpan.ALL
        return PromptSet.of(self.template, self.base_template, span)


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A complete prompt with spans of characters: `pooled` (None: every token), and both texts (None: absent)."""

    text: str
    pooled: tuple[int, int] | None
    sentence: tuple[int, int] | None
    condition: tuple[int, int] | None


@dataclass(frozen=True, kw_only=True)
class Template:
    """A pattern with {sentence}, {condition} or both, and what is pooled."""

    pattern: str
    span: TokenSpan

    def render(self, sentence: str, condition: str) -> Rendered:
        """Fill in the stripped texts. Braces in them are ordinary characters."""
        spans: dict[str, tuple[int, int]] = {}
        values = {"{sentence}": sentence.strip(), "{condition}": condition.strip()}
        text = ""
        for part in re.split(r"(\{sentence\}|\{condition\})", self.pattern):
            if part in values:
                spans[part] = (len(text), len(text) + len(values[part]))
                part = values[part]
            text += part
        pooled = None if self.span is TokenSpan.ALL else spans[f"{{{self.span}}}"]
        return Rendered(text=text, pooled=pooled, sentence=spans.get("{sentence}"), condition=spans.get("{condition}"))


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of a system: of a pair, and of the condition alone (the base, eq. 1; None: there is none)."""

    pair: Template
    base: Template | None

    @classmethod
    def of(cls, pair: str, base: str | None, span: TokenSpan) -> PromptSet:
        """From the patterns of both, and what the pair's pools; the base pools all too, or the condition."""
        of_base = span if span is TokenSpan.ALL else TokenSpan.CONDITION
        alone = None if base is None else Template(pattern=base, span=of_base)
        return cls(pair=Template(pattern=pair, span=span), base=alone)


def prompt_set(
    style: PromptStyle, *, template: str = INSTRUCT, separator: str = " ", span: TokenSpan = TokenSpan.ALL
) -> PromptSet:
    """Templates of a built-in style; `template` applies to cond and sent, `separator` and `span` to the others."""
    if style in PATTERNS:
        pair, base = PATTERNS[style]
        return PromptSet.of(pair.replace("{separator}", separator), base, span)
    instruction, span = INSTRUCTIONS[style]
    pair = template.replace("{instruction}", instruction).replace("{text}", f"{{{span}}}")
    base = template.replace("{instruction}", BASE_INSTRUCTION).replace("{text}", "{condition}")
    return PromptSet.of(pair, base, span)


# -------------------------------------------------------------------------------------- flags, and the file of a prompt


@dataclass(frozen=True, kw_only=True)
class _PromptFile(OwnPrompt):
    """What a file of --prompt holds: an `OwnPrompt`, and the views, of which it is one."""

    views: tuple[str, ...] = (PromptStyle.TEMPLATE,)


def prompt_file(prompt: str | Mapping[str, Any] | None) -> str | None:
    """The file among what a prompt may be; None for a name, and for the contents of a file."""
    return prompt if isinstance(prompt, str) and prompt.lower().endswith(".json") else None


def read_prompt(prompt: str | Mapping[str, Any] | None) -> tuple[str | None, OwnPrompt | None]:
    """The views of a name, a file, or its contents, joined by +, and the template of one's own among them."""
    if prompt is None or (isinstance(prompt, str) and not prompt_file(prompt)):
        if prompt is not None and PromptStyle.TEMPLATE in dict(parse_views(prompt)):
            raise RequestError(f"--prompt: expected a file NAME.json with the template, got {prompt}")
        return prompt, None
    values = json_file(prompt, "--prompt") if isinstance(prompt, str) else dict(prompt)
    try:
        file = from_json(_PromptFile, values)
    except ValueError as error:
        raise RequestError(f"--prompt: {error}{f', in {prompt}' if isinstance(prompt, str) else ''}") from error
    views = "+".join(file.views)
    if PromptStyle.TEMPLATE not in dict(parse_views(views)):
        raise RequestError(f"--prompt: views: expected template among them, got {views}")
    return views, OwnPrompt(template=file.template, base_template=file.base_template, pool=file.pool)
