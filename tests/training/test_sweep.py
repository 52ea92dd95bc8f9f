"""A sweep without Ray: its cells, the table that is its checkpoint, and the summary."""

import json
import math
from dataclasses import replace

import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from raycase.data.storage import locate
from raycase.errors import RequestError
from raycase.evaluation.published import TABLE7
from raycase.systems.projector import Activation
from raycase.training.projector_fit import Recipe
from raycase.training.sweep import (
    SPACE,
    Cell,
    Table,
    best_cell,
    cell_scores,
    figure4,
    finalists,
    grid_of,
    make_trial,
    random_cells,
    table7,
)
from raycase.training.sweep_plots import sweep_plots
from raycase.training.sweep_report import summary

MADE = {"command": "python jobs/tune.py", "commit": "abc1234", "date": "2026-01-01", "machine": "a machine"}


def history(*scores):
    return [
        {"epoch": i, "loss": 0.1, "spearman": s, "spearman_rated": s + 1, "pearson": s - 1, "seconds": 2.0}
        for i, s in enumerate(scores, 1)
    ]


def trial(cell, score, seed=0, phase="grid", stopped="patience"):
    lines = history(score - 1, score, score - 2) if score is not None else []
    return make_trial(cell, seed=seed, phase=phase, input_dim=384, history=lines, stopped=stopped)


@pytest.fixture
def table(tmp_path):
    return Table(root=locate(str(tmp_path)))


def test_table_7_has_its_18_cells():
    cells = table7(Recipe(), "cond")
    assert len({c.key for c in cells}) == 18
    shapes = [(c.recipe.layers, c.recipe.activation, c.recipe.dropout) for c in cells]
    assert shapes[:2] == [(0, Activation.LEAKY_RELU, 0.2), (0, Activation.LEAKY_RELU, 0.0)]
    assert {s for s in shapes if s[0]} == {(n, a, d) for n in (1, 2) for a in Activation for d in (0.15, 0.0)}
    assert {(c.recipe.dim, c.recipe.hidden) for c in cells} == {(512, 1024)}
    assert {(s[0], s[1] if s[0] else None) for s in shapes} == set(TABLE7)


def test_figure_4_goes_from_50_to_1000_dimensions():
    assert [c.recipe.dim for c in figure4(Recipe(), "cond")] == [50, *range(100, 1001, 100)]


def test_cells_that_fit_the_same_g_have_the_same_key():
    def key(**choices):
        return Cell(recipe=Recipe(**choices), prompt="cond").key

    assert key(layers=1, hidden=256) == key(layers=1, hidden=2048)
    assert key(layers=2, hidden=256) != key(layers=2, hidden=2048)
    assert key(layers=0, activation=Activation.RELU) == key(layers=0, activation=Activation.GELU)
    assert key(dropout=0.1) != key(dropout=0.2)
    assert Cell(recipe=Recipe(), prompt="cond").key != Cell(recipe=Recipe(), prompt="sent").key


def test_a_grid_of_a_file_is_the_product_of_its_lists(tmp_path):
    file = tmp_path / "grid.json"
    file.write_text(
        json.dumps({"dropout": [0.1, 0.3], "activation": ["relu", "gelu"], "prompt": ["cond", "cond+sent"]})
    )
    cells = grid_of(str(file), Recipe(epochs=7), "concat-sc")
    assert len({c.key for c in cells}) == 8
    assert {(c.recipe.dropout, c.recipe.activation, c.prompt) for c in cells} == {
        (d, a, p) for d in (0.1, 0.3) for a in ("relu", "gelu") for p in ("cond", "cond+sent")
    }
    assert {c.recipe.epochs for c in cells} == {7}
    file.write_text("{}")
    assert [c.recipe for c in grid_of(str(file), Recipe(), "cond")] == [Recipe()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "an object of lists"),
        ('{"dropout": 0.1}', "an object of lists"),
        ('{"dropout": []}', "an object of lists"),
        ('{"colour": [1]}', "got 'colour'"),
        ('{"dropout": [1.5]}', "--dropout"),
        ('{"dropout": ["much"]}', "--grid"),
        ('{"activation": ["tanh"]}', "--grid"),
        ("{", "expected JSON"),
    ],
)
def test_a_grid_that_is_none_is_refused(tmp_path, text, said):
    file = tmp_path / "grid.json"
    file.write_text(text)
    with pytest.raises(RequestError, match=said):
        grid_of(str(file), Recipe(), "cond")


def test_a_grid_that_is_not_there_is_refused():
    with pytest.raises(RequestError, match="table7, figure4 or a JSON file"):
        grid_of("table8", Recipe(), "cond")


