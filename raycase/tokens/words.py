"""The words of a text: which characters and which of its tokens belong to each.

Shapes: T tokens that cover the text, W words.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tokenizers import Encoding

from raycase.encoder.tokenizer import PromptTokenizer, token_span

FUNCTION_WORDS = frozenset(  # numbers are none: under "number of people" they carry
    """
    a an the this that these those it its itself i me my mine myself we us our ours you your yours he him his himself
    she her hers herself they them their theirs themselves who whom whose which what when where why how there here and
    or but nor so if then than as because while although though until unless since of in on at by for with without from
    to into onto over under up down out off about after before between through during against is am are was were be been
    being do does did done doing have has had having will would shall should can could may might must not no very just
    too also only even ever never again still yet already all any some such each every both either neither more most
    much many other another same own get got gets getting don didn doesn isn wasn won couldn wouldn ll re ve
    """.split()  # noqa: SIM905 a literal list would be 140 lines
)
LETTERS_APART = re.compile("[^\\W\\d]['\u2019][^\\W\\d]")


class Word(NamedTuple):
    """The word `text[start:end]` of a text as it was given, and the sum of the weights of its tokens."""

    start: int
    end: int
    weight: float


@dataclass(frozen=True, kw_only=True)
class TextWords:
    """The words of one text."""

    spans: np.ndarray  # (W, 2) of its characters
    word: np.ndarray  # (T,) the word of each token; -1: none

    def weigh(self, weights_T: np.ndarray) -> list[Word]:
        """The words with their weights, of a truncated text those with one of the first T tokens; the weights of white
        space and punctuation, which belong to no word, are shared among them."""
        word_T = self.word[: len(weights_T)]
        of_words = word_T >= 0
        weight_W = np.bincount(word_T[of_words], weights_T[: len(word_T)][of_words], minlength=len(self.spans))
        weight_W = weight_W * (weights_T.sum() / max(weight_W.sum(), np.finfo(np.float32).tiny))
        weighed = np.unique(word_T[of_words]).tolist()
        return [Word(int(self.spans[w, 0]), int(self.spans[w, 1]), float(weight_W[w])) for w in weighed]


def content(text: str, word: Word) -> str:
    """A word in lower case, without punctuation around it; "" for an English function word, which states nothing of a
    condition, for punctuation alone, and for a letter that an apostrophe leaves: wasn't, l'eau."""
    word_text = re.sub(r"^\W+|\W+$", "", text[word.start : word.end].lower())
    left = len(word_text) == 1 and LETTERS_APART.search(text[max(0, word.start - 2) : word.end + 2])
    return "" if left or re.split("['\u2019]", word_text)[0] in FUNCTION_WORDS else word_text


def words_of(tokenize: PromptTokenizer, texts: Sequence[str]) -> list[TextWords]:
    """The words of each text, as the tokenizer's parts and the white space between them cut it."""
    encodings = tokenize.tokenizer.encode_batch([text.strip() for text in texts])
    return list(map(_words, texts, encodings))


def _words(text: str, encoding: Encoding) -> TextWords:
    stripped, offset = text.strip(), len(text) - len(text.lstrip())
    spans: list[list[int]] = []
    word: list[int] = []
    part = None
    for i in range(*token_span(encoding, 0, len(stripped))):
        first, last = encoding.offsets[i]
        end = spans[-1][1] if spans else -1
        number_goes_on = stripped[first - 1 : first].isdecimal() and stripped[first : first + 1].isdecimal()
        is_new = encoding.word_ids[i] != part and first >= end and not (_is_mark(stripped, first) or number_goes_on)
        if not spans or is_new or any(map(str.isspace, stripped[end : first + 1])):  # which may be in no part
            spans.append([first, last])
        spans[-1][1] = max(spans[-1][1], last)
        part = encoding.word_ids[i]
        word.append(len(spans) - 1)
    trimmed = np.array([_trimmed(stripped, *span) for span in spans], np.int64).reshape(-1, 2)
    there = np.array([_has_words(stripped[first:last]) for first, last in trimmed], bool)
    number = np.where(there, np.cumsum(there) - 1, -1)
    return TextWords(spans=trimmed[there] + offset, word=number[np.array(word, np.int64)])


def _is_mark(text: str, i: int) -> bool:
    """Whether the character is an accent of the one before."""
    return i < len(text) and unicodedata.category(text[i]).startswith("M")


def _has_words(text: str) -> bool:
    """Whether there is more than white space and punctuation."""
    return any(not (character.isspace() or unicodedata.category(character).startswith("P")) for character in text)


def _trimmed(text: str, first: int, last: int) -> tuple[int, int]:
    """The span without white space around it, with the accents of its last character, which a normaliser may drop."""
    part = text[first:last]
    last -= len(part) - len(part.rstrip())
    first = min(last, first + len(part) - len(part.lstrip()))
    while first < last and _is_mark(text, last):
        last += 1
    return first, last
