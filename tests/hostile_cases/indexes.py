"""Questions to an index, and indexes with one thing wrong."""

import os
import shutil
from pathlib import Path

import storing
from hostile_cases.case import Case
from hostile_cases.filters import FILTERS


def index_cases(home, pooled):
    """Questions to an index, and an index with one thing wrong."""
    whole = storing.stored(home / "indexed", pooled, storing.texts(40), unit_rows=10)
    index = storing.indexed(home / "index", whole)
    odd = ["", " ", "\udcff", "a\0b", "dog " * 10**5, "\u202e", "-", "'; drop table", "[MASK] [SEP]", "\U0001f600"]
    for query in odd:
        given = ["search", "--index", index, f"--query={query}", "--condition", "color"]
        yield Case("indexes", f"--query {query[:20]!r}", given)
        given = ["search", "--index", index, "--query", "a dog", f"--condition={query}"]
        yield Case("indexes", f"--condition {query[:20]!r}", given)
    for where in ("nope", "year >", "year = 'x'", "\udcff", "(", *FILTERS):
        given = ["search", "--index", index, "--query", "a dog", "--condition", "color", f"--where={where}"]
        yield Case("indexes", f"--where {where[:40]!r}", given)
        yield Case("indexes", f"--delete {where[:40]!r}", ["index", "--output", index, f"--delete={where}"])
    names = sorted(str(p.relative_to(index)) for p in Path(index).rglob("*") if p.is_file())
    for i, name in enumerate(names[:24]):
        for change in ("gone", "cut off"):
            folder = home / f"index-{i}-{change[:3]}"
            shutil.copytree(index, folder)
            if change == "gone":
                (folder / name).unlink()
            else:
                os.truncate(folder / name, (folder / name).stat().st_size // 2)
            kind = Path(name).parts[0] + "/" + Path(name).suffix
            given = ["search", "--index", folder, "--query", "a dog", "--condition", "color"]
            yield Case("indexes", f"a file of the index is {change}: {kind} {i}", given)
