"""The conditions of a job: strings, or a file of them."""

from __future__ import annotations

from collections.abc import Sequence

from raycase.errors import RequestError, is_words
from raycase.io.inputs import find_input, peek
from raycase.io.reader import read_columns
from raycase.io.schema import CONDITION
from raycase.io.source import read_text


def read_conditions(values: Sequence[str]) -> list[str]:
    """The conditions of a job: strings, or one file (`.txt`, one per line; `.parquet` or `.csv`, column `condition`).

    Raises RequestError for an empty or repeated condition, several files, and a file that is missing or has none.
    """
    conditions: list[object] = list(values)
    file = conditions_file(values)
    if file is not None:
        if len(values) > 1:
            raise RequestError(
                f"--conditions: expected conditions or one file of them, got {len(values)} values with {file} among "
                "them; put them into one file"
            )
        conditions = _conditions_in(values[0])
        if not conditions:
            raise RequestError(f"--conditions: expected at least one condition in {file}, got none")
    seen: dict[str, None] = {}
    for i, condition in enumerate(conditions):
        if not is_words(condition):
            raise RequestError(f"--conditions: expected words in every condition, got {condition!r} at index {i}")
        if (stripped := str(condition).strip()) in seen:
            raise RequestError(f"--conditions: expected each condition once, got {stripped!r} twice")
        seen[stripped] = None
    return list(seen)


def conditions_file(values: Sequence[str]) -> str | None:
    """The file among the values; None where they are conditions."""
    return next((value for value in values if value.lower().endswith((".txt", ".parquet", ".csv"))), None)


def _conditions_in(uri: str) -> list[object]:
    """The conditions in a file, unchecked. Raises RequestError where it cannot be read or lacks the column."""
    if uri.lower().endswith(".txt"):
        return [line for line in read_text(uri).splitlines() if line.strip()]
    found: list[object] = []
    for file in find_input(uri, "--conditions"):
        names = peek(file).names
        [name] = names if len(names) == 1 else [CONDITION]
        found += read_columns(file, [name], "--conditions")[name]
    return found
