"""The evaluation: figures against scipy and by hand, the report from its JSON alone, refusals, and the cache."""

import csv
import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import tiny
import torch
from helpers import ROOT, sentences

import raycase
from raycase.data.rated import RatedPairs, read_rated, texts_sha256
from raycase.distributed.evaluate import evaluate as evaluate_on_ray
from raycase.encoder.cosines import cosines
from raycase.encoder.prompts import Span
from raycase.errors import RequestError
from raycase.evaluation.ablation import ablation, ablation_configs
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import find_models
from raycase.evaluation.report import render
from raycase.evaluation.scores import by_rating, compare, correlations, worst_pairs
from raycase.evaluation.tasks.csts import evaluate
from raycase.systems import case
from raycase.systems.pair_vectors import PairVectors
from raycase.systems.projector import Projector, ProjectorConfig
from raycase.systems.registry import resolve

CONDITIONS = ["color of the dress", "number of people", "type of dog"]
RATINGS = [-1, 1, 2, 3, 4, 5]


def write_csv(file, columns, rows):
    with file.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([columns, *rows])
    return str(file)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A file of 40 rated pairs over 10 sentences and 3 conditions."""
    words = sentences(10, seed=5)
    every = [(a, b, c) for i, a in enumerate(words) for b in words[:i] for c in CONDITIONS]
    random = np.random.default_rng(3)
    rows = [[*every[k], RATINGS[i % len(RATINGS)]] for i, k in enumerate(random.permutation(len(every))[:40])]
    return write_csv(
        tmp_path_factory.mktemp("pairs") / "pairs.csv", ["sentence1", "sentence2", "condition", "label"], rows
    )


@pytest.fixture(scope="module")
def rated(pairs):
    return read_rated(pairs, "--data")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny bidirectional encoder of 32 dimensions."""
    return tiny.save_encoder(tmp_path_factory.mktemp("encoder"), "minilm")


def save_folder(folder, encoder, seed, **options):
    """A model folder with a random projector."""
    config = resolve(str(encoder), prompt="concat-sc", pooling="mean")
    shape = ProjectorConfig(input_dim=32, output_dim=8)
    torch.manual_seed(seed)
    case.save(folder, replace(config, projector=shape, **options), Projector(shape).eval())
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory, encoder):
    """Two model folders on the same encoder."""
    home = tmp_path_factory.mktemp("models")
    return [save_folder(home / name, encoder, seed) for seed, name in enumerate(("first", "second"))]


EMBEDDED = {}


def here(texts, config, *, name, cache, compute):
    """What the embedding job gives, embedded in this process, once."""
    key = json.dumps([config.describe(), texts_sha256(texts)])
    if key not in EMBEDDED:
        EMBEDDED[key] = config.load(dtype=torch.float32).embed(*zip(*texts, strict=True))
    return EMBEDDED[key]


@pytest.fixture
def ask(tmp_path, pairs):
    """The job, with what is said replaced."""

    def job(*models, **options):
        return EvaluateJob(
            **{"data": pairs, "output": str(tmp_path / "report"), "compute": "float32", "resamples": 100}
            | {"model": tuple(map(str, models))}
            | options
        )

    return job


def pair_cosines(folder, rated):
    """Of a model folder's own system, by the public door."""
    system = raycase.load(str(folder), dtype=torch.float32)
    return cosines(system.embed(rated.sentences1, rated.conditions), system.embed(rated.sentences2, rated.conditions))


# ---------------------------------------------------------------------------------------------------------- figures


def test_the_figures_are_those_of_scipy_and_of_the_loaded_folder(ask, models, rated):
    metrics = evaluate(ask(models[0]), vectors_of=here)
    [model] = metrics["models"]
    assert list(model["variants"]) == ["f", "f - base", "g(f - base)"]
    assert model["system"] == "g(f - base)"
    found = model["variants"]["g(f - base)"]
    scores, ratings = pair_cosines(models[0], rated), rated.ratings
    kept = ratings != -1
    assert found["spearman"]["value"] == pytest.approx(100 * scipy.stats.spearmanr(scores, ratings)[0])
    assert found["spearman_rated"]["value"] == pytest.approx(
        100 * scipy.stats.spearmanr(scores[kept], ratings[kept])[0]
    )
    assert found["pearson"]["value"] == pytest.approx(100 * scipy.stats.pearsonr(scores, ratings)[0], rel=1e-4)
    assert found["pearson_rated"]["value"] == pytest.approx(
        100 * scipy.stats.pearsonr(scores[kept], ratings[kept])[0], rel=1e-4
    )
    for name in ("spearman", "spearman_rated", "pearson", "pearson_rated"):
        assert found[name]["low"] < found[name]["value"] < found[name]["high"]
    assert metrics["data"]["not_applicable"] == (~kept).sum()


