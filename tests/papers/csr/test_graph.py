"""Knowledge graphs: what is read and known, the loss and ranks by hand, and which answers a report leaves out."""

import math

import numpy as np
import pytest
import torch

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.papers.csr.task import Known, filtered_ranks, rank_measures, read_graph
from raycase.papers.csr.train import contrastive_loss

ENTITIES = (
    "id\tname\tpos\tsynset\tdefinition\n"
    "e1\tdog\tn\tdog.n.01\tan animal\n"
    "e2\tcat\tn\tcat.n.01\tanother\n"
    "e3\tanimal\tn\tanimal.n.01\t\n"
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "entities.tsv").write_text(ENTITIES)
    (tmp_path / "relations.tsv").write_text("_is\tis a\n_has\thas part\n")
    return tmp_path


@pytest.fixture
def triples_of(folder):
    """Reads lines of head, relation and tail."""

    def read(*lines):
        (folder / "some.tsv").write_text("".join(line.replace(" ", "\t") + "\n" for line in lines))
        return read_graph(folder, "--train").triples(str(folder / "some.tsv"), "--train")

    return read


def test_a_graph_is_texts_and_triples_in_both_directions(triples_of):
    triples = triples_of("e1 _is e3", "e2 _is e3")
    assert triples.graph.entities == ["dog: an animal", "cat: another", "animal"]
    assert triples.graph.relations == ["is a", "has part", "inverse is a", "inverse has part"]
    assert triples.rows.tolist() == [[0, 0, 2], [1, 0, 2], [2, 2, 0], [2, 2, 1]]
    assert len(triples) == 2 and triples.pairs[2] == ("animal", "inverse is a")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("some", "e1\t_is\n", "line 1: expected 3 values between tabs, got 2"),
        ("some", "e1\t_is\te3\ne1\t_is\te9\n", "line 2: expected what the graph has, got 'e9'"),
        ("entities", "id\tname\ne1\tdog\n", "expected the column 'definition', got id, name"),
        ("entities", ENTITIES + "e1\tdog\tn\td\tagain\n", "each entity once, got 'e1' twice"),
        ("relations", None, "relations.tsv: expected a readable tsv file, got: "),
    ],
)
def test_what_is_no_graph_is_refused_with_its_line(folder, name, text, said):
    (folder / f"{name}.tsv").unlink(missing_ok=True)
    if text is not None:
        (folder / f"{name}.tsv").write_text(text)
    with pytest.raises(RequestError, match=said):
        read_graph(folder, "--train").triples(str(folder / "some.tsv"), "--train")


def test_what_is_known_is_known_in_both_directions(triples_of):
    known = Known.of(triples_of("e1 _is e3"), triples_of("e1 _is e2"))
    is_a = 0 * 3 + 0  # relation and head as one number
    assert known.tails(is_a).tolist() == [1, 2]
    assert known.tails(2 * 3 + 2).tolist() == [0]  # what is an animal: the inverse
    assert known.has(np.array([[is_a], [1]]), np.array([0, 1, 2])).tolist() == [[False, True, True], [False] * 3]


