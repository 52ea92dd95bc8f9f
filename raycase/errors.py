"""What can go wrong, and how it is said: every room's exceptions."""

from __future__ import annotations

from collections.abc import Mapping


class RequestError(ValueError):
    """The request was wrong (exit status 2): the message says what was wanted, what was found, what to do."""


class WorkError(RuntimeError):
    """The work failed or the output does not add up (exit status 1)."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_ranges(flags: object, ranges: Mapping[str, tuple[bool, str]]) -> None:
    """Raise RequestError for the first flag whose value does not fit; `ranges`: whether it does, and what is wanted."""
    for name, (fits, wanted) in ranges.items():
        if not fits:
            raise RequestError(f"--{name.replace('_', '-')}: expected {wanted}, got {getattr(flags, name)}")
