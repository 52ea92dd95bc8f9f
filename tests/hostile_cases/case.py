"""One hostile or clumsy case."""

from dataclasses import dataclass

SECRET = "hunter2secret"  # must never be printed


@dataclass
class Case:
    """One command; `texts`: what the output's texts must be, where it ends in 0."""

    group: str
    name: str
    arguments: list
    work: object = None
    texts: list | None = None
    output: str | None = None
