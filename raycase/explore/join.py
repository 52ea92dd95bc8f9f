"""Exact nearest neighbours of every query, in blocks: a task finds those of a group of files of queries among all
vectors, some files after the others. The files in `neighbours/` are the checkpoint: one that exists is not computed
again.

Shapes: N rows of a group or block, D dimensions, k neighbours, H neighbours of all rows.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from raycase.errors import WorkError, check_problems
from raycase.io.places import begin, check_held, claim
from raycase.io.schema import CONDITION, EMBEDDING, ID, RANK, SCORE, embedding_numbers, parquet_bytes
from raycase.io.storage import fingerprint, locate
from raycase.io.vectors import l2_normalize
from raycase.job.runner import Runner
from raycase.job.verify import FinishedOutput, open_written, read_rows
from raycase.names import STALL_TIMEOUT

GROUP_ROWS, BLOCK_ROWS = 16384, 2**18  # about the most queries of a group, and vectors that are held at a time
NEIGHBOUR = "neighbour"
QUERY_ROW = "place"  # of a neighbour: the query's row in its group
RECORD, NEIGHBOURS = "join.json", "neighbours"  # in the output

Group = tuple[str, int, int]  # the file of its neighbours, the first of its files of queries, and how many


def join(
    query_vectors: str,
    vectors: str,
    output: str,
    runner: Runner,
    *,
    k: int = 10,
    shares: Mapping[str, float] | None = None,
    exclude_same: str | None = None,
    overwrite: bool = False,
    stall_timeout: float = STALL_TIMEOUT,
    group_rows: int = GROUP_ROWS,
    block_rows: int = BLOCK_ROWS,
) -> dict[str, int]:
    """Search all neighbours of outputs of `embed`, and write them into a folder; gives counts. shares: of conditions,
    whose cosines are summed up; default: neighbours under each condition. exclude_same: a column, in which a neighbour
    has another value. stall_timeout: in minutes."""
    root, shares = locate(output), dict(shares or {})
    places = {"--query-vectors": query_vectors, "--vectors": vectors}
    outputs = {flag: open_written(uri, flag) for flag, uri in places.items()}
    _check_alike(outputs, shares, exclude_same)
    manifests = [written.manifest["manifest_files_sha256"] for written in outputs.values()]
    asked = outputs["--query-vectors"]
    name = fingerprint([manifests, group_rows, k, exclude_same, *([shares] if shares else [])])
    results = (NEIGHBOURS,)
    if claim(root, RECORD, name, job="this very join", results=results, overwrite=overwrite) is None:
        begin(root, RECORD, {"fingerprint": name}, results, overwrite=overwrite)
    find = partial(_find, output=root.uri, name=name, outputs=[query_vectors, vectors], k=k, block_rows=block_rows)
    find = partial(find, exclude_same=exclude_same, shares=shares)
    groups = [(f"{i:06d}.parquet", *files) for i, files in enumerate(_cut(asked, group_rows))]
    folder = root / NEIGHBOURS
    there = folder.list()
    if missing := [group for group in groups if group[0] not in there]:
        check_held(root, RECORD, name)
        located = [("--output", root), *((flag, locate(uri)) for flag, uri in places.items())]
        for _ in runner.map(find, missing, unit="groups of queries", places=located, stall_timeout=stall_timeout):
            pass
        there = folder.list()
    check_held(root, RECORD, name)  # what another job wrote into the output is seen with its record
    if lost := sum(group[0] not in there for group in groups):
        missed = f"{lost} of {len(groups)} groups of queries are missing"
        raise WorkError(f"{root.uri}: {missed}; run the same command again")
    count = asked.manifest["pairs"] // (len(asked.job_file.config["conditions"]) if shares else 1)
    rows = ds.dataset(folder.path, filesystem=folder.fs, format="parquet")
    found = count - rows.count_rows(filter=ds.field(RANK) == 1)
    return {"queries": count, "queries_without_neighbours": found, "neighbours": rows.count_rows()}


def _check_alike(outputs: Mapping[str, FinishedOutput], shares: Mapping[str, float], exclude_same: str | None) -> None:
    """Refuse outputs that cannot be joined; they are by flag, the queries' first."""
    problems: dict[str, object] = {}
    for flag, written in outputs.items():
        config = written.job_file.config
        columns, unknown = [ID, *config["keep_columns"]], {*shares} - {*(config["conditions"] or ())}
        known, under = f"conditions that each row of {flag} has a vector under", min(unknown, default=None)
        same = f"--exclude-same: expected one of {', '.join(columns)}, got {exclude_same!r}"
        problems |= {
            f"{flag}: expected vectors in {written.output.root.uri}, got none": not written.names,
            same: (ID if exclude_same is None else exclude_same) not in columns,
            f"--condition: expected {known}, got {under!r}": unknown,
        }
    queries, vectors = outputs.values()
    asked, there = queries.job_file.config, vectors.job_file.config
    both = asked["conditions"] and there["conditions"] and not shares
    lacks = min({*asked["conditions"]} - {*there["conditions"]}, default=None) if both else None
    models, taught = ([of.get(name) for of in (asked, there)] for name in ("model", "taught"))
    another, otherwise = (fingerprint(of[0]) != fingerprint(of[1]) for of in (models, taught))
    mixed = queries.unconditional != vectors.unconditional
    problems |= {
        "--vectors: expected vectors of the queries' model, got another's; embed them with one model": another,
        "--vectors: expected conditions taught as those of the queries, got others; embed them by one file": otherwise,
        "--vectors: expected both under conditions or both without, got one of each": mixed,
        f"--vectors: expected vectors under all conditions of the queries, got none under {lacks!r}": lacks is not None,
    }
    check_problems(problems)


