"""The command classify: each row of an index gets the nearest of some labels under a condition, as Parquet."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from raycase.commands.flags import OfIndex
from raycase.errors import MOST_LABEL, RequestError, visible

EXAMPLE = "raycase classify --index captions.lance --condition place --labels beach street --output labels.parquet"


@dataclass(frozen=True, kw_only=True)
class ClassifyFlags(OfIndex):
    """Give each row of an index the best of your labels: the nearest, by cosine, to what the row states of a condition.
    Labels are embedded as phrases that answer the condition, as by `raycase search --phrase`."""

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
    """Leave out the label of a row that states nothing of the condition. Needs stored tokens and a model trained on
    labelled texts."""


def classify(flags: ClassifyFlags) -> dict[str, Any]:
    """Give each row of an index the best of your labels."""
    from raycase.explore.classify import label_rows, read_examples
    from raycase.io.places import PARQUET
    from raycase.io.reader import conditions_file, read_conditions

    reads = {"--labels": conditions_file(flags.labels), "--examples": flags.examples}
    began = flags.check(reads=reads, writes={"output": PARQUET})
    labels = read_conditions(flags.labels, "--labels")
    if len(labels) < 2:
        raise RequestError(f"--labels: expected two labels or more, got {len(labels)}")
    examples = read_examples(flags.examples, labels) if flags.examples else None
    label = partial(label_rows, labels=labels, examples=examples, stated=flags.stated)
    _, condition, table = flags.on_rows(flags.condition, label)
    rows = len(table)
    counted = {row["values"]: row["counts"] for row in table["label"].value_counts().to_pylist()}
    counts, unlabelled = {label: counted.get(label, 0) for label in labels}, counted.get(None, 0)
    given = {"asked": flags.condition, "condition": condition, "rows": rows}
    result = flags.finish(began, {"output": table}, **given, labels=counts, not_stated=unlabelled)
    print(f'\n{rows:,} rows under "{visible(condition, MOST_LABEL)}"\n')
    rest = "not stated" if "not stated" not in counts else "without a label"
    shown = sorted(counts.items(), key=lambda item: -item[1]) + [(rest, unlabelled)] * flags.stated
    for name, count in shown:
        print(f"{count:>10,}  {count / rows:>6.1%}  {visible(name, MOST_LABEL)}")
    print()
    return result
