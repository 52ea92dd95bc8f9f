"""C-STS: figures against SciPy and by hand, the report from its JSON alone, the case study, refusals."""

import json
from dataclasses import replace

import pytest
import scipy.stats
import torch
from helpers import vectors_of, write_csv
from nested_models import save_condition_pooling

import raycase
from raycase.encoder.cosines import cosines
from raycase.errors import RequestError
from raycase.evaluation.csts_plots import training_curves
from raycase.evaluation.csts_report import render
from raycase.evaluation.tasks.catalogue import evaluate
from raycase.evaluation.training_curves import training_curve
from raycase.systems import case
from raycase.systems.projector import Projector, ProjectorConfig
from raycase.systems.registry import resolve


def pair_cosines(folder, rated_pairs):
    """The cosines of a model folder's vectors, by `raycase.load`."""
    system = raycase.load(str(folder), dtype=torch.float32)
    return cosines(
        system.embed(rated_pairs.sentences1, rated_pairs.conditions),
        system.embed(rated_pairs.sentences2, rated_pairs.conditions),
    )


# ---------------------------------------------------------------------------------------------------------- figures


def test_the_figures_are_those_of_scipy_and_of_the_loaded_folder(evaluation, models, rated_pairs):
    metrics = evaluate(evaluation(models[0]), vectors_of=vectors_of)
    [model] = metrics["models"]
    assert list(model["variants"]) == ["f", "f - base", "g(f - base)"]
    assert model["system"] == "g(f - base)"
    found = model["variants"]["g(f - base)"]
    scores, ratings = pair_cosines(models[0], rated_pairs), rated_pairs.ratings
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


@pytest.mark.parametrize("trained", [False, True])
def test_condition_pooling_has_figures_as_every_system(evaluation, encoder, rated_pairs, tmp_path, trained):
    model = save_condition_pooling(tmp_path / "pooling", encoder) if trained else f"condition-pooling:{encoder}"
    metrics = evaluate(evaluation(model), vectors_of=vectors_of)
    [part] = metrics["models"]
    found = part["variants"][part["system"]]
    scores, ratings = pair_cosines(model, rated_pairs), rated_pairs.ratings
    assert found["spearman"]["value"] == pytest.approx(100 * scipy.stats.spearmanr(scores, ratings)[0], abs=0.1)
    assert "condition-pooling" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize("system", ["csr", "tri-encoder"])
def test_systems_without_training_are_evaluated(evaluation, encoder, rated_pairs, tmp_path, system):
    [part] = evaluate(evaluation(f"{system}:{encoder}"), vectors_of=vectors_of)["models"]
    found = part["variants"][part["system"]]
    scores = pair_cosines(f"{system}:{encoder}", rated_pairs)
    assert found["spearman"]["value"] == pytest.approx(
        100 * scipy.stats.spearmanr(scores, rated_pairs.ratings)[0], abs=0.1
    )
    with pytest.raises(RequestError, match=f"expected a model folder or one of minilm.*got no {system}:no/where"):
        evaluate(evaluation(f"{system}:no/where"), vectors_of=vectors_of)


def test_each_variant_has_its_isotropy_and_spread(evaluation, models, rated_pairs, encoder):
    variants = evaluate(evaluation(models[0]), vectors_of=vectors_of)["models"][0]["variants"]
    for name, found in variants.items():
        assert 0 < found["isotropy"] < 1, name
        assert sum(found["to_mean"]["histogram"]["counts"]) == len(rated_pairs.distinct)
        assert sum(row["pairs"] for row in found["by_rating"]) == len(rated_pairs)
        assert found["dim"] == (8 if name.startswith("g") else 32)
    for name, subtract in (("f", False), ("f - base", True)):
        system = raycase.load(str(encoder), dtype=torch.float32, prompt="concat-sc", pooling="mean", subtract=subtract)
        vectors = system.embed(*zip(*rated_pairs.distinct, strict=True))
        to_mean = cosines(vectors, vectors.mean(0))
        assert variants[name]["to_mean"]["mean"] == pytest.approx(to_mean.mean(), rel=1e-4)
        assert variants[name]["to_mean"]["std"] == pytest.approx(to_mean.std(), rel=1e-3)


