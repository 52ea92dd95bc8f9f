"""The reports of benchmarks: CASE's tables and plots, figures by condition; isotropy (eq. 5, appendix C) by hand."""

import json
import math
from argparse import Namespace

import numpy as np
import pytest
from helpers import write_csv

from benchmarks.quality import conditions
from benchmarks.quality.case_tables import cosines_to_mean, isotropy, main, render

HISTORY = [
    {"epoch": 1, "loss": 0.5, "spearman": 20.25, "seconds": 1.0, "mib": 9},
    {"epoch": 2, "loss": 0.25, "spearman": 40.5, "seconds": 1.0, "mib": 9},
    {"epoch": 3, "loss": 0.125, "spearman": 30.75, "seconds": 1.0, "mib": 9},
]
FIT = {"best_epoch": 2, "history": HISTORY, "zero_shot": {"spearman": 10.125, "pearson": 9.0}}


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
    assert pictures == ["cosines_to_mean.png", "training.png"]
    assert all((tmp_path / "report" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)
    for model, after in zip(metrics["models"], ("g(f - base)", "g(f)"), strict=True):
        found = model["variants"][after]
        assert sum(found["to_mean"]["histogram"]["counts"]) == len(rated_pairs.distinct)
        pair = [model["variants"][name] for name in (model["own"], after)]
        isotropies = " → ".join(f"{v['isotropy']:.4f}" for v in pair)
        assert f"| {model['name']} | `{model['own']}` → `{after}` | 32 → 8 | {isotropies} |" in text
    assert "| fitted | 3 | 2 | 10.12 | 20.25 | 40.50 | 30.75 | 0.5000 | 0.2500 |" in text
    assert {line.replace("\\|", "").count("|") for line in text.splitlines() if "a \\| blue" in line} == {8}
    [rows] = [table["rows"] for table in metrics["ablation"]]
    spearman = {row["setting"]: row["spearman"] for row in rows}
    assert spearman["CONC(s + c)"] == pytest.approx(metrics["models"][0]["variants"]["f"]["spearman"])
    assert f"**{max(spearman.values()):.2f}**" in text


def isotropy_by_loops(vectors, directions, seed):
    sums = []
    for direction in np.random.default_rng(seed).standard_normal((directions, len(vectors[0]))):
        u = direction / math.sqrt(sum(x * x for x in direction))
        total = 0.0
        for vector in vectors:
            length = math.sqrt(sum(float(x) ** 2 for x in vector))
            total += math.exp(sum(float(x) / length * y for x, y in zip(vector, u, strict=True)))
        sums.append(total)
    return min(sums) / max(sums)


@pytest.mark.parametrize("seed", [0, 3])
def test_isotropy_is_eq_5(seed):
    vectors = [[3.0, 0.0], [0.0, 0.5], [1.0, 1.0]]
    found = isotropy(np.array(vectors), directions=40, seed=seed)
    assert found == pytest.approx(isotropy_by_loops(vectors, 40, seed), rel=1e-9)
    assert found != pytest.approx(isotropy(np.array(vectors), directions=40, seed=seed + 1), rel=1e-9)


def test_cosines_to_the_mean_by_hand():
    right_angle = np.array([[1.0, 0.0], [0.0, 1.0]])
    np.testing.assert_allclose(cosines_to_mean(right_angle), [math.sqrt(0.5)] * 2)
    # The mean is not of unit vectors: (2, 0) and (0, 1) have (1, 0.5).
    np.testing.assert_allclose(
        cosines_to_mean(np.array([[2, 0], [0, 1]], dtype=np.float32)), [2 / math.sqrt(5), 1 / math.sqrt(5)]
    )
    np.testing.assert_allclose(cosines_to_mean(np.array([[1.0, 0.0], [-1.0, 0.0]])), [0, 0])


def test_conditions_are_counted_in_training_and_put_in_order(models, pairs, rated_pairs, tmp_path, capsys):
    header = ["sentence1", "sentence2", "condition", "label"]
    rows = [["a dog", "a cat", "Type of dog ", label] for label in (1, 2)]
    rows += [["a dog", "a cat", "number of people", 1]] * 4
    train = write_csv(tmp_path / "train.csv", header, rows)
    words = {"data": pairs, "output": str(tmp_path / "report"), "resamples": 100, "compute": "float32"}
    conditions.main(Namespace(model=list(map(str, models)), train=train, **words))
    printed = capsys.readouterr().out
    counted = [rated_pairs.conditions.count(name) for name in ("color of the dress", "type of dog", "number of people")]
    for model in json.loads(printed.splitlines()[-1])["models"].values():
        assert [line["pairs"] for line in model["by_times"]] == [*counted, 0, 0]
        value, order = model["by_times"][0]["spearman"], model["order"]["rated"]
        assert f"| 0 to 0 | {counted[0]} | {value['value']:.2f} [" in printed
        assert "| 101 to inf | 0 | n/a | n/a |" in printed
        assert f"without label -1 {order['value']:.2f} [{order['low']:.2f}, {order['high']:.2f}]" in printed
