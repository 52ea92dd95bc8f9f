"""Pairs of sentences are scored on Ray: as in this process, resumed, by the command's script."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import call_job, read_scores, score_here

from raycase.job.run import score
from raycase.job.score_job import ScoreJob
from raycase.job.verify import verify
from raycase.papers.mixsp.model import mixsp
from raycase.ray.runner import RayRunner


@pytest.mark.cluster
def test_scores_on_ray_are_those_of_this_process(tiny_model, scored, tmp_path, cluster):
    torch.manual_seed(0)
    mixsp(str(tiny_model)).trainable().save(tmp_path / "model")
    place = "s3://corpus/scored"
    flags = {"compute": "float32", "unit_rows": 10, "actors": "1:1"}
    job = ScoreJob(
        input=scored["pairs"], output=str(tmp_path / "here"), model=str(tmp_path / "model"), score_column="s", **flags
    )
    score_here(job)
    first = score(replace(job, output=place, limit=20), RayRunner())
    assert (first["rows_out"], first["units_done"]) == (20, 2)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in (vars(job) | {"output": place}).items() if value]
    words.append("--ray")
    done = call_job(*words, script="score.py")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["rows_out"], result["units_done"], result["units_resumed"]) == (40, 2, 2)
    found, wanted = read_scores(place), read_scores(job.output)
    figures = ["s", "s_range", "s_probability"]
    assert found.drop_columns(figures) == wanted.drop_columns(figures)
    for name in figures:
        np.testing.assert_allclose(found[name], wanted[name], atol=1e-5)
    assert verify(place)["rows_out"] == 40
