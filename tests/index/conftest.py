"""Outputs of the tiny model and an index of them, for all tests of the room."""

import pytest
from helpers import embedded
from indexed import CONDITIONS, rows
from storing import indexed, words_later_and_out

import raycase
from raycase.index.index import Index


@pytest.fixture(scope="session")
def home(tmp_path_factory, tiny_model):
    """Outputs of one model: `out` under two conditions, `plain` without, `later` of other rows, `other` of a model."""
    home = tmp_path_factory.mktemp("written")
    kept = {"keep_columns": ("text", "year")}
    under = kept | {"conditions": CONDITIONS}
    embedded(home / "a", tiny_model, rows(300), output=str(home / "out"), **under)
    embedded(home / "b", tiny_model, rows(300), output=str(home / "plain"), unconditional=True, **kept)
    embedded(home / "c", tiny_model, rows(80, 1, 1000), output=str(home / "later"), **under)
    embedded(home / "d", tiny_model, rows(20), output=str(home / "other"), subtract=False, **under)
    return home


@pytest.fixture(scope="session")
def tokens(tmp_path_factory):
    """A model; outputs `words` and `later` with stored tokens, `out` of the rows of `words` under a condition."""
    home = tmp_path_factory.mktemp("tokens")
    words_later_and_out(home, "number of people")
    return home


@pytest.fixture(scope="session")
def index(home):
    return Index.open(indexed(home / "i.lance", home / "out", home / "plain"))


@pytest.fixture(scope="session")
def model(tiny_model):
    return raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean")
