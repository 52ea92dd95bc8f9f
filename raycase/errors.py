"""The exceptions of every room, and how they are reported."""

from __future__ import annotations

from collections.abc import Mapping


class RequestError(ValueError):
    """The request was wrong (exit status 2). The message says what was expected, what was given, and what to do."""


class WorkError(RuntimeError):
    """The work failed or the output does not add up (exit status 1)."""


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


PATIENCE = 60.0  # minutes without progress after which a job on Ray gives up


def check_patience(minutes: float) -> None:
    """Raise RequestError for a --patience that is not above 0."""
    if not minutes > 0:
        raise RequestError(f"--patience: expected minutes above 0, got {minutes:g}")


def check_ranges(flags: object, ranges: Mapping[str, tuple[bool, str]]) -> None:
    """Raise RequestError for the first flag out of range; `ranges`: flag -> (in range?, what is expected)."""
    for name, (fits, expected) in ranges.items():
        if not fits:
            raise RequestError(f"--{name.replace('_', '-')}: expected {expected}, got {getattr(flags, name)}")
