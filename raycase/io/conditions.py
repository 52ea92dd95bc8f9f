"""The conditions of a job: strings, or a file of them."""

from __future__ import annotations

from collections.abc import Sequence

from raycase.errors import RequestError, is_words
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.source import readable
from raycase.io.storage import locate


def read_conditions(values: Sequence[str], flag: str = "--conditions") -> list[str]:
    """The conditions of a job, or the labels of --labels: strings, or one file (`.txt`, one per line; `.parquet`,
    `.csv` or `.jsonl`, column `condition` or `label`).

    Raises RequestError for an empty or repeated condition, several files, and a file that is missing or has none.
    """
    name = flag.removeprefix("--").removesuffix("s")
    conditions: list[object] = list(values)
    file = conditions_file(values)
    if file is not None:
        if len(values) > 1:
            raise RequestError(
                f"{flag}: expected {name}s or one file of them, got {len(values)} values with {file} among them; put "
                "them into one file"
            )
        conditions = _conditions_in(values[0], flag, name)
        if not conditions:
            raise RequestError(f"{flag}: expected at least one {name} in {file}, got none")
    seen: dict[str, None] = {}
    for i, condition in enumerate(conditions):
        if not is_words(condition):
            raise RequestError(f"{flag}: expected words in every {name}, got {condition!r} at index {i}")
        if (stripped := str(condition).strip()) in seen:
            raise RequestError(f"{flag}: expected each {name} once, got {stripped!r} twice")
        seen[stripped] = None
    return list(seen)


def conditions_file(values: Sequence[str]) -> str | None:
    """The file among the values; None where they are conditions."""
    files = (".txt", ".parquet", ".csv", ".jsonl")
    return next((value for value in values if isinstance(value, str) and value.lower().endswith(files)), None)


def _conditions_in(uri: str, flag: str, column: str) -> list[object]:
    """The conditions in a file, unchecked. Raises RequestError where it cannot be read or lacks the column."""
    if uri.lower().endswith(".txt"):
        with readable(locate(uri)) as location:
            return [line for line in location.read().decode("utf-8-sig").splitlines() if line.strip()]
    found: list[object] = []
    for file in find_input(uri, flag):
        names = peek(file).names
        [name] = names if len(names) == 1 else [column]
        found += read_columns(file, [name], flag)[name]
    return found
