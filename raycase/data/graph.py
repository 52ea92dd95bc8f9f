"""Knowledge graphs: triples of texts, and what is known of them.

Shapes: E entities, R relations (each also inverted), N triples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from raycase.data.inputs import InputFile, readable
from raycase.data.rated import texts_sha256
from raycase.data.storage import locate
from raycase.errors import RequestError

INVERSE = "inverse "  # before the text of a relation that is read from tail to head (SimKGC)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Texts of the entities ("name: definition") and of the relations, R of them and then their inverses."""

    entities: list[str]
    relations: list[str]
    entity_ids: list[str]
    relation_ids: list[str]

    def triples(self, uri: str, flag: str) -> Triples:
        """Read `head, relation, tail` lines, both ways. Raises RequestError, with the line, for what is not one."""
        entity = {name: i for i, name in enumerate(self.entity_ids)}
        relation = {name: i for i, name in enumerate(self.relation_ids)}
        rows = []
        for line, found in _lines(uri, flag, 3):
            head, between, tail = found
            for name, known in ((head, entity), (between, relation), (tail, entity)):
                if name not in known:
                    raise RequestError(f"{flag}: {uri}, line {line}: expected what the graph has, got {name!r}")
            rows.append((entity[head], relation[between], entity[tail]))
        if not rows:
            raise RequestError(f"{flag}: expected triples in {uri}, got none")
        one = np.array(rows, dtype=np.int64)
        inverse = np.stack([one[:, 2], one[:, 1] + len(relation), one[:, 0]], axis=1)
        return Triples(uri=uri, rows=np.concatenate([one, inverse]), entities=len(entity), texts_sha256=self.sha256)

    @cached_property
    def sha256(self) -> str:
        """Of the texts."""
        return texts_sha256([self.entities, self.relations])


@dataclass(frozen=True, kw_only=True)
class Triples:
    """Each triple both ways: rows (2 N, 3) of head, relation, tail; the second N are the inverses of the first."""

    uri: str
    rows: np.ndarray
    entities: int
    texts_sha256: str

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def queries(self) -> np.ndarray:
        """A number for each (head, relation): (2 N,)."""
        return query_number(self.rows[:, 0], self.rows[:, 1], self.entities)

    @cached_property
    def data_sha256(self) -> str:
        """Of what is learned from: triples and texts."""
        return hashlib.sha256(self.rows.tobytes() + self.texts_sha256.encode()).hexdigest()


def query_number(head: np.ndarray, relation: np.ndarray, entities: int) -> np.ndarray:
    """(head, relation) as one number."""
    return relation * entities + head


@dataclass(frozen=True, kw_only=True)
class Known:
    """Which tails are known of which (head, relation), over some triples."""

    entities: int
    pairs: np.ndarray  # sorted numbers of (head, relation, tail)

    @classmethod
    def of(cls, *triples: Triples) -> Known:
        """Of all of them."""
        entities = triples[0].entities
        numbers = np.concatenate([t.queries * entities + t.rows[:, 2] for t in triples])
        return cls(entities=entities, pairs=np.unique(numbers))

    def has(self, queries: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Whether a tail is known of a query, element by element (broadcast): bool."""
        numbers = queries * self.entities + tails
        places = np.searchsorted(self.pairs, numbers).clip(max=len(self.pairs) - 1)
        return np.asarray(self.pairs[places] == numbers)

    def tails(self, query: int) -> np.ndarray:
        """All known tails of a query."""
        first, stop = np.searchsorted(self.pairs, [query * self.entities, (query + 1) * self.entities])
        return np.asarray(self.pairs[first:stop] - query * self.entities)


def read_graph(folder: Path | str, flag: str) -> Graph:
    """`entities.tsv` (header; id, name, ..., definition) and `relations.tsv` (id, text) of a folder.

    Raises RequestError.
    """
    names = [f"{folder}/{name}" for name in ("entities.tsv", "relations.tsv")]
    _, header = next(_lines(names[0], flag, None), (0, []))
    for name in ("id", "name", "definition"):
        if name not in header:
            raise RequestError(f"{flag}: {names[0]}: expected the column {name!r}, got {', '.join(header) or 'none'}")
    rows = [dict(zip(header, found, strict=True)) for line, found in _lines(names[0], flag, len(header)) if line > 1]
    relations = [found for _, found in _lines(names[1], flag, 2) if found != ["id", "text"]]
    if not rows or not relations:
        raise RequestError(f"{flag}: expected entities and relations in {folder}, got {len(rows)} and {len(relations)}")
    for what, ids in (("entity", [r["id"] for r in rows]), ("relation", [i for i, _ in relations])):
        if len(set(ids)) < len(ids):
            twice = next(i for n, i in enumerate(ids) if i in ids[:n])
            raise RequestError(f"{flag}: {folder}: expected each {what} once, got {twice!r} twice")
    texts = [text for _, text in relations]
    return Graph(
        entities=[f"{r['name']}: {r['definition']}" if r["definition"].strip() else r["name"] for r in rows],
        relations=[*texts, *(INVERSE + text for text in texts)],
        entity_ids=[r["id"] for r in rows],
        relation_ids=[i for i, _ in relations],
    )


def _lines(uri: str, flag: str, count: int | None) -> Iterator[tuple[int, list[str]]]:
    """The lines of a file, counted from 1, and their values between tabs."""
    if not locate(uri).exists():
        raise RequestError(f"{flag}: expected the file {uri}, got nothing")
    with readable(InputFile(uri=uri, size=0, mark="")) as source:
        text = source.read().decode().removeprefix("\ufeff")
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        found = [value.strip() for value in line.split("\t")]
        if count is not None and len(found) != count:
            raise RequestError(f"{flag}: {uri}, line {number}: expected {count} values between tabs, got {len(found)}")
        yield number, found
