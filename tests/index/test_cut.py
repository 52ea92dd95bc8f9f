"""Vectors that were cut, through embedding, index, search and join: queries are cut as the index's vectors were."""

import pytest
from helpers import embedded, read_output, vectors
from indexed import QUERIES, brute, refuse, rows, same
from nested_models import SAVE
from storing import indexed

import raycase
from raycase.commands.join import JoinFlags, join
from raycase.errors import RequestError
from raycase.index.index import Index

TRAINED = {"prompt": None, "pooling": None}


@pytest.fixture(scope="module", params=SAVE)
def outputs(request, tmp_path_factory, tiny_model):
    """Outputs of one model: `cut` and `other` of 4 and 2 dimensions, `whole`, and `plain`; with its folder."""
    home = tmp_path_factory.mktemp(request.param)
    model = SAVE[request.param](home / "model", tiny_model)
    under = {"conditions": ("color", "number of people")} | TRAINED
    return {
        "model": model,
        "cut": embedded(home / "cut", model, rows(30), dim=4, **under),
        "other": embedded(home / "other", model, rows(30), dim=2, **under),
        "whole": embedded(home / "whole", model, rows(30), **under),
        "plain": embedded(home / "plain", model, rows(30), unconditional=True, **TRAINED),
    }


def test_a_search_cuts_its_queries_as_the_vectors_were(outputs, tmp_path):
    index, system = Index.open(indexed(tmp_path / "i.lance", outputs["cut"])), raycase.load(outputs["model"], dim=4)
    assert vectors(read_output(outputs["cut"])).shape == (60, 4)
    assert index.encoder.config == system.config
    assert index.dataset.schema.field("vector").type.list_size == 4
    same(index.search(QUERIES[:1], "color", 5), brute(outputs["cut"], system, QUERIES[0], "color", 5))
    assert index.search(QUERIES[:1], "colors", 5)["condition"].unique().to_pylist() == ["color"]


@pytest.mark.parametrize("order", [("plain", "cut"), ("cut", "plain")])
@pytest.mark.parametrize("together", [True, False])
def test_plain_vectors_stand_beside_those_that_are_cut(outputs, tmp_path, order, together):
    folders = [outputs[name] for name in order]
    for embeddings in [folders] if together else [[folder] for folder in folders]:
        uri = indexed(tmp_path / "i.lance", *embeddings)
    index, system = Index.open(uri), raycase.load(outputs["model"], dim=4)
    same(index.search(QUERIES[:1], "color", 5), brute(outputs["cut"], system, QUERIES[0], "color", 5))
    plain = index.search(QUERIES[:1], None, 5, unconditional=True)
    same(plain, brute(outputs["plain"], system, QUERIES[0], None, 5))


def test_vectors_of_another_length_are_refused(outputs, tmp_path):
    uri = str(tmp_path / "i.lance")
    refuse({"embeddings": (outputs["plain"], outputs["cut"], outputs["other"]), "output": uri}, "got another's")
    indexed(uri, outputs["cut"])
    for name in ("other", "whole"):
        refuse({"embeddings": (outputs[name],), "output": uri}, "expected vectors of the index's model")
        with pytest.raises(RequestError, match="--vectors: expected vectors of the queries' model, got another's"):
            join(JoinFlags(query_vectors=outputs["cut"], vectors=outputs[name], output=str(tmp_path / "n")))
