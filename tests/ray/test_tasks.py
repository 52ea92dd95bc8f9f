"""Commands of independent tasks on Ray and object storage write what they write in one process."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.dataset as ds
import pytest
import storing
import torch
from helpers import call_command, embed_here, embed_on_ray, embedded, read_scores, same_output, score_here

from raycase.commands.embed import EmbedFlags
from raycase.commands.score import ScoreFlags
from raycase.errors import WorkError
from raycase.explore.join import join
from raycase.io.storage import locate
from raycase.job.runner import Runner
from raycase.job.verify import verify
from raycase.papers.mixsp.model import mixsp
from raycase.ray.runner import RayRunner

CONDITIONS = ("color", "what they wear")


@pytest.fixture
def pooled(tmp_path):
    """An output of 60 rows with stored tokens, and one of their vectors in three units, by this process."""
    words = storing.stored(tmp_path, storing.model_folder(tmp_path), storing.texts(60), unit_rows=20)
    here = EmbedFlags(input=words, conditions=CONDITIONS, output=str(tmp_path / "pooled"), unit_rows=20)
    embed_here(here)
    return here


def neighbours(uri):
    folder = locate(uri) / "neighbours"
    table = ds.dataset(folder.path, filesystem=folder.fs, format="parquet").to_table()
    return table.sort_by([(name, "ascending") for name in ("id", "condition", "rank")])


def test_pooled_tokens_and_join(cluster, pooled, s3_server, tmp_path):
    there = replace(pooled, output="s3://corpus/tasks/pooled")
    assert embed_on_ray(there)["units_done"] == 3
    same_output(there.output, pooled.output)
    flags = {"query_vectors": pooled.output, "vectors": pooled.output, "k": 3, "exclude_same": "id"}
    flags |= {"group_rows": 40, "block_rows": 40}
    uri = "s3://corpus/tasks/near"
    result = join(output=uri, runner=RayRunner(), **flags)
    assert (result["queries"], result["neighbours"], result["queries_without_neighbours"]) == (120, 360, 0)
    join(output=str(tmp_path / "near"), runner=Runner(), **flags)
    found, wanted = neighbours(uri), neighbours(str(tmp_path / "near"))
    assert found.drop_columns("score").equals(wanted.drop_columns("score"))
    np.testing.assert_allclose(found["score"], wanted["score"], atol=1e-6)
    assert len((locate(uri) / "neighbours").list()) > 1


@pytest.fixture(scope="module")
def twice(tiny_model, tmp_path_factory):
    """An output of 100 units, in which an id stands in two units and another in three."""
    ids = [f"id {i}" for i in range(300)]
    ids[7] = ids[150] = "two"
    ids[8] = ids[151] = ids[299] = "three"
    rows = [{"id": id, "text": f"a dog {i}"} for i, id in enumerate(ids)]
    folder = tmp_path_factory.mktemp("twice")
    with pytest.raises(WorkError, match="several rows"):
        embedded(folder, tiny_model, rows, conditions=("color", "number"), unit_rows=3)
    return str(folder / "out")


def test_pairs_that_stand_twice_are_found(twice, cluster):
    with pytest.raises(WorkError) as alone:
        verify(twice)
    with pytest.raises(WorkError) as on_ray:
        verify(twice, RayRunner())
    assert str(on_ray.value) == str(alone.value)
    assert "several rows with the id 'two'; several rows with the id 'three'" in str(alone.value)


@pytest.mark.cluster
def test_scores_on_ray_are_those_of_this_process(tiny_model, scored, tmp_path, cluster):
    torch.manual_seed(0)
    mixsp(str(tiny_model)).trainable().save(tmp_path / "model")
    place = "s3://corpus/scored"
    files = {"input": scored["pairs"], "output": str(tmp_path / "here"), "model": str(tmp_path / "model")}
    job = ScoreFlags(**files, score_column="s", compute="float32", unit_rows=10, actors="1:1")
    score_here(job)
    first = score_here(replace(job, output=place, limit=20), RayRunner())
    assert (first["rows_out"], first["units_done"]) == (20, 2)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (vars(job) | {"output": place}).items() if value]
    words.append("--ray")
    done = call_command("score", *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows_out"], result["units_done"], result["units_resumed"]) == (40, 2, 2)
    found, wanted = read_scores(place), read_scores(job.output)
    figures = ["s", "s_range", "s_probability"]
    assert found.drop_columns(figures) == wanted.drop_columns(figures)
    for name in figures:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-5)
    assert verify(place)["rows_out"] == 40
