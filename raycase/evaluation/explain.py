"""The command explain: which words of a text a condition looked at, in bold in a terminal, as figures elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers.utils.logging import disable_progress_bar

from raycase.data.fetch import DEFAULT_MODEL, model_folder
from raycase.data.places import check_paths
from raycase.encoder.words import Word
from raycase.errors import MOST_LABEL, MOST_SHOWN, RequestError, check_ranges, visible
from raycase.search.marks import has_styles, in_bold, in_words, looked_at
from raycase.systems.registry import resolve, stores_words, weighs_words

PLAIN_LABEL = "without a condition"


@dataclass(frozen=True, kw_only=True)
class ExplainJob:
    """Show which words of a text a condition looks at: how much of the text's vector comes from each word, or what the
    router of CSR gives it."""

    text: tuple[str, ...]
    """Sentences."""
    condition: tuple[str, ...] = ()
    """Conditions; each sentence is shown under each."""
    unconditional: bool = False
    """csr: also show what each sentence's own [CLS] attends to, without a router (the paper's Figure 5)."""
    model: str = DEFAULT_MODEL
    """A model that weighs words: a trained folder (condition-pooling, csr), or "condition-pooling:" or "csr:" and the
    name of an encoder."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """A text under a condition, and the weights of its words."""

    text: str
    condition: str | None
    words: list[Word]

    @property
    def label(self) -> str:
        """The condition, or that there is none."""
        return PLAIN_LABEL if self.condition is None else self.condition


def explain(job: ExplainJob) -> dict[str, Any]:
    """Print every text under every condition and return the weights. Raises RequestError."""
    _check_job(job)
    texts = [*dict.fromkeys(job.text)]
    pairs = [(text, condition) for text in texts for condition in dict.fromkeys(job.condition)]
    explained = explain_pairs(job.model, pairs, texts if job.unconditional else [])
    explained.sort(key=lambda each: texts.index(each.text))
    styles = has_styles(sys.stdout)
    for text in texts:
        print(f'\n"{visible(text, MOST_SHOWN)}"')
        for each in (e for e in explained if e.text == text):
            words = in_bold(text, looked_at(each.words), len(text)) if styles else in_words(text, each.words)
            print(f"  {visible(each.label, MOST_LABEL)}: {words}")
    print()
    return {
        "model": job.model,
        "weights": [
            {"text": e.text, "condition": e.condition, "words": [_rounded(word) for word in e.words]} for e in explained
        ],
    }


def _rounded(word: Word) -> dict[str, Any]:
    return word._replace(weight=round(word.weight, 4))._asdict()


def _check_job(job: ExplainJob) -> None:
    check_paths(opens={"--model": model_folder(job.model)})
    check_ranges(job)
    for flag, given in {"--text": job.text, "--condition": job.condition or job.unconditional}.items():
        if not given:
            raise RequestError(f"{flag}: expected at least one, got none")


def explain_pairs(model: str, pairs: Sequence[tuple[str, str]], plain: Sequence[str] = ()) -> list[Explained]:
    """The weights of the words of each text of `plain`, without a condition, and of each (text, condition).

    Raises RequestError for a model that has no such weights, and for texts that cannot be embedded.
    """
    examples = "condition-pooling, as condition-pooling:minilm, or csr in tri form, as csr:minilm"
    expected = f"--model: expected a model that weighs words ({examples}), got {model}"
    try:
        config = resolve(model)
    except RequestError as error:
        raise RequestError(f"{expected}: {error}") from error
    if not weighs_words(config):
        raise RequestError(expected)
    if plain and stores_words(config):
        raise RequestError(f"--unconditional: expected csr, got {model}; without a condition, it weighs no words")
    groups: list[tuple[list[str], list[str] | None]] = [
        ([*plain], None),
        ([text for text, _ in pairs], [condition for _, condition in pairs]),
    ]
    for texts, conditions in groups:
        for row, reason in enumerate(config.prepare(texts, conditions).refused):
            if reason is not None:
                under = "" if conditions is None else f" under {conditions[row]!r}"
                raise RequestError(f"--text: expected words, got {texts[row]!r}{under}: {reason}")
    disable_progress_bar()  # the weights load in a moment
    system = config.load()
    explained = []
    for texts, conditions in groups:
        names: Sequence[str | None] = conditions or [None] * len(texts)
        weights = system.word_weights(texts, conditions) if texts else []
        explained += [
            Explained(text=text, condition=name, words=words)
            for text, name, words in zip(texts, names, weights, strict=True)
        ]
    return explained
