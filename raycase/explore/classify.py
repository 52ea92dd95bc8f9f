"""The nearest of some labels to each row of an index under a condition.

Shapes: L labels, B rows of a block, D dimensions.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from raycase.errors import MOST_LABEL, RequestError, check_problems, visible
from raycase.index.answers import STATED
from raycase.index.index import LEAST_STATED, Index
from raycase.index.lance_files import lance_errors
from raycase.index.rows import BATCH_ROWS
from raycase.index.topk import Blocks, parts
from raycase.io.reader import read_files
from raycase.io.schema import ID, SCORE
from raycase.io.vectors import l2_normalize
from raycase.models.configs import check_alike

TEXT, LABEL, MARGIN = "text", "label", "margin"
AT_ONCE = 2**22  # cosines of rows and labels that are held


def read_examples(uri: str, labels: Sequence[str]) -> dict[str, list[str]]:
    """The texts of each label; refused are another label, a text of two, and a label without texts."""
    texts: dict[str, list[str]] = {label: [] for label in labels}
    label_of: dict[str, str] = {}
    for where, read in read_files(uri, (TEXT, LABEL), "--examples", words=(TEXT, LABEL)):
        for text, label in zip(read[TEXT], read[LABEL], strict=True):
            other = label_of.setdefault(text, label)
            unknown = f"{where}: expected labels of --labels, got {visible(label, MOST_LABEL)!r}"
            several = f"{where}: expected one label of {text!r:.80}, got {other!r} and {label!r}"
            check_problems({unknown: label not in texts, several: other != label})
            texts[label].append(text)
    if lacks := [label for label, of_label in texts.items() if not of_label]:
        raise RequestError(f"--examples: expected texts of every label, got none of {visible(lacks[0], MOST_LABEL)!r}")
    return texts


def label_vectors(
    embed: Callable[..., np.ndarray],
    labels: Sequence[str],
    condition: str | None,
    examples: Mapping[str, Sequence[str]] | None = None,
) -> np.ndarray:
    """Unit vectors of labels under a condition by `Index.embed`, (L, D) float32; with examples, the mean of the label's
    own vector and that of its texts, each of length 1."""
    vectors_LD = embed(labels, condition, "--labels", phrases=True)
    if examples is None:
        return vectors_LD
    texts = [text for label in labels for text in examples[label]]
    starts_L = np.cumsum([0, *(len(examples[label]) for label in labels)])[:-1]
    sums_LD = np.add.reduceat(embed(texts, condition, "--examples"), starts_L)
    return l2_normalize(vectors_LD + l2_normalize(sums_LD))


def nearest_labels(vectors_BD: np.ndarray, labels_LD: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The label nearest to each of B unit vectors, of equal ones the first; its cosine; by how much that is above the
    second: three of (B,)."""
    cosines_BL = (vectors_BD @ labels_LD.T).clip(-1, 1)
    second_B2 = np.partition(cosines_BL, -2)[:, -2:]
    return cosines_BL.argmax(1), second_B2[:, 1], second_B2[:, 1] - second_B2[:, 0]


def label_rows(
    index: Index,
    condition: str | None,
    blocks: Blocks,
    *,
    labels: Sequence[str],
    examples: Mapping[str, Sequence[str]] | None = None,
    stated: bool = False,
) -> pa.Table:
    """The rows in these blocks, which are under a condition of the index: id, label, score and margin; and whether the
    row states something of the condition, where the model knows. stated: without a label where it states nothing."""
    index.check_conditional([] if condition is None else [condition], phrases=True, stated=stated)
    check_alike(index.encoder.config.prepare(labels, None), labels, "--labels")
    labels_LD = label_vectors(index.embed, labels, condition, examples)
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
