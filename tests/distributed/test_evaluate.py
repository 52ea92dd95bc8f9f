"""Evaluation through the embedding job: vectors embedded once, the same figures as in one process, the script."""

import json
import runpy
import sys
from dataclasses import replace

import pytest
import torch
from helpers import ROOT, vectors_of, write_csv

from raycase.distributed.evaluate import evaluate
from raycase.distributed.train import train
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.tasks import catalogue
from raycase.systems import case
from raycase.systems.dualcse import Form
from raycase.systems.projector import Projector, ProjectorConfig
from raycase.systems.registry import resolve
from raycase.training.inference_jobs import DualCseJob


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


def test_the_job_embeds_once_and_gives_what_this_process_gives(cluster, job, tmp_path):
    first = evaluate(job)
    units = list((tmp_path / "cache").glob("*/vectors/embeddings/*"))
    assert len(units) == 2  # one of f, one of f - base
    files = [*units, *(tmp_path / "cache").glob("*/vectors/manifest.json")]
    written = [file.stat().st_mtime_ns for file in files]
    second = evaluate(job)
    assert sorted((tmp_path / "cache").glob("*/vectors/embeddings/*")) == sorted(units)
    assert [file.stat().st_mtime_ns for file in files] == written
    assert second["models"] == first["models"]
    expected = catalogue.evaluate(job, vectors_of=vectors_of)["models"][0]["variants"]
    for name, variant in first["models"][0]["variants"].items():
        assert variant["spearman"]["value"] == pytest.approx(expected[name]["spearman"]["value"], abs=0.1)
        assert variant["to_mean"]["mean"] == pytest.approx(expected[name]["to_mean"]["mean"], abs=1e-4)


def test_the_report_on_two_vectors_a_sentence_has_the_figures_of_training(inferences, tiny_model, cluster, tmp_path):
    settings = {"model": str(tiny_model), "compute": "float32", "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}
    fit = DualCseJob(form=Form.BI, output=str(tmp_path / "dualcse"), **settings, **inferences)
    metrics = train(fit)
    assert train(fit) == json.loads(json.dumps(metrics)), "the same command does nothing"
    with pytest.raises(RequestError, match="got another"):
        train(replace(fit, intra=False))
    trained = metrics["validation"]
    for task in ("rte", "eis"):
        job = EvaluateJob(
            model=(fit.output,),
            data=inferences["validation"],
            output=str(tmp_path / "report"),
            task=task,
            compute="float32",
            resamples=100,
        )
        figures = evaluate(job)["systems"][0]["figures"]
        assert figures["all"]["accuracy"]["value"] == pytest.approx(trained[task], abs=1e-6)


def test_the_script_reports_a_wrong_request_in_one_line_with_status_2(job, tmp_path, monkeypatch, capsys):
    header = ["sentence1", "sentence2", "condition", "label"]
    data = write_csv(tmp_path / "bad.csv", header, [["a dog", "a cat", "type", "high"]])
    flags = {"--model": job.model[0], "--data": data, "--output": job.output}
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *(word for pair in flags.items() for word in pair)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "jobs" / "evaluate.py"), run_name="__main__")
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "row 0: expected a number as label, got 'high'" in line
    assert not (tmp_path / "report").exists()
