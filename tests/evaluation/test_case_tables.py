"""CASE's tables: the ablation beside the paper's figures, the case study, the report and its plots."""

import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
import torch
from case_tables import (
    ablation,
    case_study,
    main,
    read_cases,
    render,
    training_curve,
    training_curves,
)
from helpers import write_csv

import raycase
from raycase.evaluation.models import find_models
from raycase.io.vectors import cosines
from raycase.models import case
from raycase.models.registry import resolve


def random_vectors(rated_pairs):
    random = np.random.default_rng(0)
    return lambda config: random.normal(size=(len(rated_pairs.distinct), 4))


def test_the_ablation_stands_beside_the_papers_figures(rated_pairs):
    found = ablation(resolve("simcse-bert-base"), rated_pairs, random_vectors(rated_pairs))
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


HISTORY = [
    {"epoch": 1, "loss": 0.5, "spearman": 20.25, "seconds": 1.0, "mib": 9},
    {"epoch": 2, "loss": 0.25, "spearman": 40.5, "seconds": 1.0, "mib": 9},
    {"epoch": 3, "loss": 0.125, "spearman": 30.75, "seconds": 1.0, "mib": 9},
]
FIT = {"best_epoch": 2, "history": HISTORY, "zero_shot": {"spearman": 10.125, "pearson": 9.0}}


def test_the_case_study_is_that_of_the_loaded_folder(evaluation, models, tmp_path):
    first, second, condition, answers = "a red dress", "a blue dress", "color of the dress", ("red", "blue")
    columns = ["sentence1", "sentence2", "condition", "answer1", "answer2"]
    file = write_csv(tmp_path / "cases.csv", columns, [[first, second, condition, *answers]])
    [model] = find_models(evaluation(models[0]))
    [row] = case_study(model, read_cases(file), "float32")

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


def test_the_report_has_tables_and_plots(models, save_model, pairs, rated_pairs, tmp_path, capsys):
    fitted = save_model(tmp_path / "fitted", 2, subtract=False)
    (fitted / "metrics.json").write_text(json.dumps(FIT))
    answers = [["a red dress", "a blue dress", "color of the dress", "red", "a | blue"]]
    cases = write_csv(tmp_path / "cases.csv", ["sentence1", "sentence2", "condition", "answer1", "answer2"], answers)
    words = {"data": pairs, "output": str(tmp_path / "report"), "resamples": 100, "compute": "float32"}
    main(Namespace(model=[str(models[0]), str(fitted)], cases=cases, ablate=True, **words))
    metrics = json.loads((tmp_path / "report" / "metrics.json").read_text())
    text = (tmp_path / "report" / "report.md").read_text()
    assert render(metrics) == text
    pictures = json.loads(capsys.readouterr().out.splitlines()[-1])["pictures"]
    assert pictures == ["cosine_by_rating.png", "cosines_to_mean.png", "training.png"]
    assert all((tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    for model, after in zip(metrics["models"], ("g(f - base)", "g(f)"), strict=True):
        found = model["variants"][after]
        assert sum(found["to_mean"]["histogram"]["counts"]) == len(rated_pairs.distinct)
        assert sum(row["pairs"] for row in found["by_rating"]) == len(rated_pairs)
        pair = [model["variants"][name] for name in (model["own"], after)]
        isotropies = " → ".join(f"{v['isotropy']:.4f}" for v in pair)
        assert f"| {model['name']} | `{model['own']}` → `{after}` | 32 → 8 | {isotropies} |" in text
    assert "| fitted | 3 | 2 | 10.12 | 20.25 | 40.50 | 30.75 | 0.5000 | 0.2500 |" in text
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if "a \\| blue" in line} == {8}
    [rows] = [table["rows"] for table in metrics["ablation"]]
    spearman = {row["setting"]: row["spearman"] for row in rows}
    assert spearman["CONC(s + c)"] == pytest.approx(metrics["models"][0]["variants"]["f"]["spearman"]["value"])
    assert f"**{max(spearman.values()):.2f}**" in text


def test_the_training_curve_is_that_of_the_folder():
    curve = training_curve(FIT)
    assert (curve["best_epoch"], curve["before"]) == (2, 10.125)
    upper, lower = training_curves([{"name": "fitted", "training": curve}]).axes
    line, best = upper.lines
    assert line.get_xydata().tolist() == [[0, 10.125], [1, 20.25], [2, 40.5], [3, 30.75]]
    assert best.get_xydata().tolist() == [[2, 40.5]]
    assert lower.lines[0].get_xydata().tolist() == [[1, 0.5], [2, 0.25], [3, 0.125]]
    for other in (None, [], {}, {"history": [{"epoch": 1, "loss": 0.5, "mrr": 1.0}], "best_epoch": 1}):
        assert training_curve(other) is None
