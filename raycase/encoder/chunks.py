"""Long texts, cut at sentence ends into chunks of at most so many tokens of an encoder. Needs no weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from raycase.errors import lacks_package

if TYPE_CHECKING:
    from raycase.encoder.table import EncoderSpec

AT_ONCE = 2**16  # characters that are cut at a time: what a cut takes grows faster than its text
WORDS = 2**17  # whose numbers of tokens are remembered
LINE_BREAK = re.compile(r"(?<!\s)[\r\n\t](?!\s)")  # inside a paragraph it is no better a place to cut than a space

Characters = tuple[int, int]  # [start, end) of a text


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """How texts are cut: tokens: most of a chunk; overlap: most of those that the chunk before has, too."""

    tokens: int
    overlap: int = 0

    def cut(self, spec: EncoderSpec, text: str) -> Iterator[Characters]:
        """The chunks of a text, in order: each of as many paragraphs, sentences or words as fit, the first of these of
        which one fits. What is in no chunk is white space, or nothing that can be seen.

        Raises RequestError without the package semantic-text-splitter.
        """
        by_words, exactly = _counts(spec)
        for start, end in self._cut(LINE_BREAK.sub(" ", text), by_words):
            part = text[start:end]
            fits = exactly(part) <= self.tokens  # else the encoder has tokens that go over spaces
            for a, b in [(0, len(part))] if fits else self._cut(part, exactly):
                if any(map(str.isprintable, part[a:b].replace(" ", ""))):
                    yield start + a, start + b

    def _cut(self, text: str, count: Callable[[str], int]) -> Iterator[Characters]:
        try:
            from semantic_text_splitter import TextSplitter
        except ImportError as error:
            raise lacks_package("semantic-text-splitter", "documents", "for --chunk") from error
        splitter = TextSplitter.from_callback(count, self.tokens, overlap=self.overlap)
        start, most = 0, AT_ONCE
        while start < len(text):
            found = splitter.chunk_indices(text[start : start + most])
            chunks = [(start + at, start + at + len(piece)) for at, piece in found]
            if start + most >= len(text):
                yield from chunks
                return
            if len(chunks) > 1:
                yield from chunks[:-1]
                start, most = chunks[-1][0], AT_ONCE  # the last one may go on behind the part
            else:
                most *= 2


@lru_cache(maxsize=8)
def _counts(spec: EncoderSpec) -> tuple[Callable[[str], int], Callable[[str], int]]:
    """How many tokens a text has: by its words, which is ten times as fast, and exactly."""
    from raycase.encoder.sources import load_tokenizer  # takes seconds, which others than readers need not wait for

    tokenizer = load_tokenizer(spec).tokenizer

    def exactly(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    of_word = lru_cache(WORDS)(lambda word: exactly(f" {word}"))
    return lambda text: sum(map(of_word, text.split())), exactly
