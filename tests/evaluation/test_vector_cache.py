"""Evaluation through the embedding job: vectors embedded once, the same figures as in one process, the script."""

from dataclasses import replace

import pytest
import torch
from helpers import vectors_of

from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks import catalogue
from raycase.heads.projector import Projector, ProjectorConfig
from raycase.job.runner import Runner
from raycase.job.vector_cache import VectorCache
from raycase.models import case
from raycase.models.registry import resolve

CACHED = VectorCache(Runner())  # on Ray: see test_train.py


@pytest.fixture
def job(tiny_model, rated, tmp_path):
    """The evaluation of a model folder with a random projector."""
    config = resolve(str(tiny_model), prompt="concat-sc", pooling="mean")
    shape = ProjectorConfig(input_dim=32, output_dim=8)
    torch.manual_seed(0)
    case.save(tmp_path / "model", replace(config, projector=shape), Projector(shape).eval())
    return EvaluateJob(
        model=(str(tmp_path / "model"),),
        data=str(rated / "validation.csv"),
        output=str(tmp_path / "report"),
        cache=str(tmp_path / "cache"),
        compute="float32",
        resamples=100,
    )


def test_the_job_embeds_once_and_gives_what_this_process_gives(job, tmp_path):
    first = catalogue.evaluate(job, vectors_of=CACHED.vectors_of)
    units = list((tmp_path / "cache").glob("*/vectors/embeddings/*"))
    assert len(units) == 2  # one of f, one of f - base
    files = [*units, *(tmp_path / "cache").glob("*/vectors/manifest.json")]
    written = [file.stat().st_mtime_ns for file in files]
    second = catalogue.evaluate(job, vectors_of=CACHED.vectors_of)
    assert sorted((tmp_path / "cache").glob("*/vectors/embeddings/*")) == sorted(units)
    assert [file.stat().st_mtime_ns for file in files] == written
    assert second["models"] == first["models"]
    expected = catalogue.evaluate(job, vectors_of=vectors_of)["models"][0]["variants"]
    for name, variant in first["models"][0]["variants"].items():
        assert variant["spearman"]["value"] == pytest.approx(expected[name]["spearman"]["value"], abs=0.1)
        assert variant["to_mean"]["mean"] == pytest.approx(expected[name]["to_mean"]["mean"], abs=1e-4)
