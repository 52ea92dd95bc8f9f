"""Rows of an index whose vectors are alike, in groups.

Shapes: N rows; R and C, rows and columns of a tile; D dimensions, P pairs.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from raycase.encoder.sources import load_tokenizer
from raycase.errors import RequestError, note
from raycase.index.index import Index, text_column
from raycase.index.lance_files import OFFSET, lance_errors
from raycase.index.query_encoder import resolve_query_encoder
from raycase.index.topk import Block, Blocks, parts
from raycase.io.schema import ID

HELD_ROWS = 2**17  # whose vectors are held, and compared with all others; then the next
ROWS, COLUMNS = 1024, 2048  # of a tile, whose cosines are held
ROUNDING = 1e-6  # of cosines of unit vectors in float32, so that 1 finds equal ones
MARGIN = 5e-6  # cosines in float32 that are nearer to the threshold are computed again in float64: in float32 the last
# bits depend on the tile, and so on the order of the rows
RESCORED = 4096  # pairs at a time


def group_rows(index: Index, condition: str | None, blocks: Blocks, *, threshold: float) -> pa.Table:
    """The rows in these blocks, in the order of the index: id, the id that is kept of the row's group, and whether that
    is its own."""
    unknown_N = _without_tokens(index)
    if unknown_N is None:
        note("without the texts or their model, all texts without a token that the encoder knows count as duplicates")
        unknown_N = np.zeros(index.dataset.count_rows(), bool)

    def compared() -> Iterator[Block]:
        for offsets_B, vectors_BD in blocks():
            yield offsets_B, vectors_BD.masked_fill(torch.from_numpy(unknown_N[offsets_B])[:, None], torch.nan)

    offsets_N, group_N = link(compared if unknown_N.any() else blocks, len(unknown_N), threshold)
    with lance_errors(index.root):
        ids = index.dataset.take(offsets_N, columns=[ID])[ID].combine_chunks()
    counts = pc.value_counts(ids)
    for repeated in counts.filter(pc.greater(counts.field("counts"), 1))[:1].to_pylist():
        raise RequestError(
            f"--index: expected each id in one row, to delete it by, got {repeated['values']!r} in {repeated['counts']}"
            f" of {index.root.uri}; build it with --overwrite from an output whose ids are unique"
        )
    by_id_N = pc.sort_indices(ids).to_numpy()
    _, first, place_N = np.unique(group_N[by_id_N], return_index=True, return_inverse=True)
    kept_N = np.empty(len(ids), np.int64)
    kept_N[by_id_N] = by_id_N[first[place_N]]
    return pa.table({ID: ids, "group": ids.take(pa.array(kept_N)), "kept": kept_N == np.arange(len(ids))})


def _without_tokens(index: Index) -> np.ndarray | None:
    """Whether the encoder knows no token of each row's text, (rows,) bool, and their vectors are alike; None without
    texts, and where the model has moved."""
    text = text_column(index, None)
    if text is None:
        return None
    try:
        tokenize = load_tokenizer(resolve_query_encoder(index.metadata, index.model).encoder)
    except RequestError:
        return None
    unknown_N = np.zeros(index.dataset.count_rows(), bool)
    with lance_errors(index.root):
        for batch in index.dataset.to_batches(columns=[OFFSET, text]):
            texts = batch[text].fill_null("").dictionary_encode()  # each stands under several conditions
            ids_of = tokenize.parts(texts.dictionary.to_pylist())
            is_unknown = np.array([tokenize.is_unknown(ids[: tokenize.max_tokens]) for ids in ids_of])
            unknown_N[batch[OFFSET].to_numpy().astype(np.int64)] = is_unknown[texts.indices.to_numpy()]
    return unknown_N


def link(blocks: Blocks, rows: int, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """The offsets of the rows in these blocks, and the group of each, by the number of one of its rows: two of (N,).

    rows: beyond all offsets. The blocks are read again for each `HELD_ROWS` of them, in any order. Of pairs, memory
    holds no more than a tile has: what is linked is joined at once (union-find)."""
    group_N, turn_N = np.arange(rows), np.full(rows, rows)  # turn: when a row's own comparisons begin; rows: not yet
    for held in _held(blocks(), HELD_ROWS):
        offsets = np.concatenate([offsets_B for offsets_B, _ in held])
        turn_N[offsets] = np.arange(len(offsets)) + (turn_N < rows).sum()
        for column_C, column_CD in parts(blocks(), COLUMNS):
            for row_R, row_RD in parts(held, ROWS):
                left = np.flatnonzero(turn_N[column_C] >= turn_N[row_R].min())  # the others were compared before
                together = np.concatenate([row_R, column_C[left]])
                if len(left) and (group_N[together] != group_N[together[0]]).any():
                    columns = column_C[left], column_CD[torch.from_numpy(left)]
                    group_N = _linked(group_N, (row_R, row_RD), columns, threshold - ROUNDING)
    offsets_N = np.flatnonzero(turn_N < rows)
    return offsets_N, group_N[offsets_N]


def _held(blocks: Iterable[Block], rows: int) -> Iterator[list[Block]]:
    """Blocks in lists of so many rows or a few more."""
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        if sum(len(offsets_B) for offsets_B, _ in held) >= rows:
            yield held
            held = []
    if held:
        yield held


def _linked(group_N: np.ndarray, rows: Block, columns: Block, least: float) -> np.ndarray:
    """The groups, those joined of which two rows have a cosine of at least `least`."""
    (row_R, row_RD), (column_C, column_CD) = rows, columns
    group_M = group_N[np.concatenate([row_R, column_C])]
    is_apart_RC = torch.from_numpy(group_M[: len(row_R), None] != group_M[len(row_R) :])
    cosines_RC = row_RD @ column_CD.T
    linked_RC, is_near_RC = is_apart_RC & (cosines_RC >= least), is_apart_RC & ((cosines_RC - least).abs() < MARGIN)
    for row_P, column_P in (part.T for part in is_near_RC.nonzero().split(RESCORED)):
        cosines_P = np.einsum("pd,pd->p", row_RD[row_P].double().numpy(), column_CD[column_P].double().numpy())
        linked_RC[row_P, column_P] = torch.from_numpy(cosines_P >= least)
    one_P, other_P = linked_RC.numpy().nonzero()
    if not len(one_P):
        return group_N
    _, first, place_M = np.unique(group_M, return_index=True, return_inverse=True)
    one = np.concatenate([one_P, np.arange(len(group_M))])
    other = np.concatenate([other_P + len(row_R), first[place_M]])
    edges = coo_matrix((np.ones(len(one), bool), (one, other)), shape=(len(group_M), len(group_M)))
    component_M = connected_components(edges, directed=False)[1]
    renamed_N = np.arange(len(group_N))
    renamed_N[group_M] = group_M[np.unique(component_M, return_index=True)[1][component_M]]
    return renamed_N[group_N]
