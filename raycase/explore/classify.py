"""The nearest of some labels to each row of an index: by the mean of two cosines, under the condition and without one.
A condition that reads a text badly is then seldom worse than none. Where rows have no unconditional vector, the cosine
under the condition counts alone.

Shapes: L labels, N rows, B of a block, D dimensions under a condition, P without one, J of both or of the first alone.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.index.answers import STATED
from raycase.index.index import LEAST_STATED, Index
from raycase.index.lance_files import OFFSET, lance_errors, offsets_of
from raycase.index.rows import BATCH_ROWS
from raycase.index.topk import Blocks, parts
from raycase.io.row_labels import LABEL
from raycase.io.schema import ID, SCORE
from raycase.models.configs import check_alike

MARGIN = "margin"
AT_ONCE = 2**22  # cosines of rows and labels that are held
Join = Callable[[np.ndarray, np.ndarray], np.ndarray]


def join_vectors(under_ND: np.ndarray, unconditional_NP: np.ndarray) -> np.ndarray:
    """Unit vectors whose products are the means of both cosines: (N, J)."""
    return np.concatenate([under_ND, unconditional_NP], axis=1) / np.sqrt(np.float32(2))


def label_vectors(
    index: Index, labels: Sequence[str], condition: str | None, *, stated: bool = False
) -> tuple[np.ndarray, Join]:
    """Unit vectors of labels as phrases that answer a condition, (L, J), and what makes those of rows from their
    offsets and vectors under it: (B,), (B, D) -> (B, J). Raises RequestError, also where it must know what is stated
    and does not."""
    index.check_conditional([] if condition is None else [condition], phrases=True, stated=stated)
    check_alike(index.encoder.config.prepare(labels, None), labels, "--labels")
    labels_LD = index.embed(labels, condition, "--labels", phrases=True)
    under, none = index.ids([condition]).sort_by(OFFSET), index.ids([None])
    place_N = pc.index_in(under[ID], value_set=none[ID])
    if place_N.null_count:
        return labels_LD, lambda _, under_BD: under_BD
    offsets_N, unconditional_N = offsets_of(under), offsets_of(none.take(place_N))

    def join(offsets_B: np.ndarray, under_BD: np.ndarray) -> np.ndarray:
        return join_vectors(under_BD, index.vectors_at(None, unconditional_N[np.searchsorted(offsets_N, offsets_B)]))

    return join_vectors(labels_LD, index.embed(labels, None, "--labels")), join


def row_vectors(blocks: Blocks, join: Join, labels: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Offsets and vectors, (B, J), of the rows in these blocks, few enough for so many labels."""
    for offsets_B, under_BD in parts(blocks(), max(1, min(BATCH_ROWS, AT_ONCE // labels))):
        yield offsets_B, join(offsets_B, under_BD.numpy())


def best_of(of_each_BL: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The place of each row's largest number, of equal ones the first; it; how far it is above the second: three of
    (B,)."""
    second_B2 = np.partition(of_each_BL, -2)[:, -2:]
    return of_each_BL.argmax(1), second_B2[:, 1], second_B2[:, 1] - second_B2[:, 0]


def label_rows(
    index: Index, condition: str | None, blocks: Blocks, *, labels: Sequence[str], stated: bool = False
) -> pa.Table:
    """The rows in these blocks, which are under a condition of the index: id, label, score and margin; and whether the
    row states something of the condition, where the model knows. stated: without a label where it states nothing."""
    labels_LJ, join = label_vectors(index, labels, condition, stated=stated)
    names, tables, knows_stated = pa.array(labels), [], index.gives_stated(condition)
    for offsets_B, vectors_BJ in row_vectors(blocks, join, len(labels)):
        label_B, score_B, margin_B = best_of((vectors_BJ @ labels_LJ.T).clip(-1, 1))
        states_B = index.stated_at(str(condition), offsets_B) if knows_stated else np.ones(len(label_B))
        has_none_B = (states_B < LEAST_STATED) & stated
        with lance_errors(index.root):
            columns = {ID: index.dataset.take(offsets_B, columns=[ID])[ID]}
        columns |= {LABEL: names.take(pa.array(label_B, mask=has_none_B)), SCORE: score_B, MARGIN: margin_B}
        tables.append(pa.table(columns | ({STATED: states_B} if knows_stated else {})))
    return pa.concat_tables(tables)
