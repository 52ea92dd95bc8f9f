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


def join_vectors(under_ND: np.ndarray, unconditional_NP: np.ndarray) -> np.ndarray:
    """Unit vectors whose products are the means of both cosines: (N, J)."""
    return np.concatenate([under_ND, unconditional_NP], axis=1) / np.sqrt(np.float32(2))


def unconditional_at(index: Index, condition: str | None) -> Callable[[np.ndarray], np.ndarray] | None:
    """The unconditional vectors of rows under a condition by their offset, (B,) -> (B, P); None where some lack it."""
    if condition is None or not index.metadata.unconditional:
        return None
    under, none = index.ids([condition]).sort_by(OFFSET), index.ids([None])
    place_N = pc.index_in(under[ID], value_set=none[ID])
    if place_N.null_count:
        return None
    offsets_N, unconditional_N = offsets_of(under), offsets_of(none.take(place_N))
    return lambda offsets_B: index.vectors_at(None, unconditional_N[np.searchsorted(offsets_N, offsets_B)])


def label_vectors(index: Index, labels: Sequence[str], condition: str | None, *, joined: bool) -> np.ndarray:
    """Unit vectors of labels as phrases that answer a condition, joined with those without one or not: (L, J) float32.
    Raises RequestError."""
    index.check_conditional([] if condition is None else [condition], phrases=True, stated=False)
    check_alike(index.encoder.config.prepare(labels, None), labels, "--labels")
    under_LD = index.embed(labels, condition, "--labels", phrases=True)
    return join_vectors(under_LD, index.embed(labels, None, "--labels")) if joined else under_LD


def row_vectors(
    blocks: Blocks, at: Callable[[np.ndarray], np.ndarray] | None, step: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Offsets and vectors of the rows in these blocks, (B, J); at: `unconditional_at`."""
    for offsets_B, vectors_BD in parts(blocks(), step):
        under_BD = vectors_BD.numpy()
        yield offsets_B, under_BD if at is None else join_vectors(under_BD, at(offsets_B))


def label_cosines(vectors_BJ: np.ndarray, labels_LJ: np.ndarray) -> np.ndarray:
    """How near each label is to each of B unit vectors: (B, L)."""
    return (vectors_BJ @ labels_LJ.T).clip(-1, 1)


def nearest_labels(vectors_BJ: np.ndarray, labels_LJ: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The label nearest to each of B unit vectors, of equal ones the first; its cosine; by how much that is above the
    second: three of (B,)."""
    cosines_BL = label_cosines(vectors_BJ, labels_LJ)
    second_B2 = np.partition(cosines_BL, -2)[:, -2:]
    return cosines_BL.argmax(1), second_B2[:, 1], second_B2[:, 1] - second_B2[:, 0]


def label_rows(
    index: Index,
    condition: str | None,
    blocks: Blocks,
    *,
    labels: Sequence[str],
    stated: bool = False,
) -> pa.Table:
    """The rows in these blocks, which are under a condition of the index: id, label, score and margin; and whether the
    row states something of the condition, where the model knows. stated: without a label where it states nothing."""
    index.check_conditional([] if condition is None else [condition], phrases=True, stated=stated)
    at = unconditional_at(index, condition)
    labels_LJ = label_vectors(index, labels, condition, joined=at is not None)
    names, tables, knows_stated = pa.array(labels), [], index.gives_stated(condition)
    step = max(1, min(BATCH_ROWS, AT_ONCE // len(labels)))
    for offsets_B, vectors_BJ in row_vectors(blocks, at, step):
        label_B, score_B, margin_B = nearest_labels(vectors_BJ, labels_LJ)
        states_B = index.stated_at(str(condition), offsets_B) if knows_stated else np.ones(len(label_B))
        has_none_B = (states_B < LEAST_STATED) & stated
        with lance_errors(index.root):
            ids = index.dataset.take(offsets_B, columns=[ID])[ID]
        columns = {
            ID: ids,
            LABEL: names.take(pa.array(label_B, mask=has_none_B)),
            SCORE: pa.array(score_B),
            MARGIN: pa.array(margin_B),
        }
        tables.append(pa.table(columns | ({STATED: pa.array(states_B)} if knows_stated else {})))
    return pa.concat_tables(tables)
