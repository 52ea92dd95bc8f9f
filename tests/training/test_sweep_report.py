"""The report of a sweep: its tables and its plot."""

from dataclasses import replace

from sweeps import trial

from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.sweep_cells import Cell, grid_of
from raycase.training.sweep_plots import choices_plot
from raycase.training.sweep_report import summary

BASE = Cell(job=TRAIN_JOBS["case"](train="a", validation="b", output="c", prompt="cond"))
MADE = {"command": "python jobs/tune.py", "commit": "abc1234", "date": "2026-01-01", "machine": "a machine"}


def test_the_summary_has_a_named_grid_in_its_order():
    cells = grid_of("table7", BASE)
    trials = [trial(c, 40.0 + i, s) for i, c in enumerate(cells) for s in range(2)]
    text = summary(trials, MADE, base=BASE, grid="table7")
    lines = text.splitlines()
    start = lines.index("| | Spearman | seeds |") + 2
    assert lines[start] == "| dim 512, layers 0, dropout 0.2 | 40.00 ± 0.00 | 2 |"
    assert [line.split(" | ")[0] for line in lines[start : start + 18]] == [f"| {c.name}" for c in cells]
    assert "| 57.00 ± 0.00 | 2 | 2, 2 | dim 512, layers 1, hidden 1024, activation leaky_relu, dropout 0.0 |" in text
    assert "abc1234" in text and "python jobs/tune.py" in text


def test_the_summary_names_what_failed():
    good, bad = grid_of("table7", BASE)[:2]
    text = summary([trial(good, 10.0), trial(bad, None, stopped="the loss is nan")], MADE, base=BASE, grid=None)
    assert "## Failed" in text and "the loss is nan" in text


def test_the_plot_shows_what_varies():
    for grid in ("figure4", "table7"):
        found = [trial(c, 40.0 + i) for i, c in enumerate(grid_of(grid, BASE))]
        assert choices_plot(found, "Spearman").startswith(b"\x89PNG")
    assert choices_plot([replace(found[0], metrics={"spearman": None})], "Spearman") is None
