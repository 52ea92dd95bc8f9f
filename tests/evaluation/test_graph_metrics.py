"""Filtered ranks by brute force, and the measures of ranks by hand."""

import numpy as np
import pytest

from raycase.data.graph import Known, read_graph
from raycase.evaluation.ranking import filtered_ranks, rank_measures


@pytest.fixture
def triples_of(tmp_path):
    """Reads triples of a graph with three entities and two relations."""
    entities = "".join(f"e{i}\tname{i}\tn\tname{i}.n.01\ta definition\n" for i in (1, 2, 3))
    (tmp_path / "entities.tsv").write_text("id\tname\tpos\tsynset\tdefinition\n" + entities)
    (tmp_path / "relations.tsv").write_text("_is\tis a\n_has\thas part\n")

    def read(lines):
        (tmp_path / "triples.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
        return read_graph(tmp_path, "").triples(str(tmp_path / "triples.tsv"), "")

    return read


def test_ranks_are_those_of_brute_force(triples_of):
    random = np.random.default_rng(0)
    entities = random.standard_normal((3, 4)).astype(np.float32)
    triples = triples_of([("e1", "_is", "e3"), ("e1", "_is", "e2"), ("e2", "_has", "e1")])
    known = Known.of(triples)
    queries = random.standard_normal((len(triples), 4)).astype(np.float32)
    ranks = filtered_ranks(queries, entities, triples.rows[:, 2], triples.queries, known, block=2)
    unit = entities / np.linalg.norm(entities, axis=1, keepdims=True)
    for query, (head, relation, tail), rank in zip(queries, triples.rows.tolist(), ranks, strict=True):
        true = {t for h, r, t in triples.rows.tolist() if (h, r) == (head, relation)} - {tail}
        scores = {e: float(query @ unit[e]) for e in range(3) if e not in true}
        assert rank == 1 + sum(score > scores[tail] for e, score in scores.items() if e != tail)
    assert len(set(ranks)) > 1


def test_measures_by_hand():
    assert rank_measures(np.array([1.0, 2.5, 10.0, 11.0])).tolist() == [
        [100, 100, 100, 100],
        [40, 0, 100, 100],
        [10, 0, 0, 100],
        [pytest.approx(100 / 11), 0, 0, 0],
    ]


def test_vectors_that_are_no_numbers_come_last(triples_of):
    triples = triples_of([("e1", "_has", "e2")])
    entities = np.eye(3, 4, dtype=np.float32)
    queries = np.stack([np.full(4, np.nan), entities[0]]).astype(np.float32)
    ranks = filtered_ranks(queries, entities, triples.rows[:, 2], triples.queries, Known.of(triples))
    assert ranks[0] >= 3 and ranks[1] == 1
