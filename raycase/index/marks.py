"""Which words of a text a condition looked at, and the text with these words marked."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TextIO

from raycase.encoder.words import Word
from raycase.errors import visible

HALF = 0.5 - 1e-6  # of the weight; sums of float32 miss it by a little
BOLD, PLAIN = "\033[1m", "\033[0m"


def looked_at(words: Sequence[Word]) -> list[Word]:
    """The fewest words that hold at least half of the weight, in the order of the text; of equal ones the first."""
    total, held = sum(word.weight for word in words), 0.0
    chosen: list[Word] = []
    for word in sorted(words, key=lambda word: -word.weight):
        if held >= HALF * total:
            break
        chosen.append(word)
        held += word.weight
    return sorted(chosen)


def in_bold(text: str, words: Collection[Word], most: int) -> str:
    """The text in a line, these words in bold: `most` characters from its start, or around a later heaviest word."""
    start, heaviest = 0, max(words, key=lambda word: word.weight, default=None)
    if heaviest and heaviest.end > most:
        start = max(0, min(heaviest.start - most // 2, len(text) - most))
        start = text.find(" ", start, heaviest.start) + 1 or start
    at, end, pieces = start, start + most, []
    for word in sorted(words):
        if at <= word.start < end:
            pieces += [text[at : word.start], BOLD, text[word.start : min(word.end, end)], PLAIN]
            at = min(word.end, end)
    shown = "".join(piece if piece in (BOLD, PLAIN) else visible(piece) for piece in [*pieces, text[at:end]])
    return "…" * (start > 0) + " ".join(shown.split()) + "…" * (len(text.rstrip()) > end)


def in_words(text: str, words: Collection[Word]) -> str:
    """The words with their weights: red 0.31, dress 0.41."""
    return ", ".join(f"{visible(text[word.start : word.end])} {word.weight:.2f}" for word in words)


def has_styles(stream: TextIO) -> bool:
    """Whether what is written there can be bold: a terminal, unless the environment says otherwise (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
