"""What the clusters of an index's rows are about: the words that carry each, and the rows nearest to its centre.

Shapes: N rows, K clusters.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from raycase.encoder.words import Word
from raycase.explore.facets import Clusters
from raycase.index.index import Index
from raycase.index.shown import weigh_answers, words_of_row
from raycase.io.schema import CONDITION, ID

NEAREST = 100  # rows of a cluster among which different texts are looked for
WEIGHED = 1000  # texts whose words are weighed, of all clusters together: about 400 a second on 2 CPU cores
WEIGHED_OF_EACH = 6, 100  # but at least and at most so many of each cluster
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


class CarriedWord(NamedTuple):
    """A word of a cluster, in lower case, and its score."""

    word: str
    score: float


class Example(NamedTuple):
    """A row near the centre of a cluster."""

    id: Any
    text: str | None
    cosine: float


def nearest_examples(clusters: Clusters, index: Index, text: str | None, count: int) -> list[list[Example]]:
    """The rows nearest to the centre of each cluster, K lists: different texts of the column `text`; None: any rows."""
    found = []
    for rows in clusters.members():
        nearest = rows[: NEAREST if text else count]
        taken = index.dataset.take(clusters.offsets[nearest], columns=[ID, text] if text else [ID])
        texts = taken[text].to_pylist() if text else [None] * len(nearest)
        examples: dict[Any, Example] = {}
        for row_id, words, cosine in zip(taken[ID].to_pylist(), texts, clusters.cosine[nearest].tolist(), strict=True):
            examples.setdefault(words if text else row_id, Example(row_id, words, cosine))
        found.append(list(examples.values())[:count])
    return found


def carrying_words(
    clusters: Clusters, index: Index, condition: str | None, text: str, count: int, seed: int = 0
) -> list[list[CarriedWord]]:
    """The words that carry each cluster, K lists, best first: of a sample of its texts, half of them the nearest to its
    centre and half any others."""
    rows = near_and_far(clusters.members(), seed)
    taken = index.dataset.take(clusters.offsets[np.concatenate(rows)], columns=[text])[text]
    weighed = weighed_texts(taken.to_pylist(), index, condition)
    ends = np.cumsum([len(of_cluster) for of_cluster in rows])
    return score_words(
        [weighed[end - len(of_cluster) : end] for of_cluster, end in zip(rows, ends, strict=True)], count
    )


def weighed_texts(texts: Sequence[str | None], index: Index, condition: str | None) -> list[tuple[str, list[Word]]]:
    """Each text with the weights of its words under a condition; without words where there is none."""
    answers = pa.table(
        {CONDITION: pa.array([condition] * len(texts), pa.string()), "text": pa.array(texts, pa.string())}
    )
    weights = weigh_answers(answers, index, "text").to_pylist()
    return [(text or "", words_of_row(words)) for text, words in zip(texts, weights, strict=True)]


def score_words(clusters: Iterable[Iterable[tuple[str, list[Word]]]], count: int) -> list[list[CarriedWord]]:
    """The words that carry each cluster of weighed texts, best first, by class-based TF-IDF (BERTopic, Grootendorst,
    2022, arXiv:2203.05794, eq. 4) on the weights that the condition gives the words, instead of counts:

        W(t, c) = tf(t, c) * log(1 + A / f(t))

    tf: the word's share of the weight of the cluster, f: the sum of its shares of all clusters, A: the mean weight of a
    cluster, which is 1 here. A word in a single text of the cluster comes after those in several. English function
    words carry none.
    """
    shares: list[dict[str, float]] = []
    counts: list[Counter[str]] = []
    everywhere: defaultdict[str, float] = defaultdict(float)
    for texts in clusters:
        weight_of, texts_with = _words_of(texts)
        total = sum(weight_of.values())
        shares.append({word: weight / total for word, weight in weight_of.items() if weight > 0})
        counts.append(texts_with)
        for word, share in shares[-1].items():
            everywhere[word] += share
    found = []
    for shares_of, texts_with in zip(shares, counts, strict=True):
        scored = [CarriedWord(word, share * math.log(1 + 1 / everywhere[word])) for word, share in shares_of.items()]
        found.append(sorted(scored, key=lambda each: (texts_with[each.word] < 2, -each.score, each.word))[:count])
    return found


def _words_of(texts: Iterable[tuple[str, list[Word]]]) -> tuple[dict[str, float], Counter[str]]:
    """The weight of each word, lower-cased and without punctuation around it, and the number of texts that have it."""
    weight_of: defaultdict[str, float] = defaultdict(float)
    texts_with: Counter[str] = Counter()
    for text, words in texts:
        plain = [_plain(text, word) for word in words]
        for name, word in zip(plain, words, strict=True):
            weight_of[name] += word.weight
        texts_with.update(set(plain))
    weight_of.pop("", None)  # punctuation alone
    carrying = {n: w for n, w in weight_of.items() if re.split("['\u2019]", n)[0] not in FUNCTION_WORDS}
    return carrying, texts_with


def _plain(text: str, word: Word) -> str:
    """In lower case, without punctuation around it; nothing of a letter that an apostrophe leaves: wasn't, l'eau."""
    plain = re.sub(r"^\W+|\W+$", "", text[word.start : word.end].lower())
    left = len(plain) == 1 and LETTERS_APART.search(text[max(0, word.start - 2) : word.end + 2])
    return "" if left else plain


def near_and_far(members: Sequence[np.ndarray], seed: int) -> list[np.ndarray]:
    """A sample of the rows of each cluster, which are in the order of their distance: half of it the nearest, half any
    others."""
    least, most = WEIGHED_OF_EACH
    of_each, draw = max(least, min(most, WEIGHED // len(members))), np.random.default_rng(seed)
    chosen = []
    for rows in members:
        near, far = rows[: of_each // 2], rows[of_each // 2 :]
        chosen.append(np.concatenate([near, draw.permutation(far)[: of_each - len(near)]]))
    return chosen
