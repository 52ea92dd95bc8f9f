"""The exceptions of every room, how they are reported, and the ranges of flags that are checked alike everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any


class RequestError(ValueError):
    """The request was wrong (exit status 2). The message says what was expected, what was given, and what to do."""


class WorkError(RuntimeError):
    """The work failed or the output does not add up (exit status 1)."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def one_line(value: object) -> str:
    """A value within a message, whatever lines it has."""
    return " ".join(str(value).splitlines())


PATIENCE = 60.0  # minutes without progress after which a job on Ray gives up
MOST = 2**63 - 1  # of a whole number: what a file and a store of columns hold
MOST_SEED = 2**32 - 1  # of scikit-learn's and Optuna's seeds


def check_ranges(flags: Any, ranges: Mapping[str, tuple[bool, str]] = MappingProxyType({})) -> None:
    """Raise RequestError for the first flag out of range; `ranges`: flag -> (in range?, what is expected).

    Whatever the ranges: no number among the fields of the dataclass may be NaN, infinite or beyond 64 bits, and no text
    may hold what UTF-8 cannot encode. The check of every job calls this.
    """
    for name, (fits, expected) in ranges.items():
        if not fits:
            raise RequestError(f"{_flag(name)}: expected {expected}, got {getattr(flags, name)}")
    for field in fields(flags):
        values = getattr(flags, field.name)
        for value in values if isinstance(values, tuple) else (values,):
            if problem := _problem(value):
                raise RequestError(f"{_flag(field.name)}: {problem}")


def _problem(value: object) -> str | None:
    """Why no flag can have this value."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"expected a finite number, got {value}"
    if isinstance(value, int) and abs(value) > MOST:
        return f"expected a number of at most 64 bits, got one of {value.bit_length()}"
    return f"expected text in UTF-8, got {value!r}" if isinstance(value, str) and not is_utf8(value) else None


def is_utf8(text: str) -> bool:
    """Whether UTF-8 can encode a text: no half of a surrogate pair, as bytes of another encoding become."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def minutes_range(minutes: float) -> tuple[bool, str]:
    """For `check_ranges`: --patience of a job on Ray."""
    return minutes > 0, "minutes above 0"


def at_least(least: int, flags: object, *names: str, most: int | None = None) -> dict[str, tuple[bool, str]]:
    """For `check_ranges`: flags that are unset, or a number not below `least` or above `most`."""
    values = {name: getattr(flags, name) for name in names}
    expected = f"at least {least}" if most is None else f"{least} to {most:,}"
    return {name: (value is None or least <= value <= (most or value), expected) for name, value in values.items()}


def _flag(name: str) -> str:
    """A field as a flag: `-k`, `--unit-rows`."""
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