def test_a_template_without_a_base_has_the_figures_of_f_alone(evaluation, encoder):
    own = {"template": "{sentence} in terms of {condition}", "pool": "condition"}
    [part] = evaluate(evaluation(str(encoder), prompt=own), vectors_of=vectors_of)["models"]
    assert list(part["variants"]) == ["f"]
    based = evaluation(str(encoder), prompt=own | {"base_template": "{condition}"})
    assert list(evaluate(based, vectors_of=vectors_of)["models"][0]["variants"]) == ["f", "f - base"]


def test_a_projector_is_applied_to_the_vectors_it_was_fitted_on(evaluation, tmp_path, save_model, rated_pairs):
    folder = save_model(tmp_path / "model", 4, subtract=False)
    [model] = evaluate(evaluation(folder), vectors_of=vectors_of)["models"]
    assert list(model["variants"]) == ["f", "f - base", "g(f)"]
    expected = scipy.stats.spearmanr(pair_cosines(folder, rated_pairs), rated_pairs.ratings)[0]
    assert model["variants"][model["system"]]["spearman"]["value"] == pytest.approx(100 * expected)


# ------------------------------------------------------------------------------------------------------- comparison


def test_several_models_are_compared_with_the_first(evaluation, models):
    metrics = evaluate(evaluation(*models), vectors_of=vectors_of)
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


def test_the_report_is_made_from_its_json_alone(evaluation, models, tmp_path):
    answers = [["a red dress", "a blue dress", "color of the dress", "red", "a | blue"]]
    file = write_csv(tmp_path / "cases.csv", ["sentence1", "sentence2", "condition", "answer1", "answer2"], answers)
    evaluate(evaluation(*models, cases=file), vectors_of=vectors_of)
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


def test_training_data_adds_the_table_of_rare_conditions(evaluation, models, pairs, tmp_path):
    evaluate(evaluation(*models), vectors_of=vectors_of)
    report = tmp_path / "report" / "report.md"
    assert "Left out: no training data was given (`--train`)." in report.read_text(encoding="utf-8")
    header = ["sentence1", "sentence2", "condition", "label"]
    rows = [["a dog", "a cat", "Type of dog ", label] for label in (1, 2)] + [
        ["a dog", "a cat", "number of people", 1]
    ] * 4
    file = write_csv(tmp_path / "train.csv", header, rows)
    metrics = evaluate(evaluation(*models, train=file), vectors_of=vectors_of)
    groups = metrics["conditions"]["training"]["groups"]
    assert [group["conditions"] for group in groups] == [1, 1, 1, 0, 0]
    assert sum(group["pairs"] for group in groups) == metrics["data"]["rows"]
    text = report.read_text(encoding="utf-8")
    assert render(strict((tmp_path / "report" / "metrics.json").read_text(encoding="utf-8"))) == text
    for model in metrics["models"]:
        value = model["by_times"][0]["spearman"]
        assert f"| 0 | 1 | {groups[0]['pairs']} | {groups[0]['rated']} | {value['value']:.2f} [" in text
    assert "| more than 100 | 0 | 0 | 0 | n/a | n/a |" in text
    order = metrics["models"][1]["order"]["rated"]
    assert f"{order['value']:.2f} [{order['low']:.2f}, {order['high']:.2f}] |" in text
    worst = metrics["models"][0]["worst_conditions"][0]
    assert f"| {worst['condition']} | {worst['pairs']} | {worst['distance']:.1f} |" in text


def test_an_earlier_report_is_replaced(evaluation, models, tmp_path):
    evaluate(evaluation(models[0]), vectors_of=vectors_of)
    evaluate(evaluation(models[1]), vectors_of=vectors_of)
    assert (tmp_path / "report" / "report.md").read_text(encoding="utf-8").startswith("# second on pairs.csv")


@pytest.mark.parametrize(("part", "words"), [("train", "was trained on"), ("validation", "had its epoch chosen on")])
def test_the_report_says_what_training_saw(evaluation, save_model, rated_pairs, tmp_path, part, words):
    folder = save_model(tmp_path / "model")
    data = {"train": {"sha256": "other"}, "validation": {"sha256": "other"}} | {
        part: {"sha256": rated_pairs.data_sha256}
    }
    (folder / "metrics.json").write_text(json.dumps({"data": data}))
    evaluate(evaluation(folder), vectors_of=vectors_of)
    assert f"model {words} these very pairs" in (tmp_path / "report" / "report.md").read_text(encoding="utf-8")


