"""Materialize: its vectors are those of the embedding job within the rounding; a stop; what is refused."""

import shutil
from dataclasses import replace
from functools import partial

import pyarrow.dataset as ds
import pytest
import storing
from helpers import cosines, read_output, read_rejected, vectors
from safetensors.torch import load, save

from raycase.corpus.materialize import MaterializeJob
from raycase.corpus.tasks import TasksHere, open_here
from raycase.corpus.verify import verify
from raycase.data.storage import locate
from raycase.errors import RequestError, WorkError
from raycase.search import join as join_module
from raycase.search.join import JoinJob
from raycase.search.join import join as join_by
from raycase.search.materialize import materialize as materialize_by

materialize = partial(materialize_by, open_tasks=open_here)
join = partial(join_by, open_tasks=open_here)

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


def test_one_that_was_stopped_resumes(home, tmp_path, monkeypatch):
    run = TasksHere.run

    def stopped(here, work, tasks, progress):
        run(here, work, tasks[:1], progress)
        raise KeyboardInterrupt

    monkeypatch.setattr(TasksHere, "run", stopped)
    with pytest.raises(KeyboardInterrupt):
        materialize(job(home, tmp_path / "m"))
    done = len(locate(str(tmp_path / "m" / "embeddings")).list())
    assert 0 < done < 10
    with pytest.raises(RequestError, match="expected an empty folder or the same job"):
        materialize(job(home, tmp_path / "m", conditions=("dog",)))
    monkeypatch.setattr(TasksHere, "run", run)
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
    monkeypatch.setattr(TasksHere, "run", lambda *_: None)
    with pytest.raises(WorkError, match="1 units are missing; run the same"):
        materialize(job(home, tmp_path / "m"))
    assert not (tmp_path / "m" / "manifest.json").exists()
    monkeypatch.undo()
    assert materialize(job(home, tmp_path / "m"))["units_done"] == 1
    check(home, str(tmp_path / "m"))


def test_a_join_under_a_condition_that_was_not_embedded(home, tmp_path, monkeypatch):
    """It finds what a join of the materialized output finds, and again when it is run again."""
    words, uri = str(home / "words"), str(tmp_path / "near")
    under = JoinJob(query_vectors=words, vectors=words, conditions=CONDITIONS[:1], output=uri, k=3, exclude_same="id")
    materialize(job(home, tmp_path / "m", conditions=CONDITIONS[:1]))
    m = str(tmp_path / "m")
    result = join(under)
    assert (result["queries"], result["neighbours"]) == (198, 594)
    join(JoinJob(query_vectors=m, vectors=m, output=str(tmp_path / "wanted"), k=3, exclude_same="id"))
    neighbours = [ds.dataset(folder / "neighbours").to_table() for folder in (tmp_path / "near", tmp_path / "wanted")]
    assert neighbours[0].equals(neighbours[1])
    assert not (tmp_path / "near" / "pooled").exists()
    monkeypatch.setattr(join_module, "materialize", None)  # a finished join pools nothing again
    assert join(under)["neighbours"] == 594
    for changes, message in (
        ({"k": 4}, "--output: expected an empty folder or this very join"),
        ({"output": words}, "--output: expected another place than --query-vectors"),
        ({"query_vectors": m}, "--query-vectors: expected an output of `raycase embed --any-condition`"),
        ({"exclude_same": "age"}, "--exclude-same: expected one of id, text, year"),
    ):
        with pytest.raises(RequestError, match=message):
            join(replace(under, **{"model": str(home / "model")} | changes))


def test_words_with_anothers_basis_are_not_joined(home, tmp_path):
    for name in ("words", "twin"):
        shutil.copytree(home / "words", tmp_path / name)
    basis = tmp_path / "twin" / "word_basis.safetensors"
    tensors = load(basis.read_bytes())
    basis.write_bytes(save(tensors | {"mean": tensors["mean"] + 1}))
    good, bad = str(tmp_path / "words"), str(tmp_path / "twin")
    for asks, searched, flag in ((bad, good, "--query-vectors"), (good, bad, "--vectors")):
        asked = JoinJob(query_vectors=asks, vectors=searched, conditions=CONDITIONS[:1], output=str(tmp_path / "near"))
        with pytest.raises(RequestError, match=f"{flag}: expected .* as the words there were coded by it, got another"):
            join(asked)
    assert not (tmp_path / "near").exists()


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