def _cut(written: FinishedOutput, rows: int) -> list[tuple[int, int]]:
    """The files of an output in groups of about so many pairs: the first of each, and how many."""
    groups: list[tuple[int, int]] = []
    held = rows
    for file, name in enumerate(written.names):
        pairs = written.pairs_of[name]
        if held + pairs > rows:
            groups.append((file, 0))
            held = 0
        first, count = groups.pop()
        groups.append((first, count + 1))
        held += pairs
    return groups


# ------------------------------------------------------------------------------------------------------------ a task


def _find(
    group: Group,
    *,
    output: str,
    name: str,
    outputs: Sequence[str],
    k: int,
    exclude_same: str | None,
    block_rows: int,
    shares: Mapping[str, float],
) -> None:
    """Put the neighbours of the queries in some files into one of `neighbours/`."""
    file, first, count = group
    columns = list(dict.fromkeys(filter(None, (ID, CONDITION, EMBEDDING, exclude_same))))
    asked, searched = (_opened(uri, name) for uri in outputs)
    queries, query_ND = _rows(asked, first, count, columns, shares)
    best = pa.table({QUERY_ROW: pa.array([], pa.int64())})
    for block in _cut(searched, block_rows):
        vectors, vector_ND = _rows(searched, *block, columns, dict.fromkeys(shares, 1.0))
        found = _neighbours(queries, query_ND, vectors, vector_ND, k, exclude_same)
        rows = found if not len(best) else pa.concat_tables([best, found])
        query_row_N = rows[QUERY_ROW].to_numpy()
        order = np.lexsort((-rows[SCORE].to_numpy(), query_row_N))  # stable: of equal scores the earlier vector wins
        rank_N = np.arange(len(order)) - np.searchsorted(query_row_N[order], query_row_N[order])
        best, ranks = rows.take(order[rank_N < k]), rank_N[rank_N < k] + 1
    places = best[QUERY_ROW]
    columns_of = {ID: queries[ID].take(places), CONDITION: queries[CONDITION].take(places)}
    columns_of |= {RANK: pa.array(ranks, pa.int32()), NEIGHBOUR: best[NEIGHBOUR], SCORE: best[SCORE]}
    (locate(output) / NEIGHBOURS / file).put(parquet_bytes(pa.table(columns_of)))


