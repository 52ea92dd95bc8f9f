"""Knowledge graphs: entities and relations as texts, triples, and which triples are known.

Shapes: E entities, R relations (each also inverted), N triples.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from raycase.data.columns import check_once
from raycase.data.inputs import InputFile, readable
from raycase.data.rated import texts_sha256
from raycase.errors import RequestError

INVERSE = "inverse "  # prefix of a relation's text from tail to head (SimKGC)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Texts of the entities ("name: definition"), and of the R relations followed by their R inverses."""

    entities: list[str]
    relations: list[str]
    entity_ids: list[str]
    relation_ids: list[str]

    def triples(self, uri: str, flag: str) -> Triples:
        """Read lines of head, relation and tail, and add the inverse of each.

        Raises RequestError, with the line, for an unknown entity or relation, and for a file without triples.
        """
        entity = {name: i for i, name in enumerate(self.entity_ids)}
        relation = {name: i for i, name in enumerate(self.relation_ids)}
        rows = []
        for line, values in _lines(uri, flag, 3):
            head, between, tail = values
            for name, known in ((head, entity), (between, relation), (tail, entity)):
                if name not in known:
                    raise RequestError(f"{flag}: {uri}, line {line}: expected what the graph has, got {name!r}")
            rows.append((entity[head], relation[between], entity[tail]))
        if not rows:
            raise RequestError(f"{flag}: expected triples in {uri}, got none")
        forward = np.array(rows, dtype=np.int64)
        inverse = np.stack([forward[:, 2], forward[:, 1] + len(relation), forward[:, 0]], axis=1)
        return Triples(uri=uri, rows=np.concatenate([forward, inverse]), entities=len(entity), texts_sha256=self.sha256)

    @cached_property
    def sha256(self) -> str:
        """Hash of the texts."""
        return texts_sha256([self.entities, self.relations])


@dataclass(frozen=True, kw_only=True)
class Triples:
    """Triples and their inverses: rows (2 N, 3) of head, relation, tail; the last N are the inverses of the first N."""

    uri: str
    rows: np.ndarray
    entities: int
    texts_sha256: str

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def queries(self) -> np.ndarray:
        """The number of each row's query (head, relation): (2 N,)."""
        return self.rows[:, 1] * self.entities + self.rows[:, 0]

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: triples and texts."""
        return hashlib.sha256(self.rows.tobytes() + self.texts_sha256.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Known:
    """The known tails of each query (head, relation)."""

    entities: int
    pairs: np.ndarray  # sorted numbers of (head, relation, tail)

    @classmethod
    def of(cls, *triples: Triples) -> Known:
        """The tails known from all these triples."""
        entities = triples[0].entities
        numbers = np.concatenate([t.queries * entities + t.rows[:, 2] for t in triples])
        return cls(entities=entities, pairs=np.unique(numbers))

    def has(self, queries: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Whether a tail is known for a query, elementwise with broadcasting: bool."""
        numbers = queries * self.entities + tails
        index = np.searchsorted(self.pairs, numbers).clip(max=len(self.pairs) - 1)
        return np.asarray(self.pairs[index] == numbers)

    def tails(self, query: int) -> np.ndarray:
        """All known tails of a query."""
        first, stop = np.searchsorted(self.pairs, [query * self.entities, (query + 1) * self.entities])
        return np.asarray(self.pairs[first:stop] - query * self.entities)


def read_graph(folder: Path | str, flag: str) -> Graph:
    """Read `entities.tsv` (header; id, name, ..., definition) and `relations.tsv` (id, text) of a folder.

    Raises RequestError for a missing file or column, a repeated id, and a graph without entities or relations.
    """
    names = [f"{folder}/{name}" for name in ("entities.tsv", "relations.tsv")]
    _, header = next(_lines(names[0], flag, None), (0, []))
    for name in ("id", "name", "definition"):
        check_once(name, header, f"{flag}: {names[0]}")
    rows = [dict(zip(header, values, strict=True)) for line, values in _lines(names[0], flag, len(header)) if line > 1]
    relations = [values for _, values in _lines(names[1], flag, 2) if values != ["id", "text"]]
    if not rows or not relations:
        raise RequestError(f"{flag}: expected entities and relations in {folder}, got {len(rows)} and {len(relations)}")
    for what, ids in (("entity", [r["id"] for r in rows]), ("relation", [i for i, _ in relations])):
        if len(set(ids)) < len(ids):
            twice = Counter(ids).most_common(1)[0][0]
            raise RequestError(f"{flag}: {folder}: expected each {what} once, got {twice!r} twice")
    texts = [text for _, text in relations]
    return Graph(
        entities=[f"{r['name']}: {r['definition']}" if r["definition"].strip() else r["name"] for r in rows],
        relations=[*texts, *(INVERSE + text for text in texts)],
        entity_ids=[r["id"] for r in rows],
        relation_ids=[i for i, _ in relations],
    )


def _lines(uri: str, flag: str, count: int | None) -> Iterator[tuple[int, list[str]]]:
    """Number, from 1, and tab-separated values of each line. Raises RequestError for a wrong number of values."""
    with readable(InputFile(uri=uri, size=0, mark="")) as source:
        text = source.read().decode().removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        values = [value.strip() for value in line.split("\t")]
        if count is not None and len(values) != count:
            raise RequestError(f"{flag}: {uri}, line {number}: expected {count} values between tabs, got {len(values)}")
        yield number, values
