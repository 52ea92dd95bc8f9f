"""Clusters that are kept in a file, for rows that come later: their centres, names and reach, and what made them.

Shapes: K clusters, D dimensions.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import TypedDict

from raycase.errors import MOST_LABEL, check_problems, normal_words, visible
from raycase.index.index import Index
from raycase.io.json_values import from_json, loads
from raycase.io.schema import embedding_array, embedding_numbers, parquet_table
from raycase.io.source import readable
from raycase.io.storage import fingerprint, locate

FLAG, RECORD = "--groups", b"raycase_groups"
CENTRE, MEAN, LEAST = "centre", "mean_cosine", "least_cosine"  # columns
MOST_CLUSTERS, MOST_BYTES = 10_000, 2**30  # of a file that is read
ROUNDED = 1e-3  # by which the length of a centre, or a cosine, may differ
WORD = pa.struct([("word", pa.string()), ("score", pa.float32())])
NAMES = {"words": pa.list_(WORD), "theme": pa.int32(), "theme_words": pa.list_(WORD)}


class MadeBy(TypedDict):
    """What made clusters, the model and what it was taught of the condition as hashes. stated: whether rows that state
    nothing of the condition stand apart."""

    model: str
    name: str
    condition: str
    taught: str | None
    stated: bool


def made_by(index: Index, condition: str | None, *, stated: bool) -> MadeBy:
    """What makes clusters of this index's rows now."""
    own, name = index.metadata, str(condition)
    taught = fingerprint(own.taught[name]) if name in own.taught else None
    return MadeBy(model=fingerprint(own.model), name=own.name, condition=name, taught=taught, stated=stated)


@dataclass(frozen=True, kw_only=True)
class Groups:
    """Clusters of a file: unit centres (K, D), the smallest cosine of each with its rows (K,), and their `NAMES`."""

    uri: str
    made: MadeBy
    centres: np.ndarray
    least: np.ndarray
    names: list[dict[str, Any]]

    def check(self, now: MadeBy) -> None:
        """Raise RequestError where another model or condition makes other vectors than those of the centres."""
        made, where, advice = self.made, f"{FLAG}: {self.uri}: expected", "; group these rows anew"
        model, other = (f"{visible(of['name'], MOST_LABEL)} ({of['model'][:8]})" for of in (made, now))
        asked, condition = (normal_words(of["condition"]) for of in (now, made))
        shown = visible(repr(condition), MOST_LABEL)
        taught = f"{where} what was taught of {shown} to be as when these groups were made, got other answers{advice}"
        problems = {
            f"{where} the model of these groups, {model}, got {other}{advice}": made["model"] != now["model"],
            f"{where} the condition of these groups, {shown}, got {asked!r}": condition != asked,
            taught: made["taught"] != now["taught"],
        }
        check_problems(problems)


def groups_table(table: pa.Table, made: MadeBy, centres_KD: np.ndarray, cosines: list[np.ndarray]) -> pa.Table:
    """What is kept of clusters: their rows of `Facets.table`, the centres, and how near their rows are, by the cosines
    of each cluster's. The least cosine is of the farthest row, or three standard deviations away where that is farther,
    which few rows have already: else a cluster of three rows would hardly take a fourth."""
    spread = np.sqrt(np.mean(np.concatenate([(each - each.mean()) ** 2 for each in cosines])))
    mean_K, least_K = (np.array([of(each) for each in cosines], np.float32) for of in (np.mean, np.min))
    for name, column in ((MEAN, mean_K), (LEAST, np.minimum(least_K - ROUNDED, mean_K - 3 * spread).clip(-1))):
        table = table.append_column(name, pa.array(column.astype(np.float32)))
    table = table.append_column(CENTRE, embedding_array(centres_KD.astype(np.float32)))
    return table.replace_schema_metadata({RECORD: json.dumps(made)})


def read_groups(uri: str) -> Groups:
    """The clusters of a file of `groups_table`. Raises RequestError for any other."""
    errors = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError)
    expected = "a file that `raycase facets --save` wrote"
    with readable(locate(uri), expected, errors) as file:
        data = file.read()
        described = pq.read_metadata(pa.BufferReader(data))
        made = from_json(MadeBy, loads((described.metadata or {})[RECORD]))
        columns = [described.row_group(i).total_byte_size for i in range(described.num_row_groups)]
        if not 1 <= described.num_rows <= MOST_CLUSTERS or sum(columns) > MOST_BYTES:
            raise ValueError(f"{described.num_rows:,} rows, {sum(columns):,} bytes")
        table = parquet_table(data, ["cluster", *NAMES, CENTRE, LEAST])
        names = table.select([*NAMES]).cast(pa.schema(NAMES)).to_pylist()
        centres_KD, least_K = embedding_numbers(table[CENTRE]), table[LEAST].to_numpy()
        length_K = np.linalg.norm(centres_KD.astype(np.float64), axis=1)  # 0: of rows that are opposite
        fits = (np.abs(length_K - 1) < ROUNDED) | (length_K == 0)
        in_order = table["cluster"].to_pylist() == [*range(1, len(fits) + 1)]
        if not (in_order and fits.all() and (np.abs(least_K) <= 1).all()):
            raise ValueError("other numbers of clusters, centres or cosines")
    return Groups(uri=file.uri, made=made, centres=centres_KD.astype(np.float32), least=least_K, names=names)