@cache
def _opened(uri: str, join: str) -> FinishedOutput:
    """An output, once in a process for a join."""
    return open_written(uri, "--vectors")


def _rows(
    written: FinishedOutput, first: int, count: int, columns: list[str], factors: Mapping[str, float]
) -> tuple[pa.Table, np.ndarray]:
    """The rows of some files of an output, and their unit vectors; with factors of conditions, a row without a
    condition for all of its rows under these, whose vectors times the factors stand side by side."""
    names, folder = written.names[first : first + count], written.output.units
    rows = pa.concat_tables([read_rows(folder / name, written.sums[name], columns) for name in names])
    if not factors:
        return rows, _unit_vectors(rows)
    parts = [rows.filter(pc.equal(rows[CONDITION], name)) for name in factors]  # of the same ids in the same order
    assert all(part[ID].equals(parts[0][ID]) for part in parts)
    vectors = [np.float32(factor) * _unit_vectors(part) for factor, part in zip(factors.values(), parts, strict=True)]
    without = parts[0].drop_columns([CONDITION]).append_column(CONDITION, pa.nulls(len(parts[0]), pa.string()))
    return without, np.concatenate(vectors, axis=1)


def _unit_vectors(rows: pa.Table) -> np.ndarray:
    """(N, D) float32, of length 1."""
    return l2_normalize(embedding_numbers(rows[EMBEDDING]))


def _neighbours(
    queries: pa.Table, query_ND: np.ndarray, vectors: pa.Table, vector_ND: np.ndarray, k: int, exclude_same: str | None
) -> pa.Table:
    """The neighbours of some queries among some vectors: the query's row, the neighbour's id, the score."""
    import torch

    from raycase.index.topk import top_k

    group_N, group_M = _groups(queries, vectors, exclude_same)
    own, theirs = _rows_by_condition(queries), _rows_by_condition(vectors)
    row_H, neighbour_H, score_H = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for condition in own.keys() & theirs.keys():
        rows, among = own[condition], theirs[condition]
        asked = (query_ND[rows], vector_ND[among], group_N[rows], group_M[among])
        asked_QD, there_BD, group_Q, group_B = map(torch.from_numpy, asked)
        scores_Qk, found_Qk = top_k(asked_QD, [there_BD], k, query_groups=group_Q, groups=group_B)
        query_H, rank_H = (found_Qk >= 0).nonzero()
        row_H.append(rows[query_H])
        neighbour_H.append(among[found_Qk[query_H, rank_H]])
        score_H.append(scores_Qk[query_H, rank_H].clip(-1, 1))
    neighbours = vectors[ID].take(np.concatenate(neighbour_H))
    return pa.table({QUERY_ROW: np.concatenate(row_H), NEIGHBOUR: neighbours, SCORE: np.concatenate(score_H)})


def _rows_by_condition(rows: pa.Table) -> dict[str | None, np.ndarray]:
    """The indices of the rows under each condition, int64."""
    codes = rows[CONDITION].combine_chunks().dictionary_encode(null_encoding="encode")
    code_N = codes.indices.to_numpy()
    return {name: np.flatnonzero(code_N == i) for i, name in enumerate(codes.dictionary.to_pylist())}


def _groups(queries: pa.Table, vectors: pa.Table, column: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the values by which a query's own are excluded, (N,) int64 of each table; a null equals none."""
    if column is None:
        return np.full(len(queries), -1), np.full(len(vectors), -2)
    values = pa.chunked_array([*queries[column].chunks, *vectors[column].chunks]).combine_chunks().dictionary_encode()
    code_N = values.indices.fill_null(-1).to_numpy().astype(np.int64)
    code_N[len(queries) :][code_N[len(queries) :] < 0] = -2
    return code_N[: len(queries)], code_N[len(queries) :]
