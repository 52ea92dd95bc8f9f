"""The answers of a search: as a table, each value of a column once, and the words of each that the condition looked at.

Shapes: Q queries, k neighbours, H rows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.lance_files import returned_columns
from raycase.io.schema import CONDITION, RANK, SCORE

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.models.fine_tuned import Scorer
    from raycase.tokens.words import Word

# names of columns; `raycase.io.schema.RESERVED_COLUMNS` and `OF_ANSWERS` keep them off the input's
QUERY, ASKED = "query", "asked"
POOLED = "pooled"  # whether the condition was pooled from stored tokens, not embedded in advance
COSINE = "cosine"  # the score before re-ranking
STATED = "stated"  # where the model knows: probability that the text states something of the condition
PARTS = "parts"  # under weighted conditions: the cosine under each
VECTOR_RANK, TEXT_RANK = "vector_rank", "text_rank"  # by vectors and by words
WEIGHTS = "weights"  # where it is asked for: what the condition looked at
LOOKED_AT = 4  # times k: answers among which k values are looked for, and as many times more after each look
HALF = 0.5 - 1e-6  # of the weight; sums of float32 miss it by a little
BOLD, REGULAR = "\033[1m", "\033[0m"
SHOWN_CHARACTERS = 100  # of a text in a table


def answer_table(
    dataset: LanceDataset,
    query_H: np.ndarray,
    asked: str | None,
    condition: str | None,
    pooled_H: np.ndarray,
    rank_H: np.ndarray,
    scores_H: np.ndarray,
    offsets_H: np.ndarray,
    **more: Any,
) -> pa.Table:
    """The rows at these offsets as answers to what was `asked`, with id and kept columns, and `more` columns."""
    names = returned_columns(dataset)
    schema = pa.schema([dataset.schema.field(name) for name in names])
    rows = dataset.take(offsets_H, columns=names) if len(offsets_H) else schema.empty_table()
    columns: dict[str, Any] = {
        QUERY: pa.array(query_H, pa.int64()),
        ASKED: pa.array([asked] * len(query_H), pa.string()),
        CONDITION: pa.array([condition] * len(query_H), pa.string()),
        POOLED: pa.array(pooled_H),
        RANK: pa.array(rank_H + 1, pa.int32()),
        SCORE: pa.array(scores_H, pa.float32()),
    }
    return pa.table(columns | more | {name: rows[name] for name in names})


def distinct_answers(
    dataset: LanceDataset, search: Callable[[Sequence[int], int], pa.Table], queries: Sequence[int], k: int, per: str
) -> pa.Table:
    """The best answer of each of the first k values of a column, to each query, with new ranks; each null counts.

    search: gives so many answers to some queries, best first; it is asked for more and more until there are k values.
    """
    known = {name: dataset.schema.field(name).type for name in returned_columns(dataset)}
    if per not in known or not (pa.types.is_string(known[per]) or pa.types.is_integer(known[per])):
        raise RequestError(
            f"per: expected a column of texts or whole numbers among those kept ({', '.join(known)}), got "
            f"{visible(repr(per), MOST_LABEL)}; --chunk of `raycase embed` writes the column document"
        )
    import pandas as pd  # takes time to import

    most = LOOKED_AT * k
    found: list[pa.Table] = []
    while queries or not found:
        table = search(queries, most)
        value_H = table[per].combine_chunks().dictionary_encode().indices.fill_null(-1).to_numpy()
        query_H = table[QUERY].to_pandas()
        is_new_H = ~pd.DataFrame({QUERY: query_H, per: value_H}).duplicated() | (value_H < 0)
        rank_H = is_new_H.groupby(query_H).cumsum()
        of_query = rank_H.groupby(query_H).agg(["size", "max"])
        queries = of_query.index[(of_query["size"] == most) & (of_query["max"] < k)].tolist()
        done_H = (is_new_H & (rank_H <= k) & ~query_H.isin(queries)).to_numpy()
        ranked = table.set_column(table.schema.get_field_index(RANK), RANK, pa.array(rank_H, pa.int32()))
        found.append(ranked.filter(pa.array(done_H)))
        most *= LOOKED_AT
    return pa.concat_tables(found, promote_options="default").sort_by([(QUERY, "ascending"), (RANK, "ascending")])


def rerank(answers: pa.Table, sentences: Sequence[str], scorer: Scorer, *, text: str, k: int) -> pa.Table:
    """The first k answers of each query by the scorer's similarity; ties keep their order.

    `answers` is a table of `Index.search` with the kept column `text`, `sentences` are its queries. The column `score`
    becomes the scorer's, and the search's score becomes a new last column, `cosine`. Each distinct pair is scored once.
    An answer without words has no score and comes last. Raises RequestError.
    """
    from raycase.models.configs import score_pairs

    query_N = answers[QUERY].to_numpy()
    asked = answers[ASKED].to_pylist() if scorer.config.known_conditions is None else None
    firsts, seconds = [sentences[query] for query in query_N], [text or "" for text in answers[text].to_pylist()]
    prepared = scorer.config.prepare_pairs(firsts, seconds, asked)
    scores_N = score_pairs(scorer, prepared).vectors[:, 0].astype(np.float32)
    descending_N = np.where(np.isnan(scores_N), np.inf, -scores_N)
    order_N = np.lexsort((answers[RANK].to_numpy(), descending_N, query_N))
    rank_N = np.arange(len(order_N)) - np.searchsorted(query_N[order_N], query_N[order_N])
    names = answers.column_names
    scores = pa.array(scores_N, answers[SCORE].type, from_pandas=True)  # NaN becomes null
    reranked = answers.set_column(names.index(SCORE), SCORE, scores).append_column(COSINE, answers[SCORE])
    ranks = pa.array(rank_N + 1, type=answers[RANK].type)
    reranked = reranked.take(order_N).set_column(names.index(RANK), RANK, ranks)
    return reranked.filter(pa.array(rank_N < k))


# ---------------------------------------------------------------------------------------------- their words


def looked_at(text: str, words: Iterable[Word]) -> list[Word]:
    """The fewest words that hold half of the weight of all but English function words, in the order of the text."""
    from raycase.tokens.words import content  # with the tokenizers, which building an index needs not

    words = [word for word in words if content(text, word) or not re.search(r"\w", text[word.start : word.end])]
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
    at, end, shown = start, start + most, []
    for word in sorted(words):
        if at <= word.start < end:
            shown += [text[at : word.start], BOLD, text[word.start : min(word.end, end)], REGULAR]
            at = min(word.end, end)
    line = "".join(each if each in (BOLD, REGULAR) else visible(each) for each in [*shown, text[at:end]])
    return "…" * (start > 0) + " ".join(line.split()) + "…" * (len(text.rstrip()) > end)


def in_words(text: str, words: Collection[Word]) -> str:
    """The words with their weights: red 0.31, dress 0.41."""
    return ", ".join(f"{visible(text[word.start : word.end])} {word.weight:.2f}" for word in words)


def has_styles(stream: TextIO) -> bool:
    """Whether what is written there can be bold: a terminal, unless the environment forbids it (no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
