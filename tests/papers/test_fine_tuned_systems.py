"""What holds for every fine-tuned system: training, embedding, search and evaluation agree; a folder loads."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import small
import torch
from helpers import embed_here, embedded, rated_rows, train_here, vectors_of
from scipy.stats import spearmanr
from small import EVERY, SENTENCES, close, system
from storing import indexed

import raycase
from raycase.commands.evaluate import EvaluateFlags, measure
from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError
from raycase.index.index import Index
from raycase.io.schema import Reason
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import score_pairs, sentence_encoder
from raycase.models.fine_tuned import pair_scores
from raycase.models.registry import resolve
from raycase.papers.baselines import Compose
from raycase.papers.baselines.model import TriEncoderConfig, bi_encoder, cross_encoder, lora
from raycase.papers.baselines.train import BiEncoderFlags
from raycase.papers.csr import Asks, Router
from raycase.papers.csr.model import csr
from raycase.papers.csr.train import CsrFlags
from raycase.papers.dualcse import DualCseForm
from raycase.papers.dualcse.model import dualcse
from raycase.papers.dualcse.train import DualCseFlags, SimCseFlags
from raycase.papers.mixsp.model import mixsp
from raycase.papers.mixsp.train import MixSpFlags

CONCAT = {"prompt": "concat-cs", "pooling": Pooling.MEAN}
EMBED = {
    "bi": bi_encoder,
    "bi of the condition": lambda model: bi_encoder(model, prompt="concat-sc:condition"),
    "tri": TriEncoderConfig.untrained,
    "tri concat": lambda model: TriEncoderConfig.untrained(model, compose=Compose.CONCAT, pooling=Pooling.CLS),
    "csr": csr,
    "csr hidden": lambda model: csr(model, router=Router.HIDDEN, asks=Asks.WORDS, routed=2),
    "lora": lambda model: lora(model, rank=4, **CONCAT),
}
SYSTEMS = EMBED | {
    "cross": cross_encoder,
    "dualcse": dualcse,
    "dualcse bi": lambda model: dualcse(model, form=DualCseForm.BI),
    "mixsp": mixsp,
    "sentence": sentence_encoder,
}


@pytest.fixture(scope="module")
def trained(bert, tmp_path_factory):
    """By name: the figures of a system whose weights were changed, and the folder that it was saved in."""

    def save(name):
        system = small.disturb(SYSTEMS[name](bert).trainable()).eval()
        found, folder = small.figures(system), tmp_path_factory.mktemp("trained") / "model"
        system.save(folder)
        return found, folder

    return save


@pytest.mark.parametrize("name", EMBED)
def test_a_score_of_training_is_the_cosine_under_the_condition(bert, name):
    config, rated = EMBED[name](bert), small.rated()
    module = pair_scores(small.disturb(config.trainable(dropout=0.0), scale=0.02).eval())
    first, second = (module.system.embed(s, rated.conditions) for s in (rated.sentences1, rated.sentences2))
    wanted = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    texts = config.rated(rated)
    close(module.scores(texts), wanted)
    rows = np.array([5, 0, 5, 17])
    close(module(texts.take(rows)).detach(), wanted[rows])


def test_pairs_to_which_the_condition_does_not_apply_are_scored_and_not_trained_on(bert):
    """The loss of a batch is the squared error by hand: ratings 1 to 5 are to be met by 0 to 1."""
    training, rated = small.job(BiEncoderFlags, bert, batch_size=4, dropout=0.0).training(), small.rated()
    train, _ = training.data([rated, rated])
    batches = training.batches(training.recipe, train, epoch=1)
    assert sorted(np.concatenate(batches)) == [row for row in range(24) if row != 1]
    module = training.module(training.config.trainable(0.0)).eval()
    scores, rows = module.scores(train.texts), batches[0]
    wanted = np.square(scores[rows] - (rated.ratings[rows] - 1) / 4).mean()
    assert training.batch_loss(train, module, rows).item() == pytest.approx(wanted, rel=1e-4)
    spearman = 100 * spearmanr(scores, rated.ratings).statistic
    assert training.evaluate(train, module)["spearman"] == pytest.approx(spearman)


@pytest.mark.parametrize("name", [*EMBED, "condition pooling"])
def test_a_pair_that_is_refused_leaves_the_others_and_a_long_one_is_cut(bert, name):
    config = (EMBED | {"condition pooling": ConditionPoolingConfig.untrained})[name](bert)
    config = replace(config, encoder=replace(config.encoder, max_tokens=16))
    loaded = system(config)
    pairs = [EVERY[0], ("\u200b", "dog"), ("a dog " * 20, "dog"), (SENTENCES[0], " "), EVERY[0], ("\u200b", "people")]
    found = loaded.encode_prepared(config.prepare(*map(list, zip(*pairs, strict=True))))
    empty = Reason.EMPTY_TEXT
    assert found.refused == [None, empty, None, Reason.EMPTY_CONDITION, None, empty]
    assert found.truncated.tolist() == [False, False, True, False, False, False]
    assert np.isnan(found.vectors[[1, 3, 5]]).all()
    close(found.vectors[[0, 4]], small.vectors(loaded, [EVERY[0]] * 2), atol=5e-6)
    none = loaded.encode_prepared(config.prepare(["\u200b", " "], ["dog", "dog"]))
    assert none.refused == [empty] * 2 and none.vectors.shape == (2, config.dim)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_saved_system_is_what_it_was_and_its_description_names_no_place(trained, bert, name, tmp_path):
    wanted, folder = trained(name)
    loaded = raycase.load(str(folder), dtype=torch.float32)
    close(small.figures(loaded), wanted, atol=5e-6)
    assert not np.allclose(small.figures(system(SYSTEMS[name](bert))), wanted, atol=1e-3)
    kept = SYSTEMS[name](bert)
    assert (loaded.config.SYSTEM, loaded.config.label) == (kept.SYSTEM, kept.label)
    assert json.loads((folder / "raycase.json").read_text())["system"] == kept.SYSTEM
    described = resolve(str(folder)).describe()
    shutil.copytree(folder, tmp_path / "elsewhere")
    assert resolve(str(tmp_path / "elsewhere")).describe() == described
    assert kept.describe() != described
    assert str(folder) not in json.dumps(described)


def test_a_trained_model_is_no_encoder_to_begin_with_but_its_encoder_is(trained):
    _, folder = trained("csr")
    for begin in (bi_encoder, TriEncoderConfig.untrained, cross_encoder, csr):
        with pytest.raises(RequestError, match=f"got the trained model {folder}; its encoder is {folder}/encoder$"):
            begin(str(folder))
        begin(str(folder / "encoder"))


def scored(system, firsts, seconds, conditions):
    under = conditions if system.config.known_conditions is None else None
    return score_pairs(system, system.config.prepare_pairs(firsts, seconds, under))


@pytest.mark.parametrize(("name", "figures"), [("bi", 1), ("cross", 1), ("dualcse", 3), ("mixsp", 3)])
def test_a_pair_that_is_refused_has_no_score_and_equal_pairs_are_scored_once(bert, name, figures):
    loaded = system(SYSTEMS[name](bert))
    firsts, seconds = ["a dog", "a dog", "a dog", "a dog"], ["people", " ", "people", "a bar " * 900]
    found = scored(loaded, firsts, seconds, ["number"] * 4)
    assert found.vectors.shape == (4, figures) and found.distinct == 3
    assert np.isnan(found.vectors).any(axis=1).tolist() == [False, True, False, False]
    assert np.array_equal(found.vectors[0], found.vectors[2])
    assert [str(reason) for reason in found.refused] == ["None", "empty text", "None", "None"]
    assert found.truncated.tolist() == [False, False, False, True]
    assert found.work.tokens > 0
    none = scored(loaded, [], [], [])
    assert (none.vectors.shape, none.refused, none.distinct) == ((0, figures), [], 0)


@pytest.fixture
def tuning(tiny_model, tmp_path):
    """Makes a job of two epochs."""
    places = {"model": str(tiny_model), "output": str(tmp_path / "model"), "compute": "float32"}
    settings = places | {"epochs": 2, "batch_size": 12, "learning_rate": 1e-3}
    return lambda flags, **options: flags(**settings | options)


@pytest.mark.parametrize(("make", "condition"), [(csr, "color"), (dualcse, "implicit")])
def test_an_output_is_searched_by_the_system_it_came_from(make, condition, tiny_model, tmp_path):
    make(str(tiny_model)).trainable().save(tmp_path / "model")
    rows = [{"id": i, "text": text} for i, text in enumerate(rated_rows(20, 3).sentence1)]
    output = embedded(tmp_path, tmp_path / "model", rows, conditions=(condition,), prompt=None, pooling=None)
    index = Index.open(indexed(tmp_path / "index.lance", output))
    found = index.search([rows[7]["text"]], condition, k=20).to_pylist()
    assert found[0]["score"] == next(row["score"] for row in found if row["id"] == 7)  # untrained, it may tie
    make(str(tiny_model)).trainable().save(tmp_path / "elsewhere")
    assert Index.open(index.root.uri, model=str(tmp_path / "elsewhere")).search([rows[7]["text"]], condition, k=1)
    small.disturb(make(str(tiny_model)).trainable()).save(tmp_path / "other")
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
    return {
        DualCseFlags: inferences,
        SimCseFlags: inferences,
        MixSpFlags: scored,
        BiEncoderFlags: pairs,
        CsrFlags: pairs,
    }


@pytest.mark.parametrize(
    ("kind", "options", "tasks"),
    [
        (DualCseFlags, {"form": DualCseForm.BI}, {"rte": ("all", "accuracy", "rte")}),
        (SimCseFlags, {}, {"rte": ("all", "accuracy", "rte")}),
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
