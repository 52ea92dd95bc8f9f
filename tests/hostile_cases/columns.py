"""Kept columns that an index cannot have, and outputs that somebody altered and stamped anew."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import storing
from altered import alter, with_column
from helpers import embed_here
from hostile_cases.case import Case

from raycase.corpus.materialize import check_materialize

NAMES = ["a`b", "", "a.b", "a\0b", "__fragment_index", "_rowid", "_distance", "query", "weights", "ID"]
NAMES += ["a\nb", "\x1b[1m"]
NAMES += ["x" * 100_000, "\u202eabc", "'", '"', "select"]
PAIRS = pa.array([["a", "b"]] * 3, pa.list_(pa.string(), 2))
COLUMNS = {
    "strings of fixed number": PAIRS,
    "list view": pa.array([[1]] * 3, pa.list_view(pa.int64())),
    "binary view": pa.array([b"\xff"] * 3, pa.binary_view()),
    "dates beyond 9999": pa.array([2**30] * 3, pa.date32()),
    "null": pa.nulls(3),
}


def column_cases(home, model, pooled):
    """Embedded with each column; then each output altered, verified, indexed and pooled."""
    cases = {f"named {name[:20]!r}": (name, pa.array(["x"] * 3)) for name in NAMES}
    cases |= {kind: ("mine", column) for kind, column in COLUMNS.items()}
    for i, (what, (name, column)) in enumerate(cases.items()):
        file = home / f"kept-{i}.parquet"
        pq.write_table(pa.table({"text": ["a dog", "", "a cat"], name: column}), file)
        flags = ["--input", file, "--output", home / f"kept-{i}", "--model", model, "--conditions", "color"]
        flags += ["--keep-columns", "text", name, "--prompt", "concat-sc", "--pooling", "mean", "--max-rejected", "1"]
        yield Case("columns", f"kept {what}", ["embed", *flags], embed_here)
    whole = storing.stored(home / "whole-columns", pooled, storing.texts(12), unit_rows=5)
    changes = {
        "nothing": lambda table: table,
        "rows turned round": lambda table: table.take(list(range(len(table)))[::-1]),
        "a row less": lambda table: table.slice(1),
        "null ids": with_column("id", lambda table: pa.nulls(len(table), pa.int64())),
        "other ids": with_column("id", lambda table: table["id"].cast(pa.float64())),
        "no vectors": lambda table: table.drop_columns("embedding"),
        "vectors that are text": with_column("embedding", lambda table: pa.array(["x"] * len(table))),
        "no codes": lambda table: table.drop_columns("word_codes"),
        "empty codes": with_column("word_codes", lambda table: pa.array([b""] * len(table), pa.large_binary())),
        "parts cut off": with_column("word_plain", lambda table: pa.array([b"x"] * len(table), pa.large_binary())),
        "a column of ours": lambda table: table.rename_columns({"year": "__row"}),
        "a column with a backtick": lambda table: table.rename_columns({"year": "a`b"}),
    }
    for i, (what, change) in enumerate(changes.items()):
        folder = home / f"altered-{i}"
        shutil.copytree(whole, folder)
        alter(folder, change)
        yield Case("columns", f"verify: {what}", ["verify", folder])
        yield Case("columns", f"index: {what}", ["index", "--embeddings", folder, "--output", f"{folder}.lance"])
        flags = ["--words", folder, "--conditions", "color", "--output", f"{folder}-new"]
        yield Case("columns", f"materialize: {what}", ["materialize", *flags], checked)


def checked(job):
    """What is checked before the words are pooled."""
    return {"conditions": len(check_materialize(job)[1])}