def test_each_variant_has_its_isotropy_and_spread(ask, models, rated, encoder):
    variants = evaluate(ask(models[0]), vectors_of=here)["models"][0]["variants"]
    for name, found in variants.items():
        assert 0 < found["isotropy"] < 1, name
        assert sum(found["to_mean"]["histogram"]["counts"]) == len(rated.distinct)
        assert sum(row["pairs"] for row in found["by_rating"]) == len(rated)
        assert found["dim"] == (8 if name.startswith("g") else 32)
    for name, subtract in (("f", False), ("f - base", True)):
        system = raycase.load(str(encoder), dtype=torch.float32, prompt="concat-sc", pooling="mean", subtract=subtract)
        vectors = system.embed(*zip(*rated.distinct, strict=True))
        to_mean = cosines(vectors, vectors.mean(0))
        assert variants[name]["to_mean"]["mean"] == pytest.approx(to_mean.mean(), rel=1e-4)
        assert variants[name]["to_mean"]["std"] == pytest.approx(to_mean.std(), rel=1e-3)


def test_a_projector_is_applied_to_the_vectors_it_was_fitted_on(ask, tmp_path, encoder, rated):
    folder = save_folder(tmp_path / "model", encoder, 4, subtract=False)
    [model] = evaluate(ask(folder), vectors_of=here)["models"]
    assert list(model["variants"]) == ["f", "f - base", "g(f)"]
    expected = scipy.stats.spearmanr(pair_cosines(folder, rated), rated.ratings)[0]
    assert model["variants"][model["system"]]["spearman"]["value"] == pytest.approx(100 * expected)


def test_the_worst_pairs_are_those_ranked_most_wrongly(rated):
    scores = rated.ratings / 5 + np.arange(len(rated)) * 1e-6
    low, high = np.flatnonzero(rated.ratings == 1)[2], np.flatnonzero(rated.ratings == 5)[1]
    scores[low], scores[high] = 2.0, -2.0
    scores[rated.ratings == -1] = 3.0  # no rating, so never wrong
    worst = worst_pairs(scores, rated)
    assert {pair["row"] for pair in worst[:2]} == {low, high}
    assert len(worst) == 10
    assert all(pair["rating"] != -1 for pair in worst)
    first = next(pair for pair in worst if pair["row"] == low)
    assert (first["sentence1"], first["condition"]) == (rated.sentences1[low], rated.conditions[low])
    assert (first["rating"], first["cosine"], first["cosine_rank"]) == (1, 2.0, 100)


def test_fine_grained_ratings_share_the_nearest_whole_one():
    ratings = np.linspace(1, 5, 41)
    rows = by_rating(ratings / 5, ratings)
    assert [row["rating"] for row in rows] == [1, 2, 3, 4, 5]
    assert sum(row["pairs"] for row in rows) == 41


def pairs_rated(ratings):
    """Pairs of sentences that are all different, with these ratings."""
    numbers = [str(i) for i in range(len(ratings))]
    return RatedPairs(uri="", sentences1=numbers, sentences2=numbers, conditions=numbers, ratings=ratings)


def test_what_does_not_vary_has_no_correlation():
    ratings = np.array([-1.0, 3, 3, 3])
    found = correlations(np.array([0.1, 0.2, 0.3, 0.4]), pairs_rated(ratings), resamples=100, seed=0)
    assert found["spearman"] is not None
    assert found["spearman_rated"] is None


# ------------------------------------------------------------------------------------------------------- comparison


