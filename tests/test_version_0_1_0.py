"""What version 0.1.0 wrote (`version_0_1_0/`) still opens: outputs, indexes, model folders."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import cosines, embed_here, read_output, vectors

import raycase
from raycase.corpus.request import EmbedJob
from raycase.corpus.verify import verify
from raycase.search.build import IndexJob, build
from raycase.search.index import Index

OLD = Path(__file__).parent / "version_0_1_0"


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy, in the folder where this test runs."""
    shutil.copytree(OLD, tmp_path / "old")
    monkeypatch.chdir(tmp_path / "old")
    return tmp_path / "old"


def job(output, limit, **options):
    """The command that wrote `output`, with another limit: without a model, when the default was minilm."""
    conditions = ("number of people",)
    return EmbedJob(limit=limit, unit_rows=20, conditions=conditions, compute="float32", output=str(output), **options)


def test_an_output_is_verified_and_resumed_under_its_fingerprint_with_its_own_model(old, capsys):
    before = {f.name: f.read_bytes() for f in (old / "output" / "embeddings").iterdir()}
    fingerprint = json.loads((old / "output" / "job.json").read_text())["fingerprint"]
    assert verify("output")["rows_out"] == 40
    embed_here(job("output", 60))
    assert "output: begun with --model minilm; resuming with it\n" in capsys.readouterr().err
    after = {f.name: f.read_bytes() for f in (old / "output" / "embeddings").iterdir()}
    assert len(after) == 3 and before.items() <= after.items()
    assert {name[:8] for name in after} == {fingerprint[:8]}
    assert verify("output")["rows_out"] == 60


def test_the_same_job_gives_the_same_vectors(old):
    embed_here(job("again", 40, model="minilm"))
    written, expected = read_output("again"), read_output("output")
    assert written.drop_columns("embedding").equals(expected.drop_columns("embedding"))
    assert written.schema.equals(expected.schema)
    assert cosines(vectors(written), vectors(expected)).min() > 0.9999


def test_an_index_is_searched_and_grows(old):
    before = Index.open("index.lance").search(["Two women talk."], "number of people", k=3)
    embed_here(job("output", 60))
    assert build(IndexJob(embeddings=("output",), output="index.lance"))["rows_added"] == 20
    after = Index.open("index.lance").search(["Two women talk."], "number of people", k=60)
    assert len(after) == 60
    old_ids = set(read_output("output")["id"].to_pylist()[:40])
    kept = [answer for answer in after.to_pylist() if answer["id"] in old_ids][:3]
    assert [a["id"] for a in kept] == before["id"].to_pylist()
    assert [a["score"] for a in kept] == pytest.approx(before["score"].to_pylist(), abs=1e-6)


def test_a_model_folder_gives_the_vectors_that_it_gave(old):
    expected = json.loads((old / "expected.json").read_text())
    model = raycase.load("model", dtype=torch.float32)
    under = model.embed(expected["sentences"], expected["conditions"])
    assert cosines(under, np.array(expected["vectors"])).min() > 0.9999
    assert model.embed(expected["sentences"], None)[:, :8] == pytest.approx(np.array(expected["plain"]), abs=1e-5)
