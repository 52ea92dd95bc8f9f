"""The queries of a search from a file: a column `text`, and a column `condition` if it has one."""

from __future__ import annotations

from raycase.data.columns import peek
from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts
from raycase.data.schema import CONDITION
from raycase.errors import RequestError

TEXT = "text"


def read_queries(uri: str) -> tuple[list[str], list[str] | None]:
    """Read sentences and conditions from a .parquet, .csv or .jsonl file or a folder of them; None for the conditions
    of files that have none. Raises RequestError."""
    sentences: list[str] = []
    conditions: list[str] = []
    for file in find_input(uri, "--queries"):
        columns = (TEXT, CONDITION) if CONDITION in peek(file).names else (TEXT,)
        values = read_columns(file, columns, "--queries")
        sentences += texts(values[TEXT], f"--queries: {file.uri}", TEXT)
        conditions += texts(values.get(CONDITION, []), f"--queries: {file.uri}", CONDITION)
    if not sentences:
        raise RequestError(f"--queries: expected sentences in {uri}, got no rows")
    if conditions and len(conditions) != len(sentences):
        raise RequestError(f"--queries: expected a condition in every file of {uri} or in none, got it in some")
    return sentences, conditions or None