def test_a_longer_random_search_begins_with_the_shorter_one():
    short, long = (random_cells(Recipe(), ["cond", "sent"], n, seed=3) for n in (20, 40))
    assert long[:20] == short
    assert len({c.key for c in long}) == 40
    assert random_cells(Recipe(), ["cond"], 20, seed=4) != random_cells(Recipe(), ["cond"], 20, seed=3)
    for name in ("activation", "layers", "dim", "rating_map", "hidden"):
        assert {getattr(c.recipe, name) for c in long} == set(SPACE[name])
    assert all(0 <= c.recipe.dropout <= 0.5 and 1e-4 <= c.recipe.learning_rate <= 5e-3 for c in long)


def test_a_trial_is_its_best_epoch():
    cell = Cell(recipe=Recipe(dim=512), prompt="cond")
    found = trial(cell, 50.0)
    assert (found.spearman, found.spearman_rated, found.pearson) == (50, 51, 49)
    assert (found.best_epoch, found.epochs, found.seconds, found.above_encoder) == (2, 3, 6.0, True)
    assert not trial(Cell(recipe=Recipe(), prompt="cond"), 50.0).above_encoder


def test_the_cell_of_a_trial_is_the_cell():
    for cell in random_cells(Recipe(epochs=9), ["cond", "cond+sent"], 10, seed=0):
        assert trial(cell, 1.0).cell(Recipe(epochs=9)) == cell


def test_the_table_comes_back_and_is_written_for_people(table, tmp_path):
    cells = table7(Recipe(), "cond")[:3]
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
    steady, lucky = table7(Recipe(), "cond")[:2]
    trials = [trial(steady, 50.0, 0), trial(steady, 51.0, 1), trial(lucky, 55.0, 0), trial(lucky, 40.0, 1)]
    first, second = cell_scores(trials)
    assert (first.first.key, first.mean) == (steady.key, 50.5)
    assert math.isclose(first.deviation, 0.5**0.5) and math.isclose(second.deviation, 15 / 2**0.5)
    assert best_cell(trials).first.key == steady.key


def test_a_single_run_does_not_beat_a_mean():
    many, once = table7(Recipe(), "cond")[:2]
    trials = [trial(many, 50.0, 0), trial(many, 50.0, 1), trial(once, 60.0, 0)]
    assert best_cell(trials).first.key == many.key


def test_a_failed_trial_counts_as_the_worst():
    good, bad = table7(Recipe(), "cond")[:2]
    trials = [trial(good, -20.0), trial(bad, None, stopped="no")]
    assert best_cell(trials).first.key == good.key


def test_finalists_are_the_best_cells_with_the_seeds_they_lack():
    a, b, c = random_cells(Recipe(), ["cond"], 3, seed=0)
    trials = [trial(cell, s, 5, phase="search") for cell, s in ((a, 10.0), (b, 30.0), (c, 20.0))]
    assert finalists(trials, 2, range(5, 7)) == [(b.key, 6), (c.key, 6)]
    trials.append(trial(c, 1.0, 6, phase="finals"))
    assert finalists(trials, 2, range(5, 7)) == [(b.key, 6)]


def test_the_summary_has_the_papers_layout_beside_its_figures():
    cells = table7(Recipe(), "cond")
    trials = [trial(c, 40.0 + i, s) for i, c in enumerate(cells) for s in range(2)]
    text = summary(trials, MADE, grid="table7")
    assert "| Linear (384 → 512) | 40.00 ± 0.00* | 41.00 ± 0.00* | 72.90 | 73.55 |" in text
    assert "| One layer (384 → 512), LeakyReLU | 56.00 ± 0.00* | 57.00 ± 0.00* | 74.94 | 71.16 |" in text
    assert text.count("| One layer") == 4 and text.count("| Two layers") == 4
    assert "abc1234" in text and "python jobs/tune.py" in text


def test_the_summary_names_what_failed():
    good, bad = table7(Recipe(), "cond")[:2]
    text = summary([trial(good, 10.0), trial(bad, None, stopped="the loss is nan")], MADE, grid=None)
    assert "## Failed" in text and "the loss is nan" in text


def test_plots_are_drawn_for_dimensions_and_for_choices():
    dims = [trial(c, 40.0 + i, s) for i, c in enumerate(figure4(Recipe(), "cond")) for s in range(2)]
    assert [*sweep_plots(dims)] == ["dimensions.png"]
    found = [trial(c, 40.0 + i) for i, c in enumerate(random_cells(Recipe(), ["cond", "sent"], 30, seed=0))]
    drawn = sweep_plots(found)
    assert [*drawn] == ["choices.png"] and drawn["choices.png"].startswith(b"\x89PNG")
    assert sweep_plots([replace(found[0], spearman=None)]) == {}
