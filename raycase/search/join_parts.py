"""The exact nearest neighbours of many queries, computed in parts.

The queries are cut into groups of files, the vectors into ranges of files. A part holds the neighbours of one group in
one range; the parts of a group are merged into its neighbours. `parts/` and `neighbours/` in the output are the
checkpoint: a file that exists is not computed again.

Shapes: N rows of a file or group, D dimensions, k neighbours, H neighbours of all rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import torch
from torch import Tensor

from raycase.corpus.manifest import read_manifest
from raycase.corpus.written import Written, read_rows
from raycase.data.claim import claim_or_begin
from raycase.data.json_values import from_json
from raycase.data.parquet import parquet_bytes
from raycase.data.schema import CONDITION, EMBEDDING, ID, embedding_numbers
from raycase.data.storage import Location, fingerprint, locate
from raycase.data.vectors import l2_normalize
from raycase.errors import RequestError
from raycase.search.topk import merge_top_k, top_k

NEIGHBOUR, RANK, SCORE = "neighbour", "rank", "score"
QUERY_ROW = "place"  # column of a part: the query's row in its group
PARTS, NEIGHBOURS = "parts", "neighbours"  # folders in the output
POOLED, POOLED_RECORD = "pooled", "join_pooled.json"  # of a join under --conditions: its outputs while it runs
RECORD = "join.json"

Files = list[str]  # names in the folder of embeddings


@dataclass(frozen=True, kw_only=True)
class Join:
    """What each part of a join needs to know."""

    queries: str  # folder of the queries' vectors, a URI
    vectors: str  # folder of the vectors among which neighbours are searched
    output: str
    k: int
    exclude_same: str | None = None  # column: vectors with the query's value are not its neighbours
    schemas: tuple[pa.Schema, pa.Schema] | None = None  # of the queries' files, and of the vectors'
    under: tuple[str, str] | None = None  # a condition of the queries, and one of the vectors; None: each its own


# -------------------------------------------------------------------------------------------------------- planning


def check_join(
    queries: Written, vectors: Written, exclude_same: str | None, under: tuple[str, str] | None = None
) -> None:
    """Raise RequestError for two outputs that cannot be joined."""
    query_config, vector_config = queries.job.config, vectors.job.config
    if fingerprint(query_config["model"]) != fingerprint(vector_config["model"]):
        raise RequestError(
            "--vectors: expected vectors of the queries' model, got another's; embed them with one model"
        )
    if queries.unconditional != vectors.unconditional:
        raise RequestError("--vectors: expected both under conditions or both without, got one of each")
    if under:
        flags = (("--query-condition", query_config), ("--condition", vector_config))
        for condition, (flag, config) in zip(under, flags, strict=True):
            has = config["conditions"]
            if queries.unconditional or (has is not None and condition not in has):
                wanted = "vectors under conditions" if queries.unconditional else f"one of {', '.join(has)}"
                raise RequestError(f"{flag}: expected {wanted}, got {condition!r}")
    conditions = set() if under else set(query_config["conditions"] or ())
    missing = conditions - set(vector_config["conditions"] or conditions)
    if missing:
        raise RequestError(f"--vectors: expected every condition of the queries, got no {sorted(missing)[0]!r}")
    for flag, written in (("--query-vectors", queries), ("--vectors", vectors)):
        if not written.names:
            raise RequestError(f"{flag}: expected vectors in {written.output.root.uri}, got none")
        columns = [ID, *written.job.config["keep_columns"]]
        if exclude_same and exclude_same not in columns:
            raise RequestError(f"--exclude-same: expected one of {', '.join(columns)}, got {exclude_same!r}")
    query_dim, vector_dim = (w.schema.field(EMBEDDING).type.list_size for w in (queries, vectors))
    if query_dim != vector_dim:
        raise RequestError(f"--vectors: expected vectors of the queries' {query_dim} dimensions, got {vector_dim}")
    types = [str(written.schema.field(exclude_same).type) for written in (queries, vectors) if exclude_same]
    if len(set(types)) > 1:
        raise RequestError(f"--exclude-same: expected {exclude_same!r} of one type in both, got {' and '.join(types)}")


def cut_files(written: Written, rows: int) -> list[Files]:
    """The files of an output, in order, in groups of about so many pairs."""
    groups: list[Files] = []
    group_rows = rows
    conditions = len(written.job.config["conditions"] or "a")
    for unit in written.units:
        if unit.rows_out:
            if group_rows + unit.rows_out * conditions > rows:
                groups.append([])
                group_rows = 0
            groups[-1].append(unit.name(written.job.print8))
            group_rows += unit.rows_out * conditions
    return groups


def cut_finer(ranges: list[Files], least: int) -> list[Files]:
    """At least so many ranges, or one a file, where there are fewer."""
    files = [file for files in ranges for file in files]
    count = min(len(files), max(len(ranges), least))
    return [list(part) for part in np.array_split(np.array(files), count)] if count > len(ranges) else ranges


def claim_output(
    join: Join, queries: Written, vectors: Written, groups: list[Files], ranges: list[Files], *, overwrite: bool
) -> tuple[str, list[Files]]:
    """Claim the output folder, and return the join's fingerprint and the ranges: the recorded ones where an earlier run
    is resumed, for the cluster may have had another size. Raises RequestError where the folder holds another join."""
    manifests = [read_manifest(written.output)["manifest_files_sha256"] for written in (queries, vectors)]
    name = fingerprint([manifests, groups, join.k, join.exclude_same, *(join.under or ())])
    root = locate(join.output)
    record = claim_or_begin(
        root,
        RECORD,
        {"fingerprint": name, "ranges": ranges},
        job="this very join",
        results=(NEIGHBOURS, PARTS, POOLED, POOLED_RECORD),
        overwrite=overwrite,
        besides=(POOLED, POOLED_RECORD),
    )
    try:
        return name, from_json(list[list[str]], record.get("ranges"))
    except ValueError as error:
        raise RequestError(f"{(root / RECORD).uri}: expected ranges of files, got: {error}") from error


def claim_pooled(
    root: Location, queries: Written, vectors: Written, values: Mapping[str, Any], *, overwrite: bool
) -> dict[str, Any]:
    """Claim the output folder for a join under conditions that its outputs of stored words are yet to be pooled under;
    returns its record, which holds `counts` once the join is done. Raises RequestError."""
    manifests = [read_manifest(written.output)["manifest_files_sha256"] for written in (queries, vectors)]
    name = fingerprint([manifests, dict(values)])
    begun, results = {"fingerprint": name}, (NEIGHBOURS, PARTS, POOLED, RECORD)
    record = claim_or_begin(root, POOLED_RECORD, begun, job="this very join", results=results, overwrite=overwrite)
    if not isinstance(record.get("counts", {}), dict):
        raise RequestError(f"{(root / POOLED_RECORD).uri}: expected counts by name, got {record['counts']!r:.80}")
    return record


def join_part_name(group: int, range_: int) -> str:
    """The name of a part's file."""
    return f"{group:06d}-{range_:06d}.parquet"


