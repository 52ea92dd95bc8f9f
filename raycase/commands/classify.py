"""The command classify: each row of an index gets one of some labels under a condition, as Parquet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from raycase.commands.flags import NONE, OfIndex
from raycase.errors import MOST_LABEL, at_least, check_problems, note, visible

if TYPE_CHECKING:
    import pyarrow as pa

    from raycase.explore.labelling import Labelled
    from raycase.io.row_labels import RowLabels

EXAMPLE = "raycase classify --index captions.lance --condition place --labels beach street --output labels.parquet"


@dataclass(frozen=True, kw_only=True)
class ClassifyFlags(OfIndex):
    """Give each row of an index the best of your labels: the nearest, by cosine, to what the row states of a condition,
    or as learned from rows that you answered. Labels are embedded as phrases, as by `raycase search --phrase`."""

    condition: str
    """The condition that the labels answer, as "late delivery" does "reason for the complaint"."""
    output: str
    """Parquet file of the rows, local or on object storage."""
    labels: tuple[str, ...] = ()
    """Two labels or more, or one .txt (one a line), .parquet, .csv or .jsonl file with a column `label`. Default: those
    of --answers."""
    answers: tuple[str, ...] = ()
    """Rows that you labelled: .csv, .jsonl or .parquet files with the columns `id` or `text`, and `label`. An empty
    label means that the text states nothing of the condition, "?" that nobody has answered yet."""
    stated: bool = False
    """Without --answers: leave out the label of a row that states nothing of the condition. Needs stored tokens and a
    model trained on labelled texts."""
    precision: float | None = None
    """Promise that at least this share of the labels is right, with 95 % confidence. Rows whose label cannot be
    promised stay open."""
    recall: float | None = None
    """Try to promise, too, that at least this share of the rows with a label gets the right one."""
    promise: Literal["all", "each-label"] = "all"
    """Whether the precision is promised of all labels together or of each label."""
    ask: str | None = None
    """CSV file for the rows whose answers would settle most. Fill in its column `label`, and give it back as one more
    file of --answers."""
    asked_rows: int = 50
    """Rows in --ask."""
    ask_endpoint: str | None = None
    """A language model that fills in --ask: the URL of an API like OpenAI's, such as http://localhost:8000/v1. It gets
    the texts of these rows. The key is read from OPENAI_API_KEY."""
    ask_model: str | None = None
    """The model's name at --ask-endpoint."""
    ask_limit: int | None = None
    """Most requests to --ask-endpoint for one file of --ask."""

    def check_asking(self) -> None:
        """Raise RequestError for flags that need others, or exclude them."""
        url = self.ask_endpoint or ""
        refused = {
            "--labels: expected labels, or --answers that have them, got neither": not self.labels and not self.answers,
            "--stated: expected none beside --answers, where an empty label is an answer": self.stated and self.answers,
            "--precision: expected --answers beside it, got none": self.precision and not (self.answers or self.ask),
            "--ask: expected --precision beside it, got none": self.ask and not self.precision,
            "--recall: expected --precision beside it, got none": self.recall and not self.precision,
            "--recall: expected none beside --promise each-label": self.recall and self.promise == "each-label",
            "--ask-endpoint: expected --ask and --ask-model beside it": url and not (self.ask and self.ask_model),
            f"--ask-endpoint: expected a URL that begins with http:// or https://, got {visible(url, MOST_LABEL)}": (
                url and not url.startswith(("http://", "https://"))
            ),
        }
        check_problems(refused)


