"""Figures by condition, each against a case worked by hand."""

import json
from argparse import Namespace

import numpy as np
from conditions import (
    comparisons,
    condition_data,
    condition_figures,
    main,
    render,
    right_order,
)
from helpers import write_csv

from raycase.io.rated import RatedPairs

BOOTSTRAP = {"resamples": 100, "seed": 0}


def rated(*rows):
    """Rated pairs from (first sentence, second sentence, condition, rating)."""
    first, second, conditions, ratings = zip(*rows, strict=True)
    return RatedPairs(
        uri="folder/train.csv",
        sentences1=list(first),
        sentences2=list(second),
        conditions=list(conditions),
        ratings=np.array(ratings, dtype=np.float32),
    )


def under(conditions, ratings):
    """Pairs of sentences that are all different, under these conditions."""
    return rated(*((f"a{i}", f"b{i}", c, r) for i, (c, r) in enumerate(zip(conditions, ratings, strict=True))))


def test_the_order_of_two_conditions():
    pairs = rated(
        ("a", "b", "color", 1),
        ("b", "a", "size", 4),  # the same sentences: right
        ("c", "d", "color", 5),
        ("c", "d", "size", 2),  # a tie of the scores
        ("e", "f", "color", 3),
        ("e", "f", "size", 3),  # a tie of the ratings is left out
        ("g", "h", "color", -1),
        ("g", "h", "size", 1),  # wrong, and only with label -1
        ("i", "j", "color", 1),
        ("i", "j", "Color ", 5),  # one condition is not in two orders
        ("k", "l", "color", 1),
    )
    scores = np.array([0.2, 0.3, 0.5, 0.5, 0, 1, 0.9, 0.8, 1, 0, 0])
    found = comparisons(pairs)
    assert found["all"].tolist() == [[1, 0], [2, 3], [7, 6]]
    assert found["rated"].tolist() == [[1, 0], [2, 3]]
    assert right_order(scores, found["all"]).tolist() == [1, 0.5, 0]
    order = condition_figures(scores, pairs, None, **BOOTSTRAP)["order"]
    assert [order[name]["value"] for name in ("all", "rated")] == [50, 75]
    assert 0 <= order["all"]["low"] < 50 < order["all"]["high"] <= 100
    assert condition_data(pairs, None)["order_pairs"] == {"all": 3, "rated": 2}


def test_the_report_has_what_was_measured(models, pairs, tmp_path, capsys):
    header = ["sentence1", "sentence2", "condition", "label"]
    rows = [["a dog", "a cat", "Type of dog ", label] for label in (1, 2)]
    rows += [["a dog", "a cat", "number of people", 1]] * 4
    train = write_csv(tmp_path / "train.csv", header, rows)
    words = {"data": pairs, "output": str(tmp_path / "report"), "resamples": 100, "compute": "float32"}
    main(Namespace(model=list(map(str, models)), train=train, **words))
    metrics = json.loads((tmp_path / "report" / "metrics.json").read_text())
    text = (tmp_path / "report" / "report.md").read_text()
    assert render(metrics) == text
    groups = metrics["conditions"]["training"]["groups"]
    assert [group["conditions"] for group in groups] == [1, 1, 1, 0, 0]
    for model in metrics["models"]:
        value = model["by_times"][0]["spearman"]
        assert f"| 0 | 1 | {groups[0]['pairs']} | {groups[0]['rated']} | {value['value']:.2f} [" in text
    assert "| more than 100 | 0 | 0 | 0 | n/a | n/a |" in text
    order = metrics["models"][1]["order"]["rated"]
    assert f"{order['value']:.2f} [{order['low']:.2f}, {order['high']:.2f}] |" in text
    worst = metrics["models"][0]["worst_conditions"][0]
    assert f"| {worst['condition']} | {worst['pairs']} | {worst['distance']:.1f} |" in text
