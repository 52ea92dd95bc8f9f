"""Fine-tuned systems through the same jobs: trained, embedded, indexed, searched, evaluated, refused."""

from dataclasses import replace

import pytest
import torch
from helpers import embed_here, embedded, rated_rows, train_here, vectors_of

from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.baselines.train import BiEncoderFlags
from raycase.papers.csr.model import csr
from raycase.papers.csr.train import CsrFlags
from raycase.papers.dualcse import DualCseForm
from raycase.papers.dualcse.model import dualcse
from raycase.papers.dualcse.train import DualCseFlags
from raycase.papers.mixsp.train import MixSpFlags


@pytest.fixture
def tuning(tiny_model, tmp_path):
    """Makes a job of two epochs."""
    places = {"model": str(tiny_model), "output": str(tmp_path / "model"), "compute": "float32"}
    settings = places | {"epochs": 2, "batch_size": 12, "learning_rate": 1e-3}
    return lambda flags, **options: flags(**settings | options)


@pytest.mark.parametrize(
    ("make", "condition"),
    [(csr, "color"), (dualcse, "implicit")],
)
def test_an_output_is_searched_by_the_system_it_came_from(make, condition, tiny_model, tmp_path):
    make(str(tiny_model)).trainable().save(tmp_path / "model")
    rows = [{"id": i, "text": text} for i, text in enumerate(rated_rows(20, 3).sentence1)]
    output = embedded(
        tmp_path, tmp_path / "model", rows, conditions=(condition,), unconditional=False, prompt=None, pooling=None
    )
    build(embeddings=(output,), output=str(tmp_path / "index.lance"))
    index = Index.open(str(tmp_path / "index.lance"))
    found = index.search([rows[7]["text"]], condition, k=20).to_pylist()
    assert found[0]["score"] == next(row["score"] for row in found if row["id"] == 7)  # untrained, it may tie
    make(str(tiny_model)).trainable().save(tmp_path / "elsewhere")
    assert Index.open(index.root.uri, model=str(tmp_path / "elsewhere")).search([rows[7]["text"]], condition, k=1)
    other = make(str(tiny_model)).trainable()
    with torch.no_grad():
        next(other.parameters()).add_(1)
    other.save(tmp_path / "other")
    with pytest.raises(RequestError, match="expected the index's model"):
        Index.open(index.root.uri, model=str(tmp_path / "other")).search(["dog"], condition)
    if make is dualcse:
        with pytest.raises(RequestError, match=r"expected one of the index's .*implicit.*, got 'color'"):
            index.search(["dog"], "color")


def test_a_cross_encoder_gives_no_vectors(tiny_model, tmp_path, job):
    cross_encoder(str(tiny_model)).trainable().save(tmp_path / "cross")
    with pytest.raises(RequestError, match=r"expected a model that gives vectors, got .*cross"):
        embed_here(replace(job, model=str(tmp_path / "cross"), prompt=None, pooling=None))


@pytest.fixture
def parts(rated, scored, inferences):
    """Training and validation data of each kind of job."""
    pairs = {part: f"{rated}/{part}.csv" for part in ("train", "validation")}
    return {DualCseFlags: inferences, MixSpFlags: scored, BiEncoderFlags: pairs, CsrFlags: pairs}


@pytest.mark.parametrize(
    ("kind", "options", "tasks"),
    [
        (DualCseFlags, {"form": DualCseForm.BI}, {"rte": ("all", "accuracy", "rte")}),
        (MixSpFlags, {}, {"sts": ("all", "spearman", "spearman")}),
    ],
)
def test_a_report_has_the_figures_of_training(tuning, parts, kind, options, tasks, tmp_path):
    job = tuning(kind, **options, **{p: parts[kind][p] for p in ("train", "validation")})
    metrics = train_here(job)
    for task, (group, name, trained) in tasks.items():
        places = {"model": (job.output,), "data": job.validation, "output": str(tmp_path / "report")}
        asked = EvaluateFlags(task=task, compute="float32", resamples=100, **places)
        found = measure(asked, vectors_of=vectors_of)["systems"][0]["figures"][group][name]["value"]
        assert found == pytest.approx(metrics["validation"][trained], abs=1e-2)
    if kind is DualCseFlags:
        threshold = metrics["validation"]["threshold"]
        card = (tmp_path / "model" / "README.md").read_text()
        assert f"best threshold of a cosine on them is {threshold:.4f}." in card and "| threshold |" not in card


@pytest.mark.parametrize(
    ("kind", "change", "said"),
    [
        (BiEncoderFlags, {"learning_rate": 0.0}, "--learning-rate: expected a number above 0"),
        (CsrFlags, {"routed": 9, "model": "minilm"}, "--routed: expected 1 to 6 layers of minilm, got 9"),
        (DualCseFlags, {"validation": "train"}, "premises that are not in --train, got 24"),
        (MixSpFlags, {"validation": "train"}, "--train: expected pairs that are not in --validation, got none"),
    ],
)
def test_wrong_flags_are_refused(tuning, parts, kind, change, said):
    given = {part: parts[kind][part] for part in ("train", "validation")} | change
    given["validation"] = parts[kind].get(given["validation"], given["validation"])
    with pytest.raises(RequestError, match=said):
        train_here(tuning(kind, **given))
