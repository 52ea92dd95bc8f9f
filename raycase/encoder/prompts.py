"""Prompt templates and the span of the text in them (CASE, section 3.1 and section 4)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from raycase.errors import RequestError

INSTRUCT = "Instruct: {instruction}\nQuery: {text}"

COND_INSTRUCTION = "Retrieve semantically similar texts to a given Condition, given the Sentence : {sentence}"
SENT_INSTRUCTION = "Retrieve semantically similar texts to a given Sentence, given the Condition : {condition}"
BASE_INSTRUCTION = "Retrieve semantically similar texts"


class PromptStyle(StrEnum):
    """How sentence and condition become one text."""

    COND = "cond"  # f(c; I(s))
    SENT = "sent"  # f(s; I(c))
    CONCAT_CS = "concat-cs"  # CONC(c + s)
    CONCAT_SC = "concat-sc"  # CONC(s + c)
    QUESTION = "question"  # not in the paper: CONC(s + c) with c as a question
    STATEMENT = "statement"  # not in the paper: CONC(s + c) with c as the beginning of a statement


INSTRUCTED = (PromptStyle.COND, PromptStyle.SENT)
PATTERNS = {  # style -> pattern of the pair, pattern of the condition alone
    PromptStyle.CONCAT_CS: ("{condition}{separator}{sentence}", "{condition}"),
    PromptStyle.CONCAT_SC: ("{sentence}{separator}{condition}", "{condition}"),
    PromptStyle.QUESTION: ("{sentence} What is the {condition}?", "What is the {condition}?"),
    PromptStyle.STATEMENT: ("{sentence} The {condition} is", "The {condition} is"),
}


class Span(StrEnum):
    """Which tokens are pooled."""

    SENTENCE = "sentence"
    CONDITION = "condition"
    ALL = "all"  # special tokens too, as in the published code of mean-pooled encoders


def parse_views(prompt: str) -> list[tuple[PromptStyle, Span | None]]:
    """The views of `a+b`: the style of each, and the span that a concatenation pools (`concat-sc:sentence`), or None.

    Raises RequestError for an unknown style or span, and for a repeated view.
    """
    views: list[tuple[PromptStyle, Span | None]] = []
    for view in prompt.split("+"):
        style, colon, span = view.partition(":")
        if style not in list(PromptStyle):
            raise RequestError(f"--prompt: expected {', '.join(PromptStyle)}, or several joined by +, got {view!r}")
        if colon and (span not in list(Span) or style in INSTRUCTED):
            wanted = f"{', '.join(PATTERNS)} with :{', :'.join(Span)}"
            raise RequestError(f"--prompt: expected a span for {wanted}, got {view!r}")
        views.append((PromptStyle(style), Span(span) if colon else None))
    if len(set(views)) < len(views):
        raise RequestError(f"--prompt: expected each view once, got {prompt!r}")
    return views


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A complete prompt with spans of characters: `pooled` (None: every token), and both texts (None: absent)."""

    text: str
    pooled: tuple[int, int] | None
    sentence: tuple[int, int] | None
    condition: tuple[int, int] | None

    @property
    def texts(self) -> list[tuple[int, int]]:
        """The spans of the texts in the prompt, one or two."""
        return [span for span in (self.sentence, self.condition) if span is not None]


@dataclass(frozen=True, kw_only=True)
class Template:
    """A pattern with {sentence}, {condition} or both, and what is pooled."""

    pattern: str
    span: Span

    def render(self, sentence: str, condition: str) -> Rendered:
        """Fill in the stripped texts. Braces in them are ordinary characters."""
        spans: dict[str, tuple[int, int]] = {}
        values = {"{sentence}": sentence.strip(), "{condition}": condition.strip()}
        text = ""
        for part in _PLACEHOLDER.split(self.pattern):
            if part in values:
                spans[part] = (len(text), len(text) + len(values[part]))
                part = values[part]
            text += part
        pooled = None if self.span is Span.ALL else spans[f"{{{self.span}}}"]
        return Rendered(text=text, pooled=pooled, sentence=spans.get("{sentence}"), condition=spans.get("{condition}"))


_PLACEHOLDER = re.compile(r"(\{sentence\}|\{condition\})")


@dataclass(frozen=True, kw_only=True)
class PromptSet:
    """The prompts of a system: of a pair, of the condition alone (the base, eq. 1), of the sentence alone."""

    pair: Template
    base: Template
    plain: Template


def prompt_set(
    style: PromptStyle, *, template: str = INSTRUCT, separator: str = " ", span: Span = Span.ALL
) -> PromptSet:
    """Templates of a prompt style; `template` applies to cond and sent, `separator` and `span` to the others."""

    def instruct(instruction: str, text: str) -> str:
        return template.replace("{instruction}", instruction).replace("{text}", text)

    plain = Template(pattern="{sentence}", span=Span.ALL)
    if style in INSTRUCTED:
        base = Template(pattern=instruct(BASE_INSTRUCTION, "{condition}"), span=Span.CONDITION)
        if style is PromptStyle.COND:
            pair = Template(pattern=instruct(COND_INSTRUCTION, "{condition}"), span=Span.CONDITION)
        else:
            pair = Template(pattern=instruct(SENT_INSTRUCTION, "{sentence}"), span=Span.SENTENCE)
        return PromptSet(pair=pair, base=base, plain=plain)
    pair_pattern, base_pattern = PATTERNS[style]
    return PromptSet(
        pair=Template(pattern=pair_pattern.replace("{separator}", separator), span=span),
        base=Template(pattern=base_pattern, span=Span.ALL if span is Span.ALL else Span.CONDITION),
        plain=plain,
    )
