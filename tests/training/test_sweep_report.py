"""The report of a sweep: its tables beside the paper's, and its plots."""

from dataclasses import replace

from sweeps import trial

from raycase.training.projector_fit import Recipe
from raycase.training.sweep_cells import random_cells
from raycase.training.sweep_plots import sweep_plots
from raycase.training.sweep_projector import ProjectorCell, figure4, table7
from raycase.training.sweep_report import summary

BASE = ProjectorCell(recipe=Recipe(), prompt="cond")
SPACE = {**ProjectorCell.space, "prompt": ["cond", "sent"]}
MADE = {"command": "python jobs/tune.py", "commit": "abc1234", "date": "2026-01-01", "machine": "a machine"}


def test_the_summary_has_the_papers_layout_beside_its_figures():
    cells = table7(BASE)
    trials = [trial(c, 40.0 + i, s) for i, c in enumerate(cells) for s in range(2)]
    text = summary(trials, MADE, cells=ProjectorCell, grid="table7")
    assert "| Linear (384 → 512) | 40.00 ± 0.00* | 41.00 ± 0.00* | 72.90 | 73.55 |" in text
    assert "| One layer (384 → 512), LeakyReLU | 56.00 ± 0.00* | 57.00 ± 0.00* | 74.94 | 71.16 |" in text
    assert text.count("| One layer") == 4 and text.count("| Two layers") == 4
    assert "abc1234" in text and "python jobs/tune.py" in text


def test_the_summary_names_what_failed():
    good, bad = table7(BASE)[:2]
    text = summary(
        [trial(good, 10.0), trial(bad, None, stopped="the loss is nan")], MADE, cells=ProjectorCell, grid=None
    )
    assert "## Failed" in text and "the loss is nan" in text


def test_plots_are_drawn_for_dimensions_and_for_choices():
    dims = [trial(c, 40.0 + i, s) for i, c in enumerate(figure4(BASE)) for s in range(2)]
    assert [*sweep_plots(dims)] == ["dimensions.png"]
    found = [trial(c, 40.0 + i) for i, c in enumerate(random_cells(BASE, SPACE, 30, seed=0))]
    drawn = sweep_plots(found)
    assert [*drawn] == ["choices.png"] and drawn["choices.png"].startswith(b"\x89PNG")
    assert sweep_plots([replace(found[0], figures={"spearman": None})]) == {}
