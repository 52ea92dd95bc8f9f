"""An index that grows while it is served: the newest version is searched, by the model that is loaded."""

from functools import partial

import pytest
import storing

from raycase.errors import WorkError
from raycase.index.index import Index
from raycase.serve import service as module
from raycase.serve.service import LiveIndex


@pytest.fixture
def live(home, tmp_path, monkeypatch):
    storing.indexed(tmp_path / "i.lance", str(home / "words"))
    monkeypatch.setattr(module, "CHECKED", -1.0)
    return LiveIndex(partial(Index.open, str(tmp_path / "i.lance")))


def rows(index):
    return index.metadata.rows


def test_a_new_version_is_taken_once_in_a_while_with_the_model_that_is_loaded(live, home, tmp_path, monkeypatch):
    encoder = live.on(lambda index: index.encoder)
    monkeypatch.setattr(module, "CHECKED", 3600.0)
    more = storing.stored(tmp_path / "more", str(home / "model"), storing.texts(5, first=1000))
    storing.indexed(tmp_path / "i.lance", more)
    assert live.on(rows) == 60
    monkeypatch.setattr(module, "CHECKED", 0.0)
    assert live.on(rows) == 65 and live.on(lambda index: index.encoder) is encoder
    ask = lambda index: index.search(["dog"], "color", 65)["id"].to_pylist()  # noqa: E731 said in one line
    assert live.on(ask) == ask(Index.open(str(tmp_path / "i.lance")))


def test_what_cannot_be_opened_is_not_taken(live, home, tmp_path, capsys, monkeypatch):
    other = storing.model_folder(tmp_path, heads=2)
    storing.indexed(tmp_path / "i.lance", storing.stored(tmp_path / "c", other, storing.texts(5)), overwrite=True)
    assert live.newest().metadata.rows == 60
    assert "still using the open version" in (said := capsys.readouterr().err) and "restart the service" in said

    def lost():
        raise WorkError("a store that does not answer")

    monkeypatch.setattr(live, "open", lost)
    assert live.newest().metadata.rows == 60 and "a store that does not answer" in capsys.readouterr().err
