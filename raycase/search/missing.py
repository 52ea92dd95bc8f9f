"""Answers of an index in shards, some of which could not be asked: what is missing goes with them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pyarrow as pa

from raycase.data.json_values import from_json, loads

KEY = b"raycase_missing"  # in the metadata of a table of answers


class PartialAnswers(UserWarning):
    """Rows are missing among those that were compared."""


@dataclass(frozen=True, kw_only=True)
class Missing:
    """The rows of shards that could not be asked."""

    rows: int
    of: int  # rows of the index
    shards: list[int]  # from 0
    of_shards: int
    fragments: list[int]  # of the index's dataset

    def __str__(self) -> str:
        numbers = ", ".join(str(shard + 1) for shard in self.shards)
        some = ", ".join(map(str, self.fragments[:8])) + (", ..." if len(self.fragments) > 8 else "")
        return (
            f"{self.rows:,} of {self.of:,} rows (shard {numbers} of {self.of_shards}: the dataset's fragments {some})"
        )


def with_missing(answers: pa.Table, missing: Missing) -> pa.Table:
    """The answers, whose schema's metadata say what is missing."""
    return answers.replace_schema_metadata({**(answers.schema.metadata or {}), KEY: json.dumps(asdict(missing))})


def missing_of(answers: pa.Table) -> Missing | None:
    """What is missing of a table of `Index.search`; None: nothing."""
    text = (answers.schema.metadata or {}).get(KEY)
    return None if text is None else from_json(Missing, loads(text))