def test_the_case_study_is_that_of_the_loaded_folder(evaluation, models, tmp_path):
    first, second, condition, answers = "a red dress", "a blue dress", "color of the dress", ("red", "blue")
    columns = ["sentence1", "sentence2", "condition", "answer1", "answer2"]
    file = write_csv(tmp_path / "cases.csv", columns, [[first, second, condition, *answers]])
    [row] = evaluate(evaluation(models[0], cases=file), vectors_of=vectors_of)["models"][0]["cases"]

    def cosine(system, a, b, under):
        a, b = system.embed([a, b], under)
        return pytest.approx(float(cosines(a, b)), abs=1e-5)

    after = raycase.load(str(models[0]), dtype=torch.float32)
    before = case.Case(config=replace(after.config, projector=None, folder=None), encoder=after.encoder)
    plain = {side: after.projector(torch.from_numpy(after.embed([side], None))) for side in (first, second)}
    projected = torch.cosine_similarity(*plain.values()).item()
    assert row["cosines"] == {
        "unconditional": {"before": cosine(after, first, second, None), "after": pytest.approx(projected, abs=1e-5)},
        "sentences": {name: cosine(s, first, second, condition) for name, s in (("before", before), ("after", after))},
        "answer1": {name: cosine(s, first, "red", condition) for name, s in (("before", before), ("after", after))},
        "answer2": {name: cosine(s, second, "blue", condition) for name, s in (("before", before), ("after", after))},
    }


def test_the_case_study_has_what_is_there(evaluation, models, encoder, tmp_path, save_model):
    """No projector: one number; one of two views: plain vectors, of one, do not fit it. Answers are counted."""
    columns = ["sentence1", "sentence2", "condition", "answer1", "answer2"]
    answers = [["a red dress", "a blue dress", "color of the dress", "red", "blue"], ["a dog", "two", "type", "a", "b"]]
    file = write_csv(tmp_path / "cases.csv", columns, answers)
    options = {"prompt": "concat-sc", "pooling": "mean", "cases": file}
    metrics = evaluate(evaluation(encoder, **options), vectors_of=vectors_of)
    assert all(c["after"] is None for case in metrics["models"][0]["cases"] for c in case["cosines"].values())
    assert "The projector brings" not in render(metrics)
    config = resolve(str(encoder), prompt="concat-sc+concat-cs", pooling="mean")
    shape = ProjectorConfig(input_dim=64, output_dim=8)
    case.save(tmp_path / "views", replace(config, projector=shape), Projector(shape))
    views, one = evaluate(evaluation(tmp_path / "views", models[0], cases=file), vectors_of=vectors_of)["models"]
    assert [c["cosines"]["unconditional"]["after"] is None for m in (views, one) for c in m["cases"]] == [
        *(True, True),
        *(False, False),
    ]
    nearer = sum(
        c["cosines"][name]["after"] > c["cosines"][name]["before"] for c in one["cases"] for name in columns[3:]
    )
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert f"The projector brings {nearer} of 4 answers nearer to their sentence." in text


def test_isotropy_stands_before_and_after_each_step(evaluation, models, encoder, tmp_path, save_model):
    folder = save_model(tmp_path / "model", 4, subtract=False)
    metrics = evaluate(evaluation(models[0], folder), vectors_of=vectors_of)
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    wanted = {"first": ("f - base", "g(f - base)"), "model": ("f", "g(f)")}
    for model in metrics["models"]:
        variants = model["variants"]
        for before, after, dims in (("f", "f - base", "32"), (*wanted[model["name"]], "32 → 8")):
            figures = " → ".join(f"{variants[name]['isotropy']:.4f}" for name in (before, after))
            means = " → ".join(
                f"{variants[name]['to_mean']['mean']:.3f} ± {variants[name]['to_mean']['std']:.3f}"
                for name in (before, after)
            )
            assert f"| {model['name']} | `{before}` → `{after}` | {dims} | {figures} | {means} |" in text
    for variant, iso, mean, std in (("f", 0.9297, 0.347, 0.088), ("f - base", 0.9461, 0.254, 0.095)):  # SimCSE-base
        paper = {"isotropy": iso, "mean": mean, "std": std}
        metrics["models"][0]["variants"][variant]["published"] = paper
    line = "| first | `f` → `f - base`, in the paper |  | 0.9297 → 0.9461 | 0.347 ± 0.088 → 0.254 ± 0.095 |"
    assert line in render(metrics)
    metrics = evaluate(evaluation(f"csr:{encoder}"), vectors_of=vectors_of)
    assert "before → after a step" not in render(metrics), "of one kind of vectors there is no step"


