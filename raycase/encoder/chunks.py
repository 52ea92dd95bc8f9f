"""Long texts, cut at sentence ends into chunks of at most so many tokens of an encoder. Needs no weights.

Shapes: K chunks, of all documents in turn.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from raycase.encoder.prompts import Rendered, Template
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import needs_package

AT_ONCE = 2**16  # characters that are cut at a time: what a cut takes grows faster than its text
WORDS = 2**17  # whose numbers of tokens are remembered
LINE_BREAK = re.compile(r"(?<!\s)[\r\n\t](?!\s)")  # inside a paragraph it is no better a place to cut than a space

Characters = tuple[int, int]  # [start, end) of a text


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """How texts are cut."""

    tokens: int  # most of a chunk
    overlap: int = 0  # most of those that the chunk before has, too
    late: bool = False  # the encoder reads chunks beside each other (`in_context`)

    def cut(self, spec: EncoderSpec, text: str) -> Iterator[Characters]:
        """The chunks of a text, in order: each of as many paragraphs, sentences or words as fit, the first of these of
        which one fits. What is in no chunk is white space, or nothing that can be seen."""
        by_words, exactly = _counts(spec)
        for start, end in self._cut(LINE_BREAK.sub(" ", text), by_words):
            part = text[start:end]
            fits = exactly(part) <= self.tokens  # else the encoder has tokens that go over spaces
            for a, b in [(0, len(part))] if fits else self._cut(part, exactly):
                if any(map(str.isprintable, part[a:b].replace(" ", ""))):
                    yield start + a, start + b

    def _cut(self, text: str, count: Callable[[str], int]) -> Iterator[Characters]:
        with needs_package("semantic-text-splitter", "documents", "for --chunk"):
            from semantic_text_splitter import TextSplitter
        splitter = TextSplitter.from_callback(count, self.tokens, overlap=self.overlap)
        start, most = 0, AT_ONCE
        while start < len(text):
            found = splitter.chunk_indices(text[start : start + most])
            chunks = [(start + at, start + at + len(chunk)) for at, chunk in found]
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


def in_context(
    spec: EncoderSpec, template: Template, documents: Iterable[tuple[str, Sequence[Characters]]], alone: TokenBatch
) -> TokenBatch:
    """Late chunking (Guenther et al., 2024, arXiv:2409.04701): the prompts of K chunks, each with as many of its
    document beside it as the encoder reads, of which its own tokens are pooled.

    alone: the prompts of the chunks by themselves. One that is refused, or has no others beside it, stays so.
    """
    from raycase.encoder.sources import load_tokenizer

    tokenizer = load_tokenizer(spec)
    count_K = (alone.end - alone.start)[:, -1]
    room = tokenizer.max_tokens - int((alone.lengths - count_K).max(initial=0))
    prompts: list[list[Rendered]] = []
    counts = iter(count_K.tolist())
    for text, spans in documents:
        groups: list[list[Characters]] = []
        used = 0
        for span in spans:
            used += (count := next(counts))
            if not groups or used > room:
                groups.append([])
                used = count
            groups[-1].append(span)
        for group in groups:
            start, end = group[0][0], max(end for _, end in group)
            prompt = template.render(text[start:end], "")
            assert prompt.sentence is not None
            shift = prompt.sentence[0] - start  # no chunk begins with white space
            prompts.append([replace(prompt, pooled=(a + shift, b + shift)) for a, b in group])
    found = [tokens for views in tokenizer.views(prompts) for tokens in views]
    beside, chunk_K = TokenBatch.of(*[found] * alone.start.shape[1]), np.arange(len(found))
    size = np.array([len(views) for views in prompts], np.int64)
    prompt_K = np.repeat(np.arange(len(prompts)), size)
    stays_K = (size[prompt_K] == 1) | (beside.refused >= 0) | beside.truncated | (beside.end[:, -1] == 0)
    stays_K |= alone.refused >= 0
    chosen = TokenBatch.concat(alone, beside).take(np.where(stays_K, chunk_K, len(found) + chunk_K))
    return replace(chosen, shared=np.where(stays_K, len(prompts) + chunk_K, prompt_K))