def test_the_contrastive_loss_by_hand():
    """Two queries whose temperature is 1/2 and 1/4, margin 0.02; the second's head is known to be true."""
    queries = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    tails = torch.tensor([[0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
    heads = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=torch.float64)
    known, self_known = torch.zeros(2, 2, dtype=torch.bool), torch.tensor([False, True])
    a, b, c, d = 2 * (0.6 - 0.02), 0.0, 4 * 0.8, 4 * (1 - 0.02)  # the scores, margins taken off the diagonal
    forth = (math.log(math.exp(a) + math.exp(b) + math.exp(2.0)) - a) + (math.log(math.exp(c) + math.exp(d)) - d)
    back = (math.log(math.exp(a) + math.exp(c)) - a) + (math.log(math.exp(b) + math.exp(d)) - d)
    found = contrastive_loss(queries, tails, heads, known, self_known)
    assert found.item() == pytest.approx((forth + back) / 2, abs=1e-12)
    known[1, 0] = True  # and the first tail is true of the second query, too
    forth, back = (math.log(math.exp(a) + 1 + math.exp(2.0)) - a) + 0.0, (0.0) + (math.log(1 + math.exp(d)) - d)
    found = contrastive_loss(queries, tails, heads, known, self_known)
    assert found.item() == pytest.approx((forth + back) / 2, abs=1e-12)


def test_ranks_are_those_of_brute_force(triples_of):
    random = np.random.default_rng(0)
    entities = random.standard_normal((3, 4)).astype(np.float32)
    triples = triples_of("e1 _is e3", "e1 _is e2", "e2 _has e1")
    queries = random.standard_normal((6, 4)).astype(np.float32)
    ranks = filtered_ranks(queries, entities, triples, Known.of(triples), block=2)
    unit = entities / np.linalg.norm(entities, axis=1, keepdims=True)
    for query, (head, relation, tail), rank in zip(queries, triples.rows.tolist(), ranks, strict=True):
        true = {t for h, r, t in triples.rows.tolist() if (h, r) == (head, relation)} - {tail}
        scores = {e: float(query @ unit[e]) for e in range(3) if e not in true}
        assert rank == 1 + sum(score > scores[tail] for e, score in scores.items() if e != tail)
    assert len(set(ranks)) > 1
    queries[0] = np.nan  # no numbers: last
    assert filtered_ranks(queries, entities, triples, Known.of(triples))[0] >= 2


def test_measures_by_hand():
    assert rank_measures(np.array([1.0, 2.5, 10.0, 11.0])).tolist() == [
        [1, 1, 1, 1],
        [0.4, 0, 1, 1],
        [0.1, 0, 0, 1],
        [pytest.approx(1 / 11), 0, 0, 0],
    ]


SCORES = {"cat": {"mammal": 4, "pet": 3, "animal": 2}, "ant": {"animal": 2, "pet": 1}}  # of a head's tails
NAMES = ["cat", "ant", "mammal", "pet", "animal"]
TRIPLES = {
    "train": [("cat", "mammal")],
    "validation": [("cat", "pet"), ("ant", "pet")],
    "test": [("cat", "animal"), ("ant", "animal")],
}


@pytest.fixture
def job(tmp_path):
    """Evaluates a graph of five entities and one relation."""
    folder = tmp_path / "graph"
    folder.mkdir()
    (folder / "entities.tsv").write_text("id\tname\tdefinition\n" + "".join(f"{n}\t{n}\t\n" for n in NAMES))
    (folder / "relations.tsv").write_text("_is\tis a\n")
    for part, triples in TRIPLES.items():
        (folder / f"{part}.tsv").write_text("".join(f"{head}\t_is\t{tail}\n" for head, tail in triples))
    return lambda split: EvaluateJob(
        task="kgc", model=("minilm",), data=str(folder), output=str(tmp_path / "report"), split=split, resamples=100
    )


def vectors_of(texts, *_, **__):
    """An entity's own direction, and for a head under the relation its scores along them."""
    if isinstance(texts[0], str):
        return np.eye(len(NAMES), dtype=np.float32)[[NAMES.index(text) for text in texts]]
    return np.array([[SCORES.get(head, {}).get(name, 0.1) for name in NAMES] for head, _ in texts], dtype=np.float32)


def test_a_split_leaves_out_what_the_parts_up_to_it_know(job):
    reports = {split: evaluate(job(split), vectors_of=vectors_of) for split in (None, "validation", "test")}
    values = {split: report["systems"][0]["figures"]["tail"]["mrr"]["value"] for split, report in reports.items()}
    # validation: pet comes first for cat, without mammal; second for ant, whose animal only the test triples know
    # test: animal comes first for cat, without mammal and pet
    assert values == {None: 75, "validation": 75, "test": 100}
    assert reports["test"]["data"] == {"entities": 5, "train": 1, "validation": 2, "test": 2}


def test_a_split_that_is_not_there_is_named(job, tmp_path):
    (tmp_path / "graph" / "test.tsv").unlink()
    evaluate(job("validation"), vectors_of=vectors_of)
    with pytest.raises(RequestError, match=r"test.tsv: expected a readable tsv file, got"):
        evaluate(job("test"), vectors_of=vectors_of)