# ---------------------------------------------------------------------------------------------------- the training


HISTORY = [
    {"epoch": 1, "loss": 0.5, "spearman": 20.25, "seconds": 1.0, "mib": 9},
    {"epoch": 2, "loss": 0.25, "spearman": 40.5, "seconds": 1.0, "mib": 9},
    {"epoch": 3, "loss": 0.125, "spearman": 30.75, "seconds": 1.0, "mib": 9},
]
FIT = {"best_epoch": 2, "history": HISTORY, "zero_shot": {"spearman": 10.125, "pearson": 9.0}}


def test_the_training_curves_are_those_of_the_folders(evaluation, save_model, models, tmp_path):
    fitted = save_model(tmp_path / "fitted", 2)
    (fitted / "metrics.json").write_text(json.dumps(FIT))
    metrics = evaluate(evaluation(models[0], fitted), vectors_of=vectors_of)
    assert [model["training"] for model in metrics["models"]] == [
        None,
        {
            "best_epoch": 2,
            "before": 10.125,
            "history": [{name: line[name] for name in ("epoch", "loss", "spearman")} for line in HISTORY],
        },
    ]
    text = (tmp_path / "report" / "report.md").read_text(encoding="utf-8")
    assert "| fitted | 3 | 2 | 10.12 | 20.25 | 40.50 | 30.75 | 0.5000 | 0.2500 |" in text
    assert "(training.png)" in text and (tmp_path / "report" / "training.png").read_bytes().startswith(b"\x89PNG")
    upper, lower = training_curves(metrics["models"][1:]).axes
    curve, best = upper.lines
    assert curve.get_xydata().tolist() == [[0, 10.125], [1, 20.25], [2, 40.5], [3, 30.75]]
    assert best.get_xydata().tolist() == [[2, 40.5]]
    assert lower.lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.25], [3, 0.125]]


def test_without_what_training_recorded_there_is_no_curve():
    assert training_curve(FIT)["before"] == 10.125
    assert training_curve({name: FIT[name] for name in ("best_epoch", "history")})["before"] is None
    assert training_curve(None) is None and training_curve([]) is None and training_curve({}) is None
    for wrong in (
        {"best_epoch": 0},
        {"best_epoch": 4},
        {"history": []},
        {"history": [{"epoch": 1, "loss": 0.5}]},  # a fit whose figures are others, as on a graph
        {"history": [HISTORY[0] | {"loss": float("nan")}], "best_epoch": 1},
        {"history": "x"},
        {"zero_shot": 3},
    ):
        assert training_curve(FIT | wrong) is None, wrong


# ----------------------------------------------------------------------------------------------------- the ablation


def test_the_ablation_is_in_the_report_once_an_encoder(evaluation, models, tmp_path):
    metrics = evaluate(evaluation(*models, ablate=True), vectors_of=vectors_of)
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
def test_wrong_data_is_refused(evaluation, models, tmp_path, wrong):
    rows, said = WRONG[wrong]
    with pytest.raises(RequestError, match=said):
        evaluate(evaluation(models[0], data=write_csv(tmp_path / "bad.csv", rows[0], rows[1:])), vectors_of=vectors_of)


def test_wrong_models_are_refused_and_the_earlier_report_stays(evaluation, models, tmp_path, save_model):
    evaluate(evaluation(models[0]), vectors_of=vectors_of)
    before = {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()}
    other = save_model(tmp_path / "other")
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
            evaluate(evaluation(*names), vectors_of=vectors_of)
    with pytest.raises(RequestError, match=r"--prompt: .* was trained with concat-sc"):
        evaluate(evaluation(models[0], prompt="cond"), vectors_of=vectors_of)
    with pytest.raises(RequestError, match="--resamples"):
        evaluate(evaluation(models[0], resamples=1), vectors_of=vectors_of)
    assert {f.name: f.read_bytes() for f in (tmp_path / "report").iterdir()} == before


def test_wrong_cases_are_refused(evaluation, models, tmp_path):
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
            evaluate(evaluation(models[0], cases=file), vectors_of=vectors_of)
    assert not (tmp_path / "report").exists()