def classify(flags: ClassifyFlags) -> dict[str, Any]:
    """Give each row of an index the best of your labels."""
    from raycase.explore.ask_endpoint import check_askable
    from raycase.explore.classify import label_rows
    from raycase.explore.labelling import Wanted, label_by_answers
    from raycase.io.places import PARQUET
    from raycase.io.reader import conditions_file
    from raycase.io.row_labels import NO_ANSWERS, csv_bytes

    shares = {name: getattr(flags, name) for name in ("precision", "recall")}
    ranges = {
        name: (share is None or 0.5 <= share < 1, "a share from 0.5 to below 1") for name, share in shares.items()
    }
    ranges |= at_least(1, flags, "ask_limit") | at_least(2, flags, "asked_rows", most=10_000)
    reads = {"--labels": conditions_file(flags.labels), "--answers": flags.answers}
    began = flags.check(ranges, reads=reads, writes={"output": PARQUET, "ask": (".csv",)})
    flags.check_asking()
    labels, answers = _read(flags)
    if answers is None and flags.precision is None:
        label = partial(label_rows, labels=labels, stated=flags.stated)
        _, condition, table = flags.on_rows(flags.condition, label)
        return _finish(flags, began, {"output": table}, condition, labels)
    asked = flags.asked_rows if flags.ask else 0
    wanted = Wanted(precision=flags.precision, recall=flags.recall, each=flags.promise != "all", asked=asked)
    work = partial(label_by_answers, labels=labels, answers=answers or NO_ANSWERS, where=flags.where, wanted=wanted)
    _, condition, found = flags.on_rows(flags.condition, work)
    if found.unsure:
        note(f"no probabilities: {found.unsure}")
    ask, there = _with_answers(flags, found.ask, answers)
    if ask is not None and flags.ask_endpoint:
        check_askable(ask, labels)
    files = {"output": found.table} | ({"ask": there or csv_bytes(ask)} if ask is not None else {})
    result = _finish(flags, began, files, condition, labels, _promised(flags, found))
    if ask is not None and flags.ask_endpoint:
        _ask_endpoint(flags, ask, condition, labels)
    return result


def _read(flags: ClassifyFlags) -> tuple[list[str], RowLabels | None]:
    """The labels and the answers. Raises RequestError."""
    from raycase.io.reader import read_conditions
    from raycase.io.row_labels import OPEN, read_row_labels

    answers = read_row_labels(flags.answers) if flags.answers else None
    labels = read_conditions(flags.labels, "--labels") if flags.labels or answers is None else answers.names
    lacking = sorted({*answers.names} - {*labels}) if answers else []
    of, nones = "--labels" if flags.labels else "--answers", answers.labels.count(None) if answers else 0
    problems = {
        f"{of}: expected labels other than {OPEN!r}, which stands for no answer": OPEN in labels,
        f"{of}: expected two labels or more, got {len(labels)}": len(labels) + bool(nones) < 2,
        f"--answers: expected labels of --labels, got {visible(lacking[0], MOST_LABEL) if lacking else ''!r}": lacking,
    }
    check_problems(problems)
    return labels, answers


def _with_answers(flags: ClassifyFlags, ask: Any, answers: RowLabels | None) -> tuple[pa.Table | None, bytes | None]:
    """The rows to ask for, with what the file already has; the file as it is, where it asks for these. Raises
    RequestError where an answer would be lost."""
    import pyarrow as pa

    from raycase.io.row_labels import LABEL, OPEN, read_asked
    from raycase.io.schema import ID
    from raycase.io.storage import locate

    if ask is None or flags.ask is None or not locate(flags.ask).exists():
        return ask, None
    there, ids = read_asked(flags.ask), [str(each).strip() for each in ask[ID].to_pylist()]
    given = {name: label or "" for (_, name), label in answers.label_of.items()} if answers else {}
    given |= dict(zip(ids, ask[LABEL].to_pylist(), strict=True))
    lost = [name for name, label in there.items() if label != OPEN and given.get(name) not in (label, OPEN)]
    got = f"got {flags.ask} with {len(lost):,} answers that are not in --answers; they would be lost"
    check_problems({f"--ask: expected a new file, {got}": lost})
    asked = zip(ids, ask[LABEL].to_pylist(), strict=True)
    labels = [there.get(name, label) if label == OPEN else label for name, label in asked]
    table = ask.set_column(ask.column_names.index(LABEL), LABEL, pa.array(labels))
    return table, locate(flags.ask).read() if [*there] == ids else None