def group_name(group: int) -> str:
    """The name of the file with a group's neighbours."""
    return f"{group:06d}.parquet"


# ----------------------------------------------------------------------------------------------------------- parts


def find_part(
    join: Join, group: int, range_: int, query_files: Mapping[str, str], vector_files: Mapping[str, str]
) -> None:
    """Find the neighbours of one group of queries in one range of vectors, and put them into a file of `parts/`.

    Files are given by name with their sha256. Raises WorkError for one that is damaged."""
    columns = list(dict.fromkeys(filter(None, (ID, CONDITION, EMBEDDING, join.exclude_same))))
    query_schema, vector_schema = join.schemas or (None, None)
    queries = pa.concat_tables(_rows(join.queries, query_files, columns, query_schema))
    query_ND = _unit_vectors(queries)
    rows_under = _rows_by_condition(queries)
    if join.under:
        own, searched = join.under
        rows_under = {searched: rows_under[own]} if own in rows_under else {}
    values = queries[join.exclude_same].combine_chunks().unique() if join.exclude_same else None
    query_value_N = _value_index(queries, join.exclude_same, values, missing=-1)
    best: dict[str | None, tuple[np.ndarray, np.ndarray]] = {}
    ids: list[pa.Array] = []
    start = 0
    for vectors in _rows(join.vectors, vector_files, columns, vector_schema):
        vector_ND, value_N = _unit_vectors(vectors), _value_index(vectors, join.exclude_same, values, missing=-2)
        for condition, vector_rows in _rows_by_condition(vectors).items():
            if condition in rows_under:
                rows = rows_under[condition]
                scores_Qk, neighbours_Qk = top_k(
                    query_ND[rows],
                    [vector_ND[vector_rows]],
                    join.k,
                    query_groups=query_value_N[rows],
                    groups=value_N[vector_rows],
                )
                neighbours_Qk = np.append(start + vector_rows.numpy(), -1)[neighbours_Qk]
                best[condition] = merge_top_k([*filter(None, [best.get(condition)]), (scores_Qk, neighbours_Qk)])
        ids += vectors[ID].chunks
        start += len(vectors)
    vector_ids = pa.chunked_array(ids)
    nothing = np.empty(0, np.int64)
    tables = [_part(queries, vector_ids, nothing, nothing, np.empty(0, np.float32))]
    for condition, (scores_Qk, neighbours_Qk) in best.items():
        query_H, rank_H = (neighbours_Qk >= 0).nonzero()
        row_H = rows_under[condition].numpy()[query_H]
        tables.append(_part(queries, vector_ids, row_H, neighbours_Qk[query_H, rank_H], scores_Qk[query_H, rank_H]))
    (locate(join.output) / PARTS / join_part_name(group, range_)).put(parquet_bytes(pa.concat_tables(tables)))


