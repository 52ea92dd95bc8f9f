"""Words beside vectors: Lance's inverted index of the texts, by which words must hold, or rank rows by BM25. Words are
in lower case, without accents and stemmed in a language."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.answers import ASKED, PARTS, QUERY, TEXT_RANK, VECTOR_RANK, answer_table
from raycase.index.filters import Filter
from raycase.index.lance_files import OFFSET, offsets_of, returned_columns, sql_and, sql_in
from raycase.io.schema import CONDITION, ID, RANK, SCORE, TEXT
from raycase.names import Language

if TYPE_CHECKING:
    from lance import LanceDataset

    from raycase.index.rows import ConditionVectors
    from raycase.index.weighted_search import Question

RRF_K = 60  # Cormack et al., 2009, Reciprocal Rank Fusion outperforms Condorcet and individual Rank Learning Methods
LEAST_FUSED = 10  # ranks by each; many more, and rows far down in both push out the nearest (results/hybrid.md)


def update_text_index(dataset: LanceDataset, language: Language | None, text: str | None) -> bool:
    """Index the column of texts, that which was embedded (text), `text`, or the only kept one of strings, unless it is
    indexed in this language (None: in any); returns whether it was not."""
    strings = [name for name in returned_columns(dataset) if pa.types.is_string(dataset.schema.field(name).type)]
    known = [name for name in (text, TEXT) if name in strings]
    texts = known[:1] or [name for name in strings if name != ID]
    if len(texts) != 1:
        kept = ", ".join(returned_columns(dataset))
        raise RequestError(f"--text-index: expected a kept column {TEXT!r}, or only one of strings, got {kept}")
    stems = {"stem": language != "none", "language": "English" if language in (None, "none") else language}
    expected: dict[str, Any] = {} if language is None else stems
    if any(expected.items() <= index.details.items() for index in _text_indices(dataset)):
        return False
    dataset.create_scalar_index(texts[0], "INVERTED", remove_stop_words=False, max_token_length=None, **stems)
    return True


def _text_indices(dataset: LanceDataset) -> list[Any]:
    return [index for index in dataset.describe_indices() if index.type_url.endswith("InvertedIndexDetails")]


def _hits(dataset: LanceDataset, words: str, where: str | None, *, limit: int | None, every: bool) -> pa.Table:
    """Id, offset and BM25 score of the rows with every word, or with any."""
    from lance.query import FullTextOperator, MatchQuery

    if not (indices := _text_indices(dataset)):
        flag = "match" if every else "hybrid"
        raise RequestError(f"{flag}: expected an index of words, got none; add it with --text-index of `raycase index`")
    operator = FullTextOperator.AND if every else FullTextOperator.OR
    query = MatchQuery(words, indices[0].field_names[0], operator=operator)
    limit = None if limit is None else min(limit, dataset.count_rows())  # Lance takes no larger one than 64 bits hold
    options = {"filter": where, "prefilter": where is not None, "limit": limit}
    return dataset.scanner(columns=[ID, OFFSET, "_score"], full_text_query=query, **options).to_table()


def matching(dataset: LanceDataset, words: str, where: Filter | None) -> Filter:
    """The filter for the ids whose texts have every word, beside another one."""
    if not any(map(str.isalnum, words)):  # as Lance cuts texts into words
        raise RequestError(f"match: expected words, got {visible(repr(words), MOST_LABEL)}")
    ids = sql_in(ID, _hits(dataset, words, where, limit=None, every=True)[ID].unique().to_pylist())
    return Filter(f"({sql_and(ids, where)})")


def fused_ranks(k: int) -> int:
    """How many ranks by each are fused for k answers."""
    return max(LEAST_FUSED, k)


def fused(vectors: ConditionVectors, answers: pa.Table, question: Question, k: int) -> pa.Table:
    """The k best answers to each query by reciprocal rank fusion (Cormack et al., 2009):

        score = 1 / (60 + rank by vectors) + 1 / (60 + rank by BM25 of any of the query's words)

    A rank that an id lacks adds nothing. answers: `fused_ranks` of them by vectors.
    """
    dataset, tables = vectors.dataset, [_fused(answers.slice(0, 0), {}, k)]
    for query in answers[QUERY].unique().to_pylist():
        own = answers.filter(pc.equal(answers[QUERY], query))
        first = own.slice(0, 1).to_pylist()[0]
        searched = [first[CONDITION]]
        if question.weighted:
            searched = [part[CONDITION] for part in first[PARTS] if part["weight"]]
        passing = sql_and(vectors.rows_under(searched), question.where)
        copies = len(vectors.metadata.conditions) + 1  # rows that an id may have
        hits = _hits(dataset, question.sentences[query], passing, limit=fused_ranks(k) * copies, every=False)
        hits = hits.take(np.lexsort((offsets_of(hits), -hits["_score"].to_numpy())))
        offset_of = dict(zip(hits[ID].to_pylist()[::-1], offsets_of(hits)[::-1].tolist(), strict=True))
        by_text = {one: rank for rank, one in enumerate(hits[ID].unique().to_pylist()[: fused_ranks(k)], 1)}
        others = np.array(sorted(offset_of[one] for one in by_text.keys() - {*own[ID].to_pylist()}), np.int64)
        pooled = np.any([vectors.is_pooled(one, others) for one in searched], axis=0)
        pooled &= pc.is_null(dataset.take(others, columns=[CONDITION])[CONDITION]).to_numpy()
        asked, none = (first[ASKED], first[CONDITION]), np.zeros(len(others))
        rows = answer_table(dataset, np.full(len(others), query), *asked, pooled, none, none, others)
        rows = rows.drop_columns([RANK, SCORE])  # by vectors they have none
        tables.append(_fused(pa.concat_tables([own, rows], promote_options="default"), by_text, k))
    return pa.concat_tables(tables)


def _fused(answers: pa.Table, by_text: Mapping[Any, int], k: int) -> pa.Table:
    """The k best of the answers to a query, whose `rank` is that by vectors, in the order of their fused scores."""
    by_words = pa.array([by_text.get(one) for one in answers[ID].to_pylist()], pa.int32())
    ranks = {VECTOR_RANK: answers[RANK], TEXT_RANK: by_words}
    scores_N = np.sum(
        [np.nan_to_num(1 / (RRF_K + pc.cast(of, "double").to_numpy(zero_copy_only=False))) for of in ranks.values()],
        axis=0,
    )
    best_k = np.argsort(-scores_N, stable=True)[:k]
    for name, own in ranks.items():
        answers = answers.append_column(name, own)
    names = answers.column_names
    answers = answers.set_column(names.index(SCORE), SCORE, pa.array(scores_N, pa.float32())).take(best_k)
    return answers.set_column(names.index(RANK), RANK, pa.array(range(1, len(best_k) + 1), pa.int32()))
