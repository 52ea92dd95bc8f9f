"""Which words of a text a condition looked at, and the text with these words marked."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import TextIO

from raycase.encoder.words import Word
from raycase.errors import visible

HALF = 0.5 - 1e-6  # of the weight; sums of float32 miss it by a little
BOLD, PLAIN = "\033[1m", "\033[0m"
MarkedText = tuple[str, Word | None]  # characters, and the word that they are of


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


def runs(text: str, words: Sequence[Word], most: int | None = None) -> list[list[MarkedText]]:
    """The text without white space, run by run, each in pieces; `most`: so many characters at most, one for a space."""
    word_of = _words_of_characters(text, words)
    found: list[list[MarkedText]] = []
    for match in re.finditer(r"\S+", text):
        end = match.end() if most is None else min(match.end(), match.start() + most)
        if end <= match.start():
            break
        runs_of_words = groupby(range(match.start(), end), key=word_of.__getitem__)  # cut where one begins or ends
        found.append([("".join(text[i] for i in characters), word) for word, characters in runs_of_words])
        if most is not None:
            most -= end - match.start() + 1
    return found


def in_bold(text: str, words: Collection[Word], most: int) -> str:
    """The text in one line for a terminal, with these words in bold: its first `most` characters, or those around the
    heaviest word if it comes later."""
    start, heaviest = 0, max(words, key=lambda word: word.weight, default=None)
    if heaviest and len(" ".join(text[: heaviest.end].split())) > most:
        start = max(0, min(heaviest.start - most // 2, len(text) - most))
        start = text.find(" ", start, heaviest.start) + 1 or start
        words = [Word(w.start - start, w.end - start, w.weight) for w in words if w.start >= start]
        text = text[start:]
    line = " ".join(
        "".join(f"{BOLD}{visible(piece)}{PLAIN}" if word else visible(piece) for piece, word in run)
        for run in runs(text, list(words), most)
    )
    return "…" * (start > 0) + line + ("…" if len(" ".join(text.split())) > most else "")


def in_words(text: str, words: Collection[Word]) -> str:
    """The words with their weights: red 0.31, dress 0.41."""
    return ", ".join(f"{visible(text[word.start : word.end])} {word.weight:.2f}" for word in words)


def has_styles(stream: TextIO) -> bool:
    """Whether what is written there can be bold: a terminal, unless the environment says otherwise (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _words_of_characters(text: str, words: Sequence[Word]) -> list[Word | None]:
    word_of: list[Word | None] = [None] * len(text)
    for word in words:
        word_of[word.start : word.end] = [word] * (word.end - word.start)
    return word_of
