"""The flags that every command about the rows of an index has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raycase.index.index import Index
from raycase.io.model_files import model_folder


@dataclass(frozen=True, kw_only=True)
class OfIndex:
    """An index and which of its rows are looked at, under which condition."""

    index: str
    """Output of `raycase index`, local or on object storage."""
    where: str | None = None
    """A filter on id and the kept columns, in SQL: "year > 2010 AND source = 'news'"."""
    exact_condition: bool = False
    """Refuse a condition that the index lacks. Default: pool stored tokens, or use the nearest condition and say so."""
    model: str | None = None
    """Folder of the index's model, if it has moved."""

    @property
    def opens(self) -> Mapping[str, str | None]:
        """What is read, by flag, for `check_paths`."""
        return {"--index": self.index, "--model": model_folder(self.model)}

    def open(self) -> Index:
        """The index, opened. Raises RequestError."""
        return Index.open(self.index, model=self.model)
