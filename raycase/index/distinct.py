"""Answers of which each has another value in a column: documents by their best chunks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.index.answers import returned_columns
from raycase.io.schema import QUERY, RANK

if TYPE_CHECKING:
    from lance import LanceDataset

LOOKED_AT = 4  # times k: answers among which k values are looked for, and as many times more after each look


def check_distinct(dataset: LanceDataset, per: str) -> None:
    """Raise RequestError for another column than one of texts or whole numbers that an index keeps."""
    known = {name: dataset.schema.field(name).type for name in returned_columns(dataset)}
    if per not in known or not (pa.types.is_string(known[per]) or pa.types.is_integer(known[per])):
        raise RequestError(
            f"per: expected a column of texts or whole numbers among those kept ({', '.join(known)}), got "
            f"{visible(repr(per), MOST_LABEL)}; `raycase embed --chunk` writes the column document"
        )


def distinct_answers(
    search: Callable[..., pa.Table],
    sentences: Sequence[str],
    conditions: Sequence[str] | Mapping[str, Any] | None,
    k: int,
    per: str,
) -> pa.Table:
    """The best answer of each of the first k values of a column, to each sentence, with new ranks. Answers with null
    count each by itself.

    search: `Index.search` of some of the sentences, which is asked for more and more answers until there are k values.
    """
    left, most = list(range(len(sentences))), LOOKED_AT * k
    found: list[pa.Table] = []
    while left or not found:
        asked = [conditions[i] for i in left] if isinstance(conditions, Sequence) else conditions
        table = search([sentences[i] for i in left], asked, most).sort_by([(QUERY, "ascending"), (RANK, "ascending")])
        query_H, values = table[QUERY].to_numpy(), table[per].to_pylist()
        seen: set[tuple[int, object]] = set()
        rank_H = np.zeros(len(table), np.int32)
        ranks = [0] * len(left)
        for number, (query, value) in enumerate(zip(query_H.tolist(), values, strict=True)):
            if ranks[query] < k and (value is None or (query, value) not in seen):
                seen.add((query, value))
                ranks[query] += 1
                rank_H[number] = ranks[query]
        answers_of = np.bincount(query_H, minlength=len(left))
        more = np.array([count == most and rank < k for count, rank in zip(answers_of, ranks, strict=True)], bool)
        row = np.flatnonzero((rank_H > 0) & ~more[query_H])
        done = table.take(row)
        numbers = pa.array(np.array(left, np.int64)[query_H[row]])
        for name, column in ((QUERY, numbers), (RANK, pa.array(rank_H[row]))):
            done = done.set_column(done.schema.get_field_index(name), name, column)
        found.append(done)
        left, most = [number for number, again in zip(left, more, strict=True) if again], LOOKED_AT * most
    return pa.concat_tables(found, promote_options="default").sort_by([(QUERY, "ascending"), (RANK, "ascending")])
