"""Builds of one index by two processes at once, and what the index may have afterwards: `test_builds_at_once.py`."""

import shutil
from dataclasses import dataclass, field, replace

import fsspec
import storing

from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.lance_files import open_ready
from raycase.io.locks import mark_of
from raycase.io.storage import locate

NAMES = ("base", "a", "b", "ra", "rb", "next")  # outputs with stored tokens, each of a basis of its own
OF = {"base": range(60), "a": range(100, 120), "b": range(200, 220), "next": range(300, 310)}
OF |= {"ra": range(20), "rb": range(20, 40)}  # changed texts of ids of the base


def write_outputs(home):
    """The outputs, and `i`, the index of the base."""
    model = storing.model_folder(home)
    for name in NAMES:
        rows = [row | {"text": text(name, row["id"])} for i in OF[name] for row in storing.texts(1, i)]
        storing.stored(home / f"of-{name}", model, rows, output=str(home / name))
    build(embeddings=(str(home / "base"),), output=str(home / "i"))


def text(name, i):
    words = storing.texts(1, i)[0]["text"]
    return f"two people {words}" if name.startswith("r") else words


@dataclass
class Content:
    """What an index has, as far as builds of this file change it."""

    rows: dict = field(default_factory=lambda: {i: text("base", i) for i in OF["base"]})
    vector_index: str = "auto"
    exact_below: int = 100_000
    kept: list = field(default_factory=list)
    has_words: bool = False

    def add(self, *names):
        for name in names:
            self.rows |= {i: text(name, i) for i in OF[name]}
        return self


def builds(home, index, side):
    """Name of a build -> its job by one of two sides, and what it makes of a content."""
    job, own = {"output": index}, {name: str(home / name) for name in NAMES}
    first = side == "a"
    gone, kept = range(50, 55) if first else range(53, 58), "cat" if first else "dog"

    def made(**changes):
        return lambda content: replace(content, **changes)

    def keep(content):
        return replace(content, kept=[*content.kept, kept])

    def without(content):
        return replace(content, rows={i: t for i, t in content.rows.items() if i not in gone})

    def with_rows(name):
        return lambda content: replace(content, rows=dict(content.rows)).add(name)

    def anew(content):
        return Content().add(side)

    return {
        "append": (dict(job, embeddings=(own[side],)), with_rows(side)),
        "replace": (dict(job, embeddings=(own[f"r{side}"],), replace=True), with_rows(f"r{side}")),
        "delete": (dict(job, delete=f"id >= {gone[0]} AND id <= {gone[-1]}"), without),
        "words": (dict(job, text_index=True), made(has_words=True)),
        "kind": (dict(job, vector_index="exact"), made(vector_index="exact"))
        if first
        else (dict(job, exact_below=50), made(exact_below=50)),
        "keep": (dict(job, keep_condition=(kept,)), keep),
        "overwrite": (dict(job, embeddings=(own["base"], own[side]), overwrite=True), anew),
    }


def check(home, index, pair, errors, start):
    """Each ended with an error that says so or with both works done, in any order; the next build works."""
    assert all(error is None or "another build is at work" in error for error in errors), errors
    done = [change for (_, change), error in zip(pair, errors, strict=True) if error is None]
    orders = [done, done[::-1]] if len(done) == 2 else [done]
    allowed = []
    for order in orders:
        content = start and replace(start)
        for change in order:
            content = change(content)
        allowed.append(content)
    ready = open_ready(locate(index))
    if ready is None:
        assert allowed == [None], errors
        return
    assert got(index) in allowed, (errors, got(index), allowed)
    readable(index)
    build(embeddings=(str(home / "next"),), output=index)
    after = [replace(content, rows=dict(content.rows)).add("next") for content in allowed]
    assert got(index) in after
    readable(index)


def got(index):
    """The content of an index, whose metadata count its rows and name its conditions."""
    dataset, metadata = open_ready(locate(index))
    rows = dataset.to_table(columns=["id", "condition", "text"]).to_pylist()
    plain = {row["id"]: row["text"] for row in rows if row["condition"] is None}
    assert len(rows) == len(plain) * (1 + len(metadata.kept)) == metadata.rows
    assert metadata.unconditional == metadata.with_tokens == len(plain)
    for name in metadata.kept:
        assert {row["id"]: row["text"] for row in rows if row["condition"] == name} == plain
    has_words = any(each.type_url.endswith("InvertedIndexDetails") for each in dataset.describe_indices())
    settings = {"vector_index": metadata.vector_index, "exact_below": metadata.exact_below, "kept": metadata.kept}
    return Content(rows=plain, has_words=has_words, **settings)


def readable(index):
    """Every row answers a condition that is pooled, and those that are kept."""
    opened = Index.open(index)
    for condition in ("what they wear", *opened.metadata.kept):
        assert len(opened.search(["a dog"], condition, 500)) == opened.metadata.unconditional
    assert mark_of(locate(index) / "_building.lock") is None


def copied(home, store, number):
    """A fresh index of the base on this store."""
    if store == "disk":
        return str(shutil.copytree(home / "i", home / f"pair-{number}"))
    fsspec.filesystem("s3").put(str(home / "i"), f"corpus/at-once/{home.name}/{number}", recursive=True)
    return f"s3://corpus/at-once/{home.name}/{number}"
