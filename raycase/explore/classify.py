"""The command classify: each row of an index gets the nearest of some labels under a condition, as Parquet.

Shapes: L labels, B rows of a part, D dimensions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, RequestError, check_ranges, visible
from raycase.index.condition_vectors import BATCH_ROWS
from raycase.index.index import LEAST_STATED, Index, note_searched, on_index
from raycase.index.lance_files import lance_errors
from raycase.index.topk import parts
from raycase.io.places import PARQUET, File, check_paths
from raycase.io.reader import conditions_file, read_conditions, read_files
from raycase.io.schema import ID, SCORE, STATED, parquet_bytes
from raycase.io.storage import locate
from raycase.io.vectors import l2_normalize
from raycase.models.pairs import check_alike

TEXT, LABEL, MARGIN = "text", "label", "margin"
AT_ONCE = 2**22  # cosines of rows and labels that are held


@dataclass(frozen=True, kw_only=True)
class ClassifyFlags(OfIndex):
    """Give each row of an index the best of your labels: the nearest, by cosine, to what the row says about a
    condition. Labels are embedded as phrases that answer the condition, as by `raycase search --phrase`."""

    condition: str
    """The condition that the labels answer, as "late delivery" does "reason for the complaint"."""
    labels: tuple[str, ...]
    """Two labels or more, or one .txt (one a line), .parquet, .csv or .jsonl file with a column `label`."""
    output: str
    """Parquet file of the rows, local or on object storage."""
    examples: str | None = None
    """Texts that you labelled, such as eight of each label: a .parquet, .csv or .jsonl file with columns `text` and
    `label`. Half of a label's vector is then their mean."""
    stated: bool = False
    """Leave out the label of a row that says nothing about the condition. Needs stored tokens and a model trained on
    labelled texts."""


def classify(flags: ClassifyFlags) -> dict[str, Any]:
    """Label the rows, write the file, print how many rows each label has, and return counts. Raises RequestError."""
    began = time.time()
    check_paths(
        reads={"--labels": conditions_file(flags.labels), "--examples": flags.examples},
        opens=flags.opens,
        writes={"--output": File(flags.output, PARQUET)},
    )
    check_ranges(flags)
    labels = read_conditions(flags.labels, "--labels")
    if len(labels) < 2:
        raise RequestError(f"--labels: expected two labels or more, got {len(labels)}")
    examples = read_examples(flags.examples, labels) if flags.examples else None
    _, (condition, table) = on_index(flags.open, partial(_label, flags, labels, examples))
    locate(flags.output).put(parquet_bytes(table))
    rows = len(table)
    print(f'\n{rows:,} rows under "{visible(condition, MOST_LABEL)}"\n')
    counted = {row["values"]: row["counts"] for row in table[LABEL].value_counts().to_pylist()}
    counts, unlabelled = {label: counted.get(label, 0) for label in labels}, counted.get(None, 0)
    rest = "not stated" if "not stated" not in counts else "without a label"
    shown = sorted(counts.items(), key=lambda item: -item[1]) + [(rest, unlabelled)] * flags.stated
    for label, count in shown:
        print(f"{count:>10,}  {count / rows:>6.1%}  {visible(label, MOST_LABEL)}")
    print()
    return {
        "asked": flags.condition,
        "condition": condition,
        "rows": rows,
        "labels": counts,
        "not_stated": unlabelled,
        "seconds": round(time.time() - began, 3),
        "output": locate(flags.output).uri,
    }


def read_examples(uri: str, labels: Sequence[str]) -> dict[str, list[str]]:
    """The texts of each label. Raises RequestError for another label, a text of two, and a label without texts."""
    texts: dict[str, list[str]] = {label: [] for label in labels}
    label_of: dict[str, str] = {}
    for where, read in read_files(uri, (TEXT, LABEL), "--examples", words=(TEXT, LABEL)):
        for text, label in zip(read[TEXT], read[LABEL], strict=True):
            if label not in texts:
                raise RequestError(f"{where}: expected labels of --labels, got {visible(label, MOST_LABEL)!r}")
            if (other := label_of.setdefault(text, label)) != label:
                raise RequestError(f"{where}: expected one label of {text!r:.80}, got {other!r} and {label!r}")
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
    """Unit vectors of labels under a condition: (L, D) float32. With examples, the mean of the label's own vector and
    that of its texts, each of length 1.

    embed: `Index.embed`.
    """
    vectors_LD = embed(labels, condition, "--labels", phrases=True)
    if examples is None:
        return vectors_LD
    texts = [text for label in labels for text in examples[label]]
    starts_L = np.cumsum([0, *(len(examples[label]) for label in labels)])[:-1]
    sums_LD = np.add.reduceat(embed(texts, condition, "--examples"), starts_L)
    return l2_normalize(vectors_LD + l2_normalize(sums_LD))


def nearest_labels(vectors_BD: np.ndarray, labels_LD: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The label whose vector is nearest to each of B unit vectors, of equal ones the first; its cosine, and by how much
    that is above the second: three of (B,)."""
    cosines_BL = (vectors_BD @ labels_LD.T).clip(-1, 1)
    second_B2 = np.partition(cosines_BL, -2)[:, -2:]
    return cosines_BL.argmax(1), second_B2[:, 1], second_B2[:, 1] - second_B2[:, 0]


def _label(
    flags: ClassifyFlags, labels: list[str], examples: Mapping[str, list[str]] | None, index: Index
) -> tuple[str | None, pa.Table]:
    """The condition that is taken, and the labelled rows of an open index."""
    condition, blocks = index.blocks(flags.condition, flags.where, exact_condition=flags.exact_condition)
    index.check_conditional([flags.condition], phrases=True, stated=flags.stated)
    note_searched(index, {flags.condition: condition}, flags.where)
    check_alike(index.encoder.config.prepare(labels, None), labels, "--labels")
    labels_LD = label_vectors(index.embed, labels, condition, examples)
    names, tables = pa.array(labels), []
    step = max(1, min(BATCH_ROWS, AT_ONCE // len(labels)))
    for offsets_B, vectors_BD in parts(blocks(), step):
        label_B, score_B, margin_B = nearest_labels(vectors_BD.numpy(), labels_LD)
        states_B = (
            index.stated_at(str(condition), offsets_B) if index.gives_stated(condition) else np.ones(len(label_B))
        )
        has_none_B = (states_B < LEAST_STATED) & flags.stated
        with lance_errors(index.root):
            ids = index.dataset.take(offsets_B, columns=[ID])[ID]
        columns = {
            ID: ids,
            LABEL: names.take(pa.array(label_B, mask=has_none_B)),
            SCORE: pa.array(score_B),
            MARGIN: pa.array(margin_B),
        }
        tables.append(pa.table(columns | ({STATED: pa.array(states_B)} if index.gives_stated(condition) else {})))
    if not tables:
        raise RequestError("--where: expected a filter that leaves rows to label, got one that leaves none")
    return condition, pa.concat_tables(tables)
