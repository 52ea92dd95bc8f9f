"""Fine-tuned systems through the same jobs: trained, embedded, indexed, searched, evaluated, refused."""

import json
from dataclasses import replace

import pytest
import small
import torch
from helpers import cosines, embed_here, embedded, rated_rows, read_output, train_here, vectors, vectors_of

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.baselines.train import BiEncoderFlags
from raycase.papers.csr.model import csr
from raycase.papers.csr.train import CsrFlags
from raycase.papers.dualcse.model import dualcse
from raycase.papers.dualcse.names import DualCseForm
from raycase.papers.dualcse.train import DualCseFlags
from raycase.papers.mixsp.train import MixSpFlags
from raycase.training.loop import restore


@pytest.fixture
def tuning(rated, tiny_model, tmp_path):
    def job(kind, system, **options):
        settings = {
            "train": str(rated / "train.csv"),
            "validation": str(rated / "validation.csv"),
            "model": str(tiny_model),
            "compute": "float32",
            "output": str(tmp_path / system),
            "epochs": 2,
            "batch_size": 16,
            "learning_rate": 1e-3,
        }
        return kind(**settings | options)

    return job


def bare_fit(job):
    """The same without the command: the state, and the trained module."""
    training = job.training()
    *_, state = small.fit(job, training.read())
    system = training.config.trainable()
    restore(training.module(system), state.best)
    return state, system.eval()


def test_a_router_is_trained_embeds_a_corpus_and_is_searched(tuning, tmp_path, capsys):
    job = tuning(CsrFlags, "csr")
    metrics = train_here(job)
    assert capsys.readouterr().out.count("Spearman") == 2
    state, system = bare_fit(job)
    for found, wanted in zip(metrics["history"], state.history, strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
        assert found["spearman"] == pytest.approx(wanted["spearman"], abs=1e-2)
    assert metrics["parameters"] == sum(p.numel() for p in system.parameters())
    assert metrics == json.loads(json.dumps(train_here(job))), "the same command does nothing"
    with pytest.raises(RequestError, match="got another"):
        train_here(replace(job, seed=5))
    card = (job.folder / "README.md").read_text()
    assert f"{metrics['validation']['spearman']:.2f}" in card and "raycase.load" in card

    frame = rated_rows(30, 3)
    sentences, conditions = list(frame.sentence1), ["color", "number of people"]
    rows = [{"id": i, "text": sentence} for i, sentence in enumerate(sentences)]
    settings = {"prompt": None, "pooling": None, "unit_rows": 10, "conditions": tuple(conditions)}
    output = embedded(tmp_path / "corpus", job.output, rows, **settings)
    found = read_output(output).sort_by([("id", "ascending")])
    wanted = raycase.load(job.output, dtype=torch.float32).embed(
        found["text"].to_pylist(), found["condition"].to_pylist()
    )
    assert cosines(vectors(found), wanted).min() > 0.9999
    assert cosines(wanted, system.embed(found["text"].to_pylist(), found["condition"].to_pylist())).min() > 0.9999

    build(embeddings=(output,), output=str(tmp_path / "index.lance"))
    answers = Index.open(str(tmp_path / "index.lance")).search([sentences[4]], "color", k=3)
    assert answers["id"][0].as_py() == 4 and answers["score"][0].as_py() > 0.9999


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
    job = tuning(kind, "model", batch_size=12, **options, **{p: parts[kind][p] for p in ("train", "validation")})
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
        train_here(tuning(kind, "model", **given))
