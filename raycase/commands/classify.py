"""The command classify: each row of an index gets one of some labels under a condition, as Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from raycase.commands.flags import OfIndex
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
    """Promise that the model is right for at least this share of the rows that it labels, with 95 % confidence. Other
    rows stay open."""
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


def classify(flags: ClassifyFlags) -> dict[str, Any]:
    """Give each row of an index the best of your labels."""
    from raycase.explore.ask_endpoint import Endpoint, answer_rows, check_askable
    from raycase.explore.classify import label_rows
    from raycase.explore.labelling import Labelled, Wanted, label_by_answers
    from raycase.io.places import PARQUET
    from raycase.io.reader import conditions_file
    from raycase.io.row_labels import LABEL, csv_bytes
    from raycase.io.storage import locate

    shares = {"precision": flags.precision, "recall": flags.recall}
    ranges = {of: (share is None or 0.5 <= share < 1, "a share from 0.5 to below 1") for of, share in shares.items()}
    ranges |= at_least(1, flags, "ask_limit") | at_least(2, flags, "asked_rows", most=10_000)
    reads = {"--labels": conditions_file(flags.labels), "--answers": flags.answers}
    began = flags.check(ranges, reads=reads, writes={"output": PARQUET, "ask": (".csv",)})
    labels, answers = _read(flags)
    asked = flags.asked_rows if flags.ask else 0
    wanted = Wanted(precision=flags.precision, recall=flags.recall, each=flags.promise != "all", asked=asked)

    def work(*rows: Any) -> Labelled:
        if not flags.answers and not flags.precision:
            return Labelled(table=label_rows(*rows, labels=labels, stated=flags.stated))
        return label_by_answers(*rows, labels=labels, answers=answers, where=flags.where, wanted=wanted)

    _, condition, found = flags.on_rows(flags.condition, work)
    if found.unsure:
        note(f"no probabilities: {found.unsure}")
    ask, files = found.ask, dict[str, Any](output=found.table)
    if ask is not None:
        ask, files["ask"] = _with_answers(str(flags.ask), ask, answers)
        if flags.ask_endpoint:
            check_askable(ask, labels)
    counted = {row["values"]: row["counts"] for row in found.table[LABEL].value_counts().to_pylist()}
    promised = _promised(flags, found)
    counts: dict[str, Any] = {"labels": {label: counted.get(label, 0) for label in labels}}
    counts |= {"not_stated": counted.get(None, 0) - promised.get("open", 0), **promised}
    rows = len(found.table)
    result = flags.finish(began, files, asked=flags.condition, condition=condition, rows=rows, **counts)
    _show(flags, result)
    if ask is not None and flags.ask_endpoint:
        place, log = locate(str(flags.ask)), locate(f"{flags.ask}.log.jsonl")
        endpoint = Endpoint(url=flags.ask_endpoint, model=str(flags.ask_model), limit=flags.ask_limit)
        answer_rows(endpoint, ask, str(condition), labels, log, lambda answered: place.put(csv_bytes(answered)))
    return result


def _read(flags: ClassifyFlags) -> tuple[list[str], RowLabels]:
    """The labels and the answers. Raises RequestError, also for flags that need others, or exclude them."""
    from raycase.io.reader import read_conditions
    from raycase.io.row_labels import OPEN, RowLabels, read_row_labels

    answers = read_row_labels(flags.answers) if flags.answers else RowLabels()
    labels = read_conditions(flags.labels, "--labels") if flags.labels else answers.names
    of, url = "--labels" if flags.labels else "--answers", flags.ask_endpoint or ""
    lacking, found = sorted({*answers.names} - {*labels}), len(labels) + (None in answers.labels)
    web = "--ask-endpoint: expected a URL that begins with http:// or https://"
    problems = {
        "--labels: expected labels, or --answers that have them, got neither": not flags.labels and not flags.answers,
        "--stated: expected none beside --answers, where an empty label is an answer": flags.stated and flags.answers,
        "--precision: expected --answers beside it, got none": flags.precision and not (flags.answers or flags.ask),
        "--ask: expected --precision beside it, got none": flags.ask and not flags.precision,
        "--recall: expected --precision beside it, got none": flags.recall and not flags.precision,
        "--recall: expected none beside --promise each-label": flags.recall and flags.promise == "each-label",
        "--ask-endpoint: expected --ask and --ask-model beside it": url and not (flags.ask and flags.ask_model),
        f"{web}, got {visible(url, MOST_LABEL)}": url and not url.startswith(("http://", "https://")),
        f"{of}: expected labels other than {OPEN!r}, which stands for no answer": OPEN in labels,
        f"{of}: expected two labels or more, got {len(labels)}": found < 2,
        f"--answers: expected labels of --labels, got {visible([*lacking, ''][0], MOST_LABEL)!r}": lacking,
    }
    check_problems(problems)
    return labels, answers


def _with_answers(uri: str, ask: pa.Table, answers: RowLabels) -> tuple[pa.Table, bytes]:
    """The rows to ask for, with what their file already has; and the file, as it is where it asks for these. Raises
    RequestError where an answer would be lost."""
    import pyarrow as pa

    from raycase.io.row_labels import LABEL, OPEN, csv_bytes, read_asked
    from raycase.io.schema import ID
    from raycase.io.storage import locate

    there, ids = read_asked(uri) if locate(uri).exists() else {}, [str(each).strip() for each in ask[ID].to_pylist()]
    asked = [*zip(ids, ask[LABEL].to_pylist(), strict=True)]
    given = {name: label or "" for (_, name), label in answers.label_of.items()} | dict(asked)
    lost = [name for name, label in there.items() if label != OPEN and given.get(name) not in (label, OPEN)]
    got = f"got {uri} with {len(lost):,} answers that are not in --answers; they would be lost"
    check_problems({f"--ask: expected a new file, {got}": lost})
    labels = [there.get(name, label) if label == OPEN else label for name, label in asked]
    ask = ask.set_column(ask.column_names.index(LABEL), LABEL, pa.array(labels, pa.string()))
    return ask, locate(uri).read() if there and [*there] == ids else csv_bytes(ask)


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
    statement = f"nothing is promised yet ({by}): give more answers, or promise less"
    if promised:
        statement = f"the model is right for at least {precision} of {int(some.rows.sum()):,} rows"
        statement += ", and of those of each label" if flags.promise != "all" else ""
        statement += f", and {of_recall}" if some.recalled else ""
        statement += f", with {sure} confidence ({by})"
        statement += f"; that {of_recall} is not promised" if flags.recall and not some.recalled else ""
    elif not left_open:
        statement = "every row is answered"
    elif some.lacking:
        statement = f"nothing is promised yet: it takes at least {some.lacking:,} more random answers, all right"
    counts = {"decided": decided, "promised": promised, "open": left_open}
    return counts | {"bound": flags.precision if promised else None, "confidence": 1 - DOUBT, "statement": statement}


def _show(flags: ClassifyFlags, result: Mapping[str, Any]) -> None:
    """Print how many rows have each label, and what is promised."""
    counts, rows, promises = result["labels"], result["rows"], "open" in result
    print(f'\n{rows:,} rows under "{visible(result["condition"], MOST_LABEL)}"\n')
    shown = sorted(counts.items(), key=lambda item: -item[1])
    if flags.stated or result["not_stated"]:
        shown.append(("not stated" if "not stated" not in counts else "without a label", result["not_stated"]))
    for name, count in [*shown, ("open", result["open"])] if promises else shown:
        print(f"{count:>10,}  {count / rows:>6.1%}  {visible(name, MOST_LABEL)}")
    if promises:
        print(f"\n{result['decided']:,} decided, {result['promised']:,} promised, {result['open']:,} open")
        print(result["statement"])
    print()
