"""Labelled texts: do texts that are near each other under a condition state the same of it.

Shapes: N texts that state something, D dimensions, M measures.
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from raycase.evaluation.metrics import auc, estimate, mean_of
from raycase.evaluation.models import Model
from raycase.evaluation.report import RankedSystem, Settings, interval, rank_systems
from raycase.index.topk import nearest_others
from raycase.io.inputs import find_input
from raycase.io.labelled_texts import LabelledTexts, labels_of, read_labelled
from raycase.io.vectors import l2_normalize
from raycase.models.condition_pooling import ConditionPoolingConfig

NEAREST = 10
MEASURES = ("group", "label")
ALL = "mean of the columns"


def read(data: str, labels: Sequence[str] = ()) -> list[LabelledTexts]:
    """Read each table with its JSON."""
    files = [file.uri for file in find_input(data, "--data")]
    return [read_labelled(uri, own, "--data") for uri, own in zip(files, labels_of(files, labels), strict=True)]


def measure(settings: Settings, tables: list[LabelledTexts], models: Sequence[Model]) -> dict[str, Any]:
    """`MEASURES` of each column and their mean over columns, by the vectors of each model without and with the
    condition, and their differences from the first model's without; other models also from the first one's with."""
    systems = []
    for model in models:
        for what, conditional in (("without a condition", False), (model.config.label, True)):
            values: dict[str, np.ndarray] = {}
            for table in tables:
                before = "" if len(tables) == 1 else f"{PurePosixPath(table.uri).stem}, "
                for column, near_NM in zip(table.columns, _of_table(table, model, conditional), strict=True):
                    values[before + column.name] = near_NM
            means_CM = np.stack([near_NM.mean(0) for near_NM in values.values()])
            name = model.name if conditional else f"{model.name}, unconditional"
            systems.append(RankedSystem(name=name, what=what, values={ALL: means_CM} | values))
    rows = sum(map(len, tables))
    stated = {model.name: _stated(settings, tables, model) for model in models}
    figures = ", ".join(f"{name} {interval(figure)}" for name, figure in stated.items() if figure)
    aucs = f"\n\nWhether a text states anything of a column's condition, AUC x 100: {figures}" if figures else ""
    return {"stated": stated} | rank_systems(
        settings,
        title="Labelled texts",
        about=f"{rows:,} texts. Of the {NEAREST} texts nearest to each one under a column's condition, the share x 100 "
        "with a label of the same group (`group`), and with the same label (`label`), among texts that have a label. "
        f"With 95 % intervals of the bootstrap over texts; for the mean of the columns, over columns.{aucs}",
        data={"rows": rows, "sha256": [table.data_sha256 for table in tables]},
        measures=MEASURES,
        systems=systems,
        compared={"against_conditional": systems[1::2]},
    )


def _stated(settings: Settings, tables: list[LabelledTexts], model: Model) -> dict[str, float] | None:
    """AUC x 100 of the probability that a text states something, the mean of the columns that leave some texts out;
    None of a model that does not know."""
    head = model.config.head if isinstance(model.config, ConditionPoolingConfig) else None
    if head is None or not head.stated:
        return None
    loaded, found = model.config.load(), []
    for table in tables:
        known = [(column.conditions[0], stated) for column in table.columns if (stated := column.stated) is not None]
        if known:  # in one call, since each text is encoded once in a call
            asked = [condition for condition, _ in known for _ in table.texts]
            probabilities = np.split(loaded.stated([*table.texts] * len(known), asked), len(known))
            found += [auc(of_column, truth) for of_column, (_, truth) in zip(probabilities, known, strict=True)]
    aucs = np.array(found)
    return estimate(mean_of, aucs, aucs, resamples=settings.resamples, seed=settings.seed) if found else None


def _of_table(table: LabelledTexts, model: Model, conditional: bool) -> Iterator[np.ndarray]:
    """`MEASURES` of each text that has a label in a column, column after column: (N, M) each."""
    rows = [np.flatnonzero([bool(labels) for labels in column.labels]) for column in table.columns]
    if conditional:
        wordings = [column.conditions[0] for column in table.columns]
        pairs = [(table.texts[row], word) for word, of in zip(wordings, rows, strict=True) for row in of]
        vectors = np.split(model.project(model.embed(pairs)), np.cumsum([len(of) for of in rows])[:-1])
    else:
        unconditional_TD = model.embed(table.texts)
        vectors = [unconditional_TD[of] for of in rows]
    for column, of, vectors_ND in zip(table.columns, rows, vectors, strict=True):
        labels = [column.labels[row] for row in of]
        levels = [[column.coarse(cell) for cell in labels], labels]
        near = nearest_others(l2_normalize(vectors_ND), NEAREST)[1].tolist()
        yield np.array(
            [[np.mean([bool(level[row] & level[n]) for n in near[row]]) for level in levels] for row in range(len(of))]
        )