def _ask_endpoint(flags: ClassifyFlags, ask: pa.Table, condition: str | None, labels: Sequence[str]) -> None:
    """Have a language model fill in the rows to ask for, in their file."""
    from raycase.explore.ask_endpoint import Endpoint, answer_rows
    from raycase.io.row_labels import csv_bytes
    from raycase.io.storage import locate

    place, log = locate(str(flags.ask)), locate(f"{flags.ask}.log.jsonl")
    endpoint = Endpoint(url=str(flags.ask_endpoint), model=str(flags.ask_model), limit=flags.ask_limit)
    answer_rows(endpoint, ask, str(condition), labels, log, lambda answered: place.put(csv_bytes(answered)))


def _promised(flags: ClassifyFlags, found: Labelled) -> dict[str, Any]:
    """What is promised, for the last line; nothing where nothing was asked for."""
    import pyarrow.compute as pc

    from raycase.explore.promise import DOUBT

    if found.promised is None:
        return {}
    promised, decided = (int(pc.sum(found.table[name]).as_py()) for name in ("promised", "answered"))
    some, left_open = found.promised, len(found.table) - decided - promised
    precision, recall, sure = (f"{100 * (share or 0):g}%" for share in (flags.precision, flags.recall, 1 - DOUBT))
    of_recall = f"at least {recall} of all rows with a label have the right one"
    by = f"{some.checked:,} random answers, {some.wrong:,} unlike the model's label"
    if promised:
        statement = f"the model is right for at least {precision} of {int(some.rows.sum()):,} rows"
        statement += ", and of those of each label" if flags.promise != "all" else ""
        statement += f", and {of_recall}" if some.recalled else ""
        statement += f", with {sure} confidence ({by})"
        statement += f"; that {of_recall} is not promised" if flags.recall and not some.recalled else ""
    elif left_open and some.lacking:
        statement = f"nothing is promised yet: it takes at least {some.lacking:,} more random answers, all right"
    elif left_open:
        statement = f"nothing is promised yet ({by}): give more answers, or promise less"
    else:
        statement = "every row is answered"
    counts = {"decided": decided, "promised": promised, "open": left_open}
    return counts | {"bound": flags.precision if promised else None, "confidence": 1 - DOUBT, "statement": statement}


def _finish(
    flags: ClassifyFlags,
    began: float,
    files: Mapping[str, pa.Table | bytes],
    condition: str | None,
    labels: Sequence[str],
    promised: Mapping[str, Any] = NONE,
) -> dict[str, Any]:
    """Write the files, and print how many rows have each label, and what is promised."""
    table: Any = files["output"]
    counted = {row["values"]: row["counts"] for row in table["label"].value_counts().to_pylist()}
    counts, rows = {label: counted.get(label, 0) for label in labels}, len(table)
    unlabelled = counted.get(None, 0) - promised.get("open", 0)
    given = {"asked": flags.condition, "condition": condition, "rows": rows, "labels": counts, "not_stated": unlabelled}
    result = flags.finish(began, files, **given, **promised)
    print(f'\n{rows:,} rows under "{visible(condition, MOST_LABEL)}"\n')
    rest = "not stated" if "not stated" not in counts else "without a label"
    shown = sorted(counts.items(), key=lambda item: -item[1]) + [(rest, unlabelled)] * bool(flags.stated or unlabelled)
    for name, count in [*shown, *[("open", promised.get("open", 0))] * bool(promised)]:
        print(f"{count:>10,}  {count / rows:>6.1%}  {visible(name, MOST_LABEL)}")
    if promised:
        print(f"\n{promised['decided']:,} decided, {promised['promised']:,} promised, {promised['open']:,} open")
        print(promised["statement"])
    print()
    return result
