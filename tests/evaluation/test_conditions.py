"""The report of a benchmark: figures by condition."""

import json
from argparse import Namespace

from conditions import main, render
from helpers import write_csv


def test_the_report_has_what_was_measured(models, pairs, tmp_path):
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