def test_the_difference_is_above_zero_for_the_better_one():
    random = np.random.default_rng(0)
    ratings = random.integers(1, 6, 200).astype(float)
    good, bad = ratings + random.normal(size=200), random.normal(size=200)
    rated = pairs_rated(ratings)
    found = compare(good, bad, rated, resamples=200, seed=0)["spearman"]
    assert 0 < found["low"] < found["difference"] < found["high"]
    assert found["p"] < 0.05
    assert compare(bad, good, rated, resamples=200, seed=0)["spearman"]["high"] < 0


def test_several_models_are_compared_with_the_first(ask, models):
    metrics = evaluate(ask(*models), vectors_of=here)
    assert [model["name"] for model in metrics["models"]] == ["first", "second"]
    values = [model["variants"][model["system"]]["spearman"]["value"] for model in metrics["models"]]
    [line] = metrics["comparison"]
    assert (line["model"], line["against"]) == ("second", "first")
    assert line["spearman"]["difference"] == pytest.approx(values[1] - values[0])
    assert line["spearman"]["low"] <= line["spearman"]["difference"] <= line["spearman"]["high"]


# ------------------------------------------------------------------------------------------------------- the report


def strict(text):
    """JSON without NaN and infinity, which other readers refuse."""

    def refuse(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_the_report_is_made_from_its_json_alone(ask, models, tmp_path):
    answers = [["a red dress", "a blue dress", "color of the dress", "red", "a | blue"]]
    file = write_csv(tmp_path / "cases.csv", ["sentence1", "sentence2", "condition", "answer1", "answer2"], answers)
    evaluate(ask(*models, cases=file), vectors_of=here)
    folder = tmp_path / "report"
    assert sorted(f.name for f in folder.iterdir()) == [
        "cosine_by_rating.png",
        "cosines_to_mean.png",
        "metrics.json",
        "report.md",
    ]
    metrics = strict((folder / "metrics.json").read_text(encoding="utf-8"))
    report = (folder / "report.md").read_text(encoding="utf-8")
    assert render(metrics) == report
    for picture in folder.glob("*.png"):
        assert f"({picture.name})" in report
        assert picture.read_bytes().startswith(b"\x89PNG")
    variant = metrics["models"][0]["variants"]["g(f - base)"]
    assert f"{variant['isotropy']:.4f}" in report
    variant["spearman"]["value"] = 12.3456
    assert "12.35" in render(metrics)
    widths = {line.replace("\\|", "").count("|") for line in report.splitlines() if "a \\| blue" in line}
    assert widths == {8}  # a bar in the text is no column


def test_an_earlier_report_is_replaced(ask, models, tmp_path):
    evaluate(ask(models[0]), vectors_of=here)
    evaluate(ask(models[1]), vectors_of=here)
    assert (tmp_path / "report" / "report.md").read_text(encoding="utf-8").startswith("# second on pairs.csv")


@pytest.mark.parametrize(("part", "words"), [("train", "was trained on"), ("validation", "had its epoch chosen on")])
def test_the_report_says_what_training_saw(ask, encoder, rated, tmp_path, part, words):
    folder = save_folder(tmp_path / "model", encoder, 0)
    data = {"train": {"sha256": "other"}, "validation": {"sha256": "other"}} | {part: {"sha256": rated.data_sha256}}
    (folder / "metrics.json").write_text(json.dumps({"data": data}))
    evaluate(ask(folder), vectors_of=here)
    assert f"model {words} these very pairs" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_case_study_is_that_of_the_loaded_folder(ask, models, tmp_path):
    first, second, condition, answers = "a red dress", "a blue dress", "color of the dress", ("red", "blue")
    columns = ["sentence1", "sentence2", "condition", "answer1", "answer2"]
    file = write_csv(tmp_path / "cases.csv", columns, [[first, second, condition, *answers]])
    [row] = evaluate(ask(models[0], cases=file), vectors_of=here)["models"][0]["cases"]

    def cosine(system, a, b, under):
        a, b = system.embed([a, b], under)
        return pytest.approx(float(cosines(a, b)), abs=1e-5)

    after = raycase.load(str(models[0]), dtype=torch.float32)
    before = case.Case(config=replace(after.config, projector=None, folder=None), encoder=after.encoder)
    assert row["cosines"] == {
        "unconditional": cosine(after, first, second, None),
        "sentences": {name: cosine(s, first, second, condition) for name, s in (("before", before), ("after", after))},
        "answer1": {name: cosine(s, first, "red", condition) for name, s in (("before", before), ("after", after))},
        "answer2": {name: cosine(s, second, "blue", condition) for name, s in (("before", before), ("after", after))},
    }


# ----------------------------------------------------------------------------------------------------- the ablation


def random_vectors(rated):
    random = np.random.default_rng(0)
    return lambda config: PairVectors(
        vectors=random.normal(size=(len(rated.distinct), 4)), places=rated.pair_index, ratings=rated.ratings
    )


def test_the_ablation_stands_beside_the_papers_figures(rated):
    found = ablation(resolve("simcse-bert-base"), rated, random_vectors(rated))
    assert found["encoder"] == "simcse-bert-base"
    published = {(r["pooling"], r["setting"]): r["published"] for r in found["rows"] if r["published"] is not None}
    assert published == {
        ("last", "CONC(s + c)"): 4.37,
        ("last", "CONC(c + s)"): 1.25,
        ("last", "CONC(s + c) - c"): 7.05,
        ("last", "CONC(c + s) - c"): 6.00,
    }
    settings = {(row["pooling"], row["setting"]) for row in found["rows"]}
    assert len(settings) == len(found["rows"]) == 4 * 4 * 2 + 2 * 2  # two prompts of ours, over a span only


def test_concatenations_over_the_condition_are_ablated_over_everything_too(encoder):
    config = resolve(str(encoder), prompt="concat-sc", pooling="mean")
    config = replace(config, encoder=replace(config.encoder, span=Span.CONDITION))
    configs = ablation_configs(config)
    prompts = {c.encoder.prompt for c in configs}
    everything = {"concat-sc:all", "concat-cs:all"}
    assert prompts == {"sent", "cond", "concat-sc", "concat-cs", "question", "statement"} | everything
    assert len({json.dumps(c.describe()) for c in configs}) == len(configs) == 16
    assert config in configs  # so its vectors are in the cache already


def test_the_ablation_is_in_the_report_once_an_encoder(ask, models, tmp_path):
    metrics = evaluate(ask(*models, ablate=True), vectors_of=here)
    assert len(metrics["ablation"]) == 1
    rows = metrics["ablation"][0]["rows"]
    own = metrics["models"][0]["variants"]
    found = {row["setting"]: row["spearman"] for row in rows}
    assert found["CONC(s + c)"] == pytest.approx(own["f"]["spearman"]["value"])
    assert found["CONC(s + c) - c"] == pytest.approx(own["f - base"]["spearman"]["value"])
    assert f"**{max(found.values()):.2f}**" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------- what is wrong


HEADER = ["sentence1", "sentence2", "condition", "label"]
WRONG = {
    "label": ([HEADER, ["a dog", "a cat", "type", "high"]], "row 0: expected a number as label, got 'high'"),
    "column": ([HEADER[:2] + HEADER[3:], ["a dog", "a cat", "1"]], "expected the column 'condition'"),
    "empty": ([HEADER], "got no rows"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_data_is_refused(ask, models, tmp_path, wrong):
    rows, said = WRONG[wrong]
    with pytest.raises(RequestError, match=said):
        evaluate(ask(models[0], data=write_csv(tmp_path / "bad.csv", rows[0], rows[1:])), vectors_of=here)


def test_wrong_models_are_refused_and_the_earlier_report_stays(ask, models, tmp_path, encoder):
    evaluate(ask(models[0]), vectors_of=here)
    before = {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()}
    other = save_folder(tmp_path / "other", encoder, 0)
    saved = json.loads((other / "raycase.json").read_text())
    saved["projector"]["input_dim"] = 64
    (other / "raycase.json").write_text(json.dumps(saved))
    for names, said in {
        (other,): "expected a projector for the 32 dimensions of .*got one for 64",
        ("minilm-7b",): "expected one of minilm.*got 'minilm-7b'",
        (tmp_path / "nothing",): "expected a model folder or one of minilm.*got no .*nothing",
        (models[0], models[1], str(models[0]) + "/"): "expected each model once",
        (): "expected at least one",
    }.items():
        with pytest.raises(RequestError, match=f"{said}"):
            evaluate(ask(*names), vectors_of=here)
    with pytest.raises(RequestError, match=r"--prompt: .* was trained with concat-sc"):
        evaluate(ask(models[0], prompt="cond"), vectors_of=here)
    with pytest.raises(RequestError, match="--resamples"):
        evaluate(ask(models[0], resamples=1), vectors_of=here)
    assert {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()} == before


def test_a_folder_that_holds_something_else_is_no_place_for_a_report(ask, models, tmp_path):
    with pytest.raises(RequestError, match=r"--output: .*got a model in .*pass --output .*report"):
        evaluate(ask(models[0], output=str(models[0])), vectors_of=here)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "metrics.json").write_text("{}")
    with pytest.raises(RequestError, match=r"--output: .*got another metrics\.json"):
        evaluate(ask(models[0]), vectors_of=here)
    for output, said in ((models[0] / "raycase.json", "got the file"), ("s3://bucket/report", "on this machine")):
        with pytest.raises(RequestError, match=said):
            evaluate(ask(models[0], output=str(output)), vectors_of=here)


def test_wrong_cases_are_refused(ask, models, tmp_path):
    columns = ["sentence1", "sentence2", "condition", "answer1", "answer2"]
    wrong = {
        "expected the column 'answer2'": (columns[:4], [["a", "b", "c", "d"]]),
        "row 0: expected words in 'answer1'": (columns, [["a", "b", "c", " ", "e"]]),
        "got no rows": (columns, []),
        "expected texts that first can embed, got .*no room": (columns, [["a", "b", "red " * 600, "d", "e"]]),
    }
    for said, (names, rows) in wrong.items():
        file = write_csv(tmp_path / "cases.csv", names, rows)
        with pytest.raises(RequestError, match=f"--cases: .*{said}"):
            evaluate(ask(models[0], cases=file), vectors_of=here)
    assert not (tmp_path / "report").exists()


def test_without_matplotlib_the_report_says_how_to_get_it(ask, models, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RequestError, match=r"pip install 'raycase\[report\]'"):
        evaluate(ask(models[0]), vectors_of=here)


# ----------------------------------------------------------------------------------------------- the job, the cache


def test_vectors_are_sought_where_training_put_them(ask, models, tmp_path):
    [folder, name] = find_models(ask(models[0], "minilm"))
    assert Path(folder.cache.path) == Path(name.cache.path) == models[0].parent / "cache"
    [alone] = find_models(ask("minilm"))
    assert Path(alone.cache.path) == tmp_path / "cache"
    [said] = find_models(ask(models[0], cache=str(tmp_path / "x")))
    assert Path(said.cache.path) == tmp_path / "x"


def test_the_job_embeds_once_and_gives_what_this_process_gives(cluster, ask, models, tmp_path):
    job = ask(models[0], cache=str(tmp_path / "cache"))
    first = evaluate_on_ray(job)
    units = list((tmp_path / "cache").glob("*/vectors/embeddings/*"))
    assert len(units) == 2  # one of f, one of f - base
    kept = [*units, *(tmp_path / "cache").glob("*/vectors/manifest.json")]
    written = [f.stat().st_mtime_ns for f in kept]
    second = evaluate_on_ray(job)
    assert sorted((tmp_path / "cache").glob("*/vectors/embeddings/*")) == sorted(units)
    assert [f.stat().st_mtime_ns for f in kept] == written
    assert second["models"] == first["models"]
    expected = evaluate(job, vectors_of=here)["models"][0]["variants"]
    for name, found in first["models"][0]["variants"].items():
        assert found["spearman"]["value"] == pytest.approx(expected[name]["spearman"]["value"], abs=0.1)
        assert found["to_mean"]["mean"] == pytest.approx(expected[name]["to_mean"]["mean"], abs=1e-4)


def test_the_script_says_what_is_wrong_in_one_line_with_status_2(models, tmp_path, monkeypatch, capsys):
    data = write_csv(tmp_path / "bad.csv", HEADER, [["a dog", "a cat", "type", "high"]])
    report = tmp_path / "report"
    flags = {"--model": models[0], "--data": data, "--output": report}
    monkeypatch.setattr(sys, "argv", ["evaluate.py", *(str(word) for pair in flags.items() for word in pair)])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(ROOT / "jobs" / "evaluate.py"), run_name="__main__")
    assert stop.value.code == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "row 0: expected a number as label, got 'high'" in line
    assert not report.exists()
