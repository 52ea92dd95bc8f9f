"""The nearest of some labels to each row of an index under a condition.

Shapes: L labels, B rows of a block, D dimensions.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from raycase.index.answers import STATED
from raycase.index.index import LEAST_STATED, Index
from raycase.index.lance_files import lance_errors
from raycase.index.rows import BATCH_ROWS
from raycase.index.topk import Blocks, parts
from raycase.io.row_labels import LABEL
from raycase.io.schema import ID, SCORE
from raycase.models.configs import check_alike

MARGIN = "margin"
AT_ONCE = 2**22  # cosines of rows and labels that are held


def label_vectors(index: Index, labels: Sequence[str], condition: str | None) -> np.ndarray:
    """Unit vectors of labels as phrases that answer a condition: (L, D) float32. Raises RequestError."""
    index.check_conditional([] if condition is None else [condition], phrases=True, stated=False)
    check_alike(index.encoder.config.prepare(labels, None), labels, "--labels")
    return index.embed(labels, condition, "--labels", phrases=True)


def label_cosines(vectors_BD: np.ndarray, labels_LD: np.ndarray) -> np.ndarray:
    """How near each label is to each of B unit vectors: (B, L)."""
    return (vectors_BD @ labels_LD.T).clip(-1, 1)


def nearest_labels(vectors_BD: np.ndarray, labels_LD: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The label nearest to each of B unit vectors, of equal ones the first; its cosine; by how much that is above the
    second: three of (B,)."""
    cosines_BL = label_cosines(vectors_BD, labels_LD)
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
    labels_LD = label_vectors(index, labels, condition)
    names, tables, knows_stated = pa.array(labels), [], index.gives_stated(condition)
    step = max(1, min(BATCH_ROWS, AT_ONCE // len(labels)))
    for offsets_B, vectors_BD in parts(blocks(), step):
        label_B, score_B, margin_B = nearest_labels(vectors_BD.numpy(), labels_LD)
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
