"""Knowledge graphs: what is read, what is known, the contrastive loss by hand."""

import math

import numpy as np
import pytest
import torch

from raycase.data.graph import Known, read_graph
from raycase.errors import RequestError
from raycase.training.losses import contrastive_loss

ENTITIES = (
    "id\tname\tpos\tsynset\tdefinition\n"
    "e1\tdog\tn\tdog.n.01\tan animal\n"
    "e2\tcat\tn\tcat.n.01\tanother\n"
    "e3\tanimal\tn\tanimal.n.01\t\n"
)
RELATIONS = "_is\tis a\n_has\thas part\n"
TRAIN = "e1\t_is\te3\ne2\t_is\te3\n"


@pytest.fixture
def folder(tmp_path):
    for name, text in (("entities", ENTITIES), ("relations", RELATIONS), ("train", TRAIN)):
        (tmp_path / f"{name}.tsv").write_text(text)
    return tmp_path


def test_a_graph_is_texts_and_triples_in_both_directions(folder):
    graph = read_graph(folder, "--train")
    assert graph.entities == ["dog: an animal", "cat: another", "animal"]
    assert graph.relations == ["is a", "has part", "inverse is a", "inverse has part"]
    assert graph.triples(str(folder / "train.tsv"), "--train").rows.tolist() == [
        [0, 0, 2],
        [1, 0, 2],
        [2, 2, 0],
        [2, 2, 1],
    ]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("train", "e1\t_is\n", "line 1: expected 3 values between tabs, got 2"),
        ("train", "e1\t_is\te3\ne1\t_is\te9\n", "line 2: expected what the graph has, got 'e9'"),
        ("entities", "id\tname\ne1\tdog\n", "expected the column 'definition', got id, name"),
        ("entities", ENTITIES + "e1\tdog\tn\td\tagain\n", "each entity once, got 'e1' twice"),
        ("relations", None, "relations.tsv: expected a readable tsv file, got: "),
    ],
)
def test_what_is_no_graph_is_refused_with_its_line(folder, name, text, said):
    (folder / f"{name}.tsv").unlink()
    if text is not None:
        (folder / f"{name}.tsv").write_text(text)
    with pytest.raises(RequestError, match=said):
        read_graph(folder, "--train").triples(str(folder / "train.tsv"), "--train")


def triples_of(folder, lines):
    (folder / "some.tsv").write_text("".join("\t".join(line) + "\n" for line in lines))
    return read_graph(folder, "").triples(str(folder / "some.tsv"), "")


def test_what_is_known_is_known_in_both_directions(folder):
    known = Known.of(triples_of(folder, [("e1", "_is", "e3")]), triples_of(folder, [("e1", "_is", "e2")]))
    is_a = 0 * 3 + 0  # relation and head as one number
    assert known.tails(is_a).tolist() == [1, 2]
    assert known.tails(2 * 3 + 2).tolist() == [0]  # what is an animal: the inverse
    assert known.has(np.array([[is_a], [1]]), np.array([0, 1, 2])).tolist() == [[False, True, True], [False] * 3]


def test_the_contrastive_loss_by_hand():
    """Two queries whose temperature is 1/2 and 1/4, margin 0.1; the second's head is known to be true."""
    queries = torch.tensor([[2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    tails = torch.tensor([[0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
    heads = torch.tensor([[1.0, 0.0], [0.8, 0.6]], dtype=torch.float64)
    known, self_known = torch.zeros(2, 2, dtype=torch.bool), torch.tensor([False, True])
    a, b, c, d = 2 * (0.6 - 0.1), 0.0, 4 * 0.8, 4 * (1 - 0.1)  # the scores, margins taken off the diagonal
    forth = (math.log(math.exp(a) + math.exp(b) + math.exp(2.0)) - a) + (math.log(math.exp(c) + math.exp(d)) - d)
    back = (math.log(math.exp(a) + math.exp(c)) - a) + (math.log(math.exp(b) + math.exp(d)) - d)
    found = contrastive_loss(queries, tails, heads, known, self_known, 0.1)
    assert found.item() == pytest.approx((forth + back) / 2, abs=1e-12)
    known[1, 0] = True  # and the first tail is true of the second query, too
    forth, back = (math.log(math.exp(a) + 1 + math.exp(2.0)) - a) + 0.0, (0.0) + (math.log(1 + math.exp(d)) - d)
    found = contrastive_loss(queries, tails, heads, known, self_known, 0.1)
    assert found.item() == pytest.approx((forth + back) / 2, abs=1e-12)
