"""Outputs, indexes and a model of version 0.2.0 still open, answer as they did, and go on (`tests/old/README.md`)."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import raycase
from raycase.cli import main
from raycase.index.options import Options

OLD = Path(__file__).parent / "old"
ANSWERS = json.loads((OLD / "answers.json").read_text())


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the files, with its own path in place of the one where they were made."""
    with tarfile.open(OLD / "files.tar.gz") as files:
        files.extractall(tmp_path, filter="data")
    for output in ("tokens", "vectors"):
        job = tmp_path / output / "job.json"
        job.write_text(job.read_text().replace('"/old/', f'"{tmp_path}/'))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def vectors(output):
    """The vectors of an output, in the order of its rows."""
    return np.stack(pq.read_table(f"{output}/embeddings")["embedding"].to_pylist())


def alike(found, wanted):
    """Whether vectors are the same but for rounding."""
    found, wanted = (
        each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (np.array(found), np.array(wanted))
    )
    return found.shape == wanted.shape and (found * wanted).sum(-1).min() > 0.9999


@pytest.mark.parametrize("case", ANSWERS["answers"], ids=lambda case: f"{case['index']}-{'-'.join(case['asked'])}")
def test_an_old_index_answers_as_it_did(old, case):
    index = raycase.Index.open(case["index"], model="model")
    found = index.search(ANSWERS["sentences"], **case["asked"])
    assert found["id"].to_pylist() == case["ids"]
    np.testing.assert_allclose(found["score"].to_numpy(), case["scores"], atol=4e-3)


def test_an_old_index_pools_more_candidates_for_its_sketches_are_coarse(old):
    index = raycase.Index.open("tokens.lance", model="model")
    wanted = {10: 5000, 1000: 50_000}
    assert {k: index._candidates(1, 10**6, k, None, Options()) for k in wanted} == wanted
    main(["index", "--embeddings", "tokens", "--output", "new.lance", "--model", "model"])
    assert raycase.Index.open("new.lance", model="model")._candidates(1, 10**6, 10, None, Options()) == 500


@pytest.mark.parametrize("output", ["tokens", "vectors"])
def test_an_old_output_is_verified_and_the_same_command_finds_it_done(old, output, capsys):
    main(["verify", output])
    how = {"any_condition": True, "token_bytes": 8} if output == "tokens" else {"conditions": ["color", "animal"]}
    before = {path: path.stat().st_mtime_ns for path in (old / output / "embeddings").iterdir()}
    result = raycase.embed("texts.csv", output, keep_columns=["place", "text"], **how)
    assert (result["rows_out"], result["units_done"], result["units_resumed"]) == (6, 0, 1)
    assert {path: path.stat().st_mtime_ns for path in (old / output / "embeddings").iterdir()} == before


def test_an_old_output_whose_job_was_stopped_goes_on(old):
    (old / "vectors" / "manifest.json").unlink()
    (unit,) = (old / "vectors" / "embeddings").iterdir()
    wanted = vectors("vectors")
    unit.unlink()
    raycase.embed("texts.csv", "vectors", conditions=["color", "animal"], keep_columns=["place", "text"])
    assert [path.name for path in unit.parent.iterdir()] == [unit.name]
    assert alike(vectors("vectors"), wanted)


def test_an_old_model_gives_its_vectors(old):
    texts = pq.read_table("vectors/embeddings")["text"].to_pylist()[::2]
    grid = raycase.load("model").encode_grid(texts, ["color", "animal"])
    assert alike(grid.reshape(-1, 16), vectors("vectors"))


def test_old_tokens_are_pooled_under_a_new_condition(old):
    raycase.embed("tokens", "pooled", conditions="weather", dtype="float32")
    assert alike(vectors("pooled"), ANSWERS["weather"])


@pytest.mark.parametrize(
    ("name", "how"),
    [("tokens", {"any_condition": True, "token_bytes": 8}), ("vectors", {"conditions": ["color", "animal"]})],
)
def test_an_old_index_gets_new_rows(old, capsys, name, how):
    raycase.embed("more.csv", "more", model="model", keep_columns=["place", "text"], **how)
    main(["index", "--embeddings", "more", "--output", f"{name}.lance", "--model", "model"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == 16
    index = raycase.Index.open(f"{name}.lance", model="model")
    assert index.search(["A blue bird flies."], "animal", k=1)["id"].to_pylist() == ["7"]
