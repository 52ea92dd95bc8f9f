"""What is below a folder of this machine. Links are followed, but not in circles."""

from __future__ import annotations

import os
from collections.abc import Iterator
from math import inf


def is_hidden(name: str) -> bool:
    """Whether a file or folder is left out because of its name, unless it is asked for."""
    return name.startswith((".", "_"))


def below(folder: str, depth: float = inf) -> Iterator[os.DirEntry[str]]:
    """All but folders and what is hidden, `depth` levels down. Each folder is listed once, those behind links last.

    Raises OSError for a folder that may not be listed.
    """
    seen: set[str] = set()
    ahead, links = [(folder, depth)], list[tuple[str, float]]()
    while ahead or links:
        at, depth = ahead.pop() if ahead else links.pop(0)
        if (real := os.path.realpath(at)) in seen:
            continue
        seen.add(real)
        with os.scandir(at) as listed:
            entries = sorted((entry for entry in listed if not is_hidden(entry.name)), key=lambda entry: entry.name)
        for entry in entries:
            if not os.path.isdir(entry.path):
                yield entry
            elif depth > 1:
                (links if entry.is_symlink() else ahead).append((entry.path, depth - 1))