def merge_parts(join: Join, group: int, ranges: int) -> None:
    """Put the best k of each query of a group into `neighbours/`; of equal scores the earlier vector wins."""
    best: pa.Table | None = None
    for range_ in range(ranges):
        data = (locate(join.output) / PARTS / join_part_name(group, range_)).read()
        part = pq.read_table(pa.BufferReader(data))
        rows = part if best is None else pa.concat_tables([best, part])
        query_row_N = rows[QUERY_ROW].to_numpy()
        order = np.lexsort((-rows[SCORE].to_numpy(), query_row_N))  # stable: parts are in the order of the vectors
        rank_N = np.arange(len(order)) - np.searchsorted(query_row_N[order], query_row_N[order])
        best, ranks = rows.take(order[rank_N < join.k]), rank_N[rank_N < join.k] + 1
    assert best is not None, "every output with vectors has a range"
    best = best.drop_columns([QUERY_ROW]).add_column(2, RANK, pa.array(ranks, pa.int32()))
    (locate(join.output) / NEIGHBOURS / group_name(group)).put(parquet_bytes(best))


def count_neighbours(join: Join, queries: Written) -> dict[str, int]:
    """Count the whole result."""
    folder = locate(join.output) / NEIGHBOURS
    rows = ds.dataset(folder.path, filesystem=folder.fs, format="parquet")
    if join.under:
        asked = queries.output.embeddings
        vectors = ds.dataset(asked.path, filesystem=asked.fs, format="parquet")
        pairs = vectors.count_rows(filter=ds.field(CONDITION) == join.under[0])
    else:
        pairs = read_manifest(queries.output)["pairs"]
    return {
        "queries": pairs,
        "queries_without_neighbours": pairs - rows.count_rows(filter=ds.field(RANK) == 1),
        "neighbours": rows.count_rows(),
    }


def _part(
    queries: pa.Table, vector_ids: pa.ChunkedArray, row_H: np.ndarray, neighbour_H: np.ndarray, score_H: np.ndarray
) -> pa.Table:
    """A row for each neighbour: the query's row in its group, its id and condition, the neighbour's id, the score."""
    return pa.table(
        {
            QUERY_ROW: row_H,
            ID: queries[ID].take(row_H),
            CONDITION: queries[CONDITION].take(row_H),
            NEIGHBOUR: vector_ids.take(neighbour_H),
            SCORE: score_H,
        }
    )


def _rows(folder: str, files: Mapping[str, str], columns: list[str], schema: pa.Schema | None) -> Iterator[pa.Table]:
    """The rows of each file of an output, which has this schema."""
    return (read_rows(locate(folder) / name, sha256, columns, schema) for name, sha256 in files.items())


def _unit_vectors(rows: pa.Table) -> Tensor:
    """(N, D) float32, of length 1."""
    return torch.from_numpy(l2_normalize(embedding_numbers(rows[EMBEDDING])))


def _rows_by_condition(rows: pa.Table) -> dict[str | None, Tensor]:
    """The indices of the rows under each condition, int64."""
    codes = rows[CONDITION].combine_chunks().dictionary_encode(null_encoding="encode")
    code_N = torch.from_numpy(codes.indices.to_numpy().copy())
    return {name: (code_N == i).nonzero()[:, 0] for i, name in enumerate(codes.dictionary.to_pylist())}


def _value_index(rows: pa.Table, column: str | None, values: pa.Array, *, missing: int) -> Tensor:
    """The index of each row's value among `values`, or `missing`: (N,) int64."""
    if column is None:
        return torch.full((len(rows),), missing)
    index = pc.index_in(rows[column], values, skip_nulls=True)
    return torch.from_numpy(pc.fill_null(index, missing).combine_chunks().to_numpy().astype(np.int64))
