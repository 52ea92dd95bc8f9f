"""The trials of a sweep: the table that is its checkpoint, and how cells are ranked."""

import math

import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from sweeps import trial

from raycase.data.storage import locate
from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.sweep_cells import Cell, grid_of
from raycase.training.sweep_trials import Table, best_cell, cell_scores, finalists

BASE = Cell(job=TRAIN_JOBS["case"](train="a", validation="b", output="c", prompt="cond"))


@pytest.fixture
def table(tmp_path):
    return Table(root=locate(str(tmp_path)), columns=BASE.columns, metric_names=BASE.metric_names)


def test_a_trial_is_its_best_epoch():
    found = trial(BASE.changed(dim=512), 50.0)
    assert found.metrics == {"spearman": 50, "spearman_rated": 51, "pearson": 49} and found.score == 50
    assert (found.best_epoch, found.epochs, found.seconds, found.settings["dim"]) == (2, 3, 6.0, 512)
    assert trial(BASE, 50.0).settings["dim"] == 384  # as the data decide


def test_the_cell_of_a_trial_is_the_cell():
    choices = {"dropout": None, "activation": "relu", "prompt": "sent", "dim": None, "epochs": 7}
    for changes in ({"epochs": 9}, {"nested": (8,)}):
        base = Cell(job=BASE.job.replaced(**changes))
        cell = base.changed("a name", **choices)
        found = trial(cell, 1.0)
        assert found.cell(base).key == cell.key == found.key and found.cell(base).job == cell.job
        assert found.chosen == choices and found.most_epochs == 7
    head = Cell(job=TRAIN_JOBS["condition-pooling"](train="a", validation="b", output="c"))
    for layers in ("0 2/3", [0.0, 2 / 3]):
        cell = head.changed(layers=layers, gate=False)
        assert cell.job.layers == (0.0, 2 / 3) and trial(cell, 1.0).cell(head).job == cell.job
        assert trial(cell, 1.0).chosen["layers"] == layers


def test_the_table_comes_back_and_is_written_for_people(table, tmp_path):
    cells = grid_of("table7", BASE)[:3]
    trials = [trial(c, 50.0 + i + s, seed=s) for i, c in enumerate(cells) for s in range(2)]
    trials.append(trial(cells[0], None, seed=2, stopped="epoch 1: expected a finite loss, got nan"))
    for t in trials:
        table.put(t)
        table.put(t)  # a trial that is run twice is one trial
    assert sorted(table.read(), key=lambda t: (t.key, t.seed)) == sorted(trials, key=lambda t: (t.key, t.seed))
    table.write()
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [r["spearman"] for r in rows] == [53, 52, 52, 51, 51, 50, None]
    assert pyarrow.csv.read_csv(tmp_path / "trials.csv")["key"].to_pylist() == [r["key"] for r in rows]


def test_cells_are_ranked_by_their_mean_over_the_seeds():
    steady, lucky = grid_of("table7", BASE)[:2]
    trials = [trial(steady, 50.0, 0), trial(steady, 51.0, 1), trial(lucky, 55.0, 0), trial(lucky, 40.0, 1)]
    first, second = cell_scores(trials)
    assert (first.first.key, first.mean) == (steady.key, 50.5)
    assert math.isclose(first.deviation, 0.5**0.5) and math.isclose(second.deviation, 15 / 2**0.5)
    assert best_cell(trials).first.key == steady.key


def test_a_single_run_does_not_beat_a_mean():
    many, once = grid_of("table7", BASE)[:2]
    trials = [trial(many, 50.0, 0), trial(many, 50.0, 1), trial(once, 60.0, 0)]
    assert best_cell(trials).first.key == many.key


def test_a_failed_trial_counts_as_the_worst():
    good, bad = grid_of("table7", BASE)[:2]
    trials = [trial(good, -20.0), trial(bad, None, stopped="no")]
    assert best_cell(trials).first.key == good.key


def test_finalists_are_the_best_cells_with_the_seeds_they_lack():
    a, b, c = grid_of("figure4", BASE)[:3]
    trials = [trial(cell, s, 5, phase="search") for cell, s in ((a, 10.0), (b, 30.0), (c, 20.0))]
    assert finalists(trials, 2, range(5, 7)) == [(b.key, 6), (c.key, 6)]
    trials.append(trial(c, 1.0, 6, phase="finals"))
    assert finalists(trials, 2, range(5, 7)) == [(b.key, 6)]
