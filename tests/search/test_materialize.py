"""Materialize: its vectors are those of the embedding job within the rounding; a stop; what is refused."""

from functools import partial

import pytest
import storing
from helpers import cosines, read_output, read_rejected, stop_after, vectors

from raycase.corpus.materialize import MaterializeJob
from raycase.corpus.runner import Runner
from raycase.corpus.verify import verify
from raycase.data.storage import locate
from raycase.errors import RequestError, WorkError
from raycase.search.join import join as join_by
from raycase.search.materialize import materialize as materialize_by

materialize = partial(materialize_by, runner=Runner())
join = partial(join_by, runner=Runner())

CONDITIONS = ("what they wear on their heads", "number of people")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: 200 rows with stored words and two that are rejected; `out`: the same rows under both conditions."""
    home = tmp_path_factory.mktemp("materialized")
    model = storing.model_folder(home)
    rows = storing.texts(200)
    rows[5]["text"] = rows[150]["text"] = ""
    options = {"max_rejected": 0.1, "unit_rows": 20}
    storing.stored(home / "a", model, rows, output=str(home / "words"), **options)
    embedded = {"conditions": CONDITIONS, "any_condition": False, "word_bytes": None}
    storing.stored(home / "b", model, rows, output=str(home / "out"), **options | embedded)
    return home


def job(home, output, **changes):
    return MaterializeJob(**{"words": str(home / "words"), "conditions": CONDITIONS, "output": str(output)} | changes)


def check(home, uri):
    """The output against the one that was embedded."""
    found, wanted = read_output(uri), read_output(str(home / "out"))
    for column in ("id", "condition", "text", "year"):
        assert found[column].to_pylist() == wanted[column].to_pylist()
    near = cosines(vectors(found), vectors(wanted))
    assert near.mean() > 0.9995 and near.min() > 0.99
    assert read_rejected(uri) == read_rejected(str(home / "words"))
    assert len(read_rejected(uri)) == 2
    assert verify(uri)["rows_out"] == 198


def test_it_gives_what_embedding_gives(home, tmp_path):
    result = materialize(job(home, tmp_path / "m"))
    assert (result["rows_in"], result["pairs"], result["units_done"]) == (200, 396, 10)
    check(home, str(tmp_path / "m"))


def test_one_that_was_stopped_resumes(home, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        materialize(job(home, tmp_path / "m"), runner=stop_after(1))
    done = len(locate(str(tmp_path / "m" / "embeddings")).list())
    assert 0 < done < 10
    with pytest.raises(RequestError, match="expected an empty folder or the same job"):
        materialize(job(home, tmp_path / "m", conditions=("dog",)))
    assert materialize(job(home, tmp_path / "m"))["units_done"] == 10 - done
    check(home, str(tmp_path / "m"))
    assert materialize(job(home, tmp_path / "m"))["units_done"] == 0
    damaged = min((tmp_path / "m" / "embeddings").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-9])
    with pytest.raises(WorkError, match=r"bytes, the manifest says .*; remove the file and run the same command again"):
        materialize(job(home, tmp_path / "m"))
    damaged.unlink()
    assert materialize(job(home, tmp_path / "m"))["units_done"] == 1
    check(home, str(tmp_path / "m"))


def test_a_manifest_is_of_the_whole_output(home, tmp_path, monkeypatch):
    """One that counts fewer units does not stay while others are made."""
    materialize(job(home, tmp_path / "m"))
    unit = next((tmp_path / "m" / "embeddings").iterdir())
    unit.unlink()
    monkeypatch.setattr(Runner, "map", lambda *_, **how: ())
    with pytest.raises(WorkError, match="1 units are missing; run the same"):
        materialize(job(home, tmp_path / "m"))
    assert not (tmp_path / "m" / "manifest.json").exists()
    monkeypatch.undo()
    assert materialize(job(home, tmp_path / "m"))["units_done"] == 1
    check(home, str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"conditions": ()}, "--conditions: expected at least one"),
        ({"conditions": ("",)}, "--conditions: expected words"),
        ({"conditions": tuple(map(str, range(65)))}, "--conditions: expected at most 64"),
        ({"conditions": ("dog " * 600,)}, "--conditions: expected conditions that .* can embed"),
        ({"words": "out"}, "--words: expected an output of `raycase embed --any-condition`"),
        ({"words": "nothing"}, "--words: expected a finished output of `raycase embed`"),
        ({"model": "minilm"}, "--model: expected the model that stored the words"),
    ],
)
def test_what_is_refused(home, tmp_path, changes, words):
    if "words" in changes:
        changes = {"words": str(home / changes["words"])}
    with pytest.raises(RequestError, match=words):
        materialize(job(home, tmp_path / "m", **changes))
