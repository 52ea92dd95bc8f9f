"""The procedure that all tasks share: reports without matplotlib, and a table that has every task."""

import json
import sys
from typing import get_type_hints

import pytest
from helpers import vectors_of

from raycase.evaluation import csts_report
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.plots import has_matplotlib
from raycase.evaluation.tasks import sts
from raycase.evaluation.tasks.catalogue import TASKS, evaluate
from raycase.systems.sentence_encoder import sentence_encoder


def test_the_table_has_every_task():
    assert tuple(TASKS) == get_type_hints(EvaluateJob)["task"].__args__


@pytest.mark.parametrize("task", ["csts", "sts"])
def test_without_matplotlib_the_report_leaves_the_plots_out_and_says_so(
    task, evaluation, models, scored, tiny_model, tmp_path, monkeypatch
):
    job = evaluation(models[0])
    if task == "sts":
        sentence_encoder(str(tiny_model)).trainable().save(tmp_path / "model")
        job = evaluation(tmp_path / "model", data=scored["validation"], task="sts")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not has_matplotlib()
    metrics = evaluate(job, vectors_of=vectors_of)
    folder = tmp_path / "report"
    assert sorted(file.name for file in folder.iterdir()) == ["metrics.json", "report.md"]
    assert metrics["plots_left_out"] == "matplotlib is not installed" and "pictures" not in metrics
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert "![" not in report
    assert "plots were left out: matplotlib is not installed; install it with `pip install 'raycase[report]'`" in report
    render = csts_report.render if task == "csts" else sts.render
    assert render(json.loads((folder / "metrics.json").read_text(encoding="utf-8"))) == report
