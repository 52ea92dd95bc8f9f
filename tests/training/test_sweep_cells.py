"""The cells of a sweep: grids that have a name or a file, the space of a search, and what both refuse."""

import json

import pytest
import small

from raycase.data.storage import fingerprint
from raycase.errors import RequestError
from raycase.systems.projector import Activation, DropoutAt
from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.condition_recipe import HeadRecipe
from raycase.training.sweep_cells import BUILT_IN, SAMPLERS, Cell, grid_of, most_epochs, space_of
from raycase.training.sweep_job import TuneFlags


def base(prompt="cond", system="case", **flags):
    flags |= {"prompt": prompt} if system == "case" else {}
    return Cell(job=TRAIN_JOBS[system](train="a", validation="b", output="c", **flags))


def test_table_7_has_its_18_cells():
    cells = grid_of("table7", base())
    assert len({c.key for c in cells}) == len(cells) == 18
    shapes = [(c.job.layers, c.job.activation, c.job.dropout) for c in cells]
    assert shapes[:2] == [(0, Activation.LEAKY_RELU, 0.2), (0, Activation.LEAKY_RELU, 0.0)]
    assert {s for s in shapes if s[0]} == {(n, a, d) for n in (1, 2) for a in Activation for d in (0.15, 0.0)}
    assert {(c.job.dim, c.job.hidden) for c in cells} == {(512, 1024)}
    assert [c.job.dim for c in grid_of("figure4", base())] == [50, *range(100, 1001, 100)]


def test_the_ablation_differs_from_the_base_in_one_choice_at_a_time():
    cells = grid_of("ablation", base(system="condition-pooling"))
    assert len(cells) == 10 and cells[0].job.recipe == HeadRecipe()
    assert [c.name for c in cells[:3]] == ["as the flags", "heads 4, head dim 128", "heads 1"]
    assert [c.data_key for c in cells[3:7]] == ["2/3 1", "1", "0 1/3 2/3 1", "2/3 1"]
    assert cells[5].job.layers == (0.0, 1 / 3, 2 / 3, 1.0)


def test_the_papers_grids_of_what_is_fine_tuned(tmp_path):
    encoder = small.save_bert(tmp_path / "encoder")
    cells = grid_of("table4", base(system="mixsp", model=encoder))
    assert len(cells) == 10 and {c.job.ranges for c in cells} == {(4.0,), (1.0, 2.0, 3.0, 4.0), (3.0,), (2.0,)}
    for system in ("dualcse", "simcse"):
        found = {(c.job.batch_size, c.job.learning_rate) for c in grid_of("table7", base(system=system, model=encoder))}
        assert found == {(size, rate) for size in (16, 32, 64) for rate in (1e-5, 3e-5, 5e-5)}


def test_cells_that_fit_the_same_g_have_the_same_key():
    def key(**choices):
        return base(**choices).key

    assert key(layers=1, hidden=256) == key(layers=1, hidden=2048)
    assert key(layers=2, hidden=256) != key(layers=2, hidden=2048)
    assert key(layers=0, activation=Activation.RELU) == key(layers=0, activation=Activation.GELU)
    assert key(dropout=0.1) != key(dropout=0.2)
    assert key() == key(dropout=0.15) != key(dropout_at=DropoutAt.BOTH)
    assert key(dropout=0.0) == key(dropout=0.0, dropout_at=DropoutAt.BOTH)
    assert base().key != base("sent").key


def test_cells_of_heads_differ_by_all_that_a_fit_on_the_frozen_encoder_takes():
    changes = {"nested": (8,), "warmup": 0.2, "patience": 2, "temperature": 3.0}
    keys = {base(system="condition-pooling", **{name: value}).key for name, value in changes.items()}
    assert len(keys | {base(system="condition-pooling").key}) == 5
    assert base(system="condition-pooling", teachers=2).key == base(system="condition-pooling").key


THEN = {"dropout": 0.15, "dropout_at": DropoutAt.INPUT, "bias": True}  # what has other defaults since


def test_keys_are_those_of_version_0_1_0():
    assert base(**THEN).key == "4c721f2679"
    assert base("cond+sent", layers=2, dim=64, **THEN).key == "1714e6231e"
    assert base(nested=(8,), **THEN).key != "4c721f2679" != base().key


KNOWN = {  # system: the key of a cell, the fingerprint of a recipe, when there were more settings
    "case": ("0f20441d47", "1c3f8c3e1d"),
    "condition-pooling": ("bfb1424b1b", "ad6d3e1a94"),
    "bi-encoder": ("5566ca6b79", "b19890ebfa"),
    "tri-encoder": ("f1aae8f742", "b19890ebfa"),
    "cross-encoder": ("913916d396", "b19890ebfa"),
    "csr": ("268db7e0b3", "b19890ebfa"),
    "lora": ("159c9ebfd0", "4d0a58d116"),
    "dualcse": ("35424a79c2", "ae8cf3841b"),
    "simcse": ("d464a3386c", "ae8cf3841b"),
    "sentence-encoder": ("403e22eb9f", "887cbacd17"),
    "mixsp": ("54015f99c9", "887cbacd17"),
}


def test_settings_that_were_taken_away_stay_in_keys_and_fingerprints():
    cells = {system: base(system=system) for system in TRAIN_JOBS}
    assert {s: (cell.key, fingerprint(cell.job.recipe.record)[:10]) for s, cell in cells.items()} == KNOWN


def test_a_grid_of_a_file_is_the_product_of_its_lists_and_a_list_of_them_has_the_cells_of_each(tmp_path):
    file = tmp_path / "grid.json"
    grid = {"dropout": [0.1, 0.3], "activation": ["relu", "gelu"], "prompt": ["cond", "cond+sent"]}
    file.write_text(json.dumps(grid))
    cells = grid_of(str(file), base("concat-sc", epochs=7))
    assert len({c.key for c in cells}) == 8
    assert {(c.job.dropout, c.job.activation, c.job.prompt) for c in cells} == {
        (d, a, p) for d in (0.1, 0.3) for a in ("relu", "gelu") for p in ("cond", "cond+sent")
    }
    assert {c.job.epochs for c in cells} == {7}
    file.write_text(json.dumps([{}, {"dim": [8, 9]}, {"dim": [8]}]))
    assert [c.job.dim for c in grid_of(str(file), base())] == [None, 8, 9]
    file.write_text("{}")
    assert [c.job for c in grid_of(str(file), base())] == [base().job]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"layers": [true]}', "a whole number as layers"),
        ("[1]", "an object of lists"),
        ('{"dropout": []}', "an object of lists"),
        ('{"colour": [1]}', "got 'colour'"),
        ('{"nested": [[8]]}', "got 'nested'"),
        ('{"dropout": [1.5]}', "--dropout"),
        ('{"activation": ["tanh"]}', "--grid"),
        ("{", "expected JSON"),
    ],
)
def test_a_grid_that_is_none_is_refused(tmp_path, text, said):
    file = tmp_path / "grid.json"
    file.write_text(text)
    with pytest.raises(RequestError, match=said):
        grid_of(str(file), base())


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ([1], "an object of flags"),
        ({}, "an object of flags"),
        ({"colour": {"choice": [1]}}, "got 'colour'"),
        ({"dropout": {"normal": [0, 1]}}, "one of choice, uniform"),
        ({"dropout": {"choice": []}}, "one of choice, uniform"),
        ({"dropout": {"uniform": [0.3, 0.1]}}, "2 numbers, the first below the second"),
        ({"dropout": {"uniform": ["a", "b"]}}, "2 numbers, the first below the second"),
        ({"hidden": {"uniform": [64, 1024]}}, "of numbers randint or lograndint, for hidden in .*, got uniform"),
        ({"dropout": {"randint": [0, 1]}}, "of numbers uniform or loguniform, for dropout in .*, got randint"),
        ({"layers": {"randint": [1, 2.5]}}, "2 whole numbers"),
        ({"learning_rate": {"loguniform": [0, 1]}}, "numbers above 0"),
        ({"dropout": {"uniform": [0, 1.5]}}, "--dropout"),
        ({"activation": {"choice": ["tanh"]}}, "--space .*space.json: expected values"),
        ({"layers": {"randint": [0, 4]}}, "--layers"),
        ({"prompt": {"uniform": [0, 1]}}, "expected choice, or of numbers"),
        ({"learning_rate": {"choice": [True]}}, "a number as learning_rate"),
    ],
)
def test_a_space_that_is_none_is_refused(tmp_path, space, said):
    file = tmp_path / "space.json"
    file.write_text(json.dumps(space))
    with pytest.raises(RequestError, match=said):
        space_of(str(file), base())


def test_every_system_has_a_space_and_what_it_offers_can_be(tmp_path):
    encoder = small.save_bert(tmp_path / "encoder")
    assert BUILT_IN.keys() == TRAIN_JOBS.keys()
    for system in BUILT_IN:
        flags = {} if system == "case" else {"model": encoder}
        flags |= {"prompt": "concat-cs", "pooling": "mean"} if system == "lora" else {}
        own = Cell(job=TRAIN_JOBS[system](train="a", validation="b", output="c", **flags))
        space = space_of(None, own)
        assert {next(iter(sampler)) for sampler in space.values()} <= SAMPLERS.keys()
        for named in BUILT_IN[system].get("grids", {}):
            assert len(grid_of(named, own)) > 5
    assert space_of(None, base()).keys() == {"activation", "dropout", "layers", "dim"}


def test_a_system_without_a_space_of_its_own_says_what_it_needs(monkeypatch):
    monkeypatch.delitem(BUILT_IN, "case")
    with pytest.raises(RequestError, match="--space: expected a JSON file for case"):
        space_of(None, base())
    with pytest.raises(RequestError, match=r"--grid: expected a file NAME\.json, got table7"):
        grid_of("table7", base())


def test_choices_that_contradict_each_other_are_a_cell_that_fails_with_a_key_of_its_own(tmp_path):
    own = base(system="mixsp", model=small.save_bert(tmp_path / "encoder"))
    wrong = [own.drawn({"select": "none", "similarity_weight": weight}) for weight in (0.1, 0.2)]
    assert len({own.key, *(cell.key for cell in wrong)}) == 3
    with pytest.raises(RequestError, match="--similarity-weight: expected 0 with --select none"):
        next(wrong[0].fit(None, seed=0))


def test_a_search_knows_its_longest_cell():
    assert most_epochs({"dropout": {"uniform": [0, 0.5]}}, base(epochs=7)) == 7
    assert most_epochs({"epochs": {"choice": [3, 90]}}, base()) == 90
    assert most_epochs({"epochs": {"randint": [3, 91]}}, base()) == 90


def test_a_grid_too_large_to_lay_out_is_refused_with_its_size(tmp_path):
    file = tmp_path / "grid.json"
    names = ("dropout", "weight_decay", "learning_rate", "hidden")
    file.write_text(json.dumps({name: [0.5] * 100 for name in names}))
    with pytest.raises(RequestError, match=r"--grid: expected at most 10,000 cells in .*, got 100,000,000"):
        grid_of(str(file), base())


def test_a_sweep_of_a_frozen_encoder_takes_a_cpu_a_trial_and_more_trials():
    frozen, tuned = (TuneFlags().over(base(system=system).job) for system in ("case", "simcse"))
    assert (frozen.count, frozen.resources) == (60, {"cpus_per_trial": 1, "gpus_per_trial": 0})
    assert (tuned.count, tuned.resources) == (20, {"cpus_per_trial": None, "gpus_per_trial": None})
    asked = TuneFlags(trials=7, cpus_per_trial=2, gpus_per_trial=0.5).over(base().job)
    assert (asked.count, asked.resources) == (7, {"cpus_per_trial": 2, "gpus_per_trial": 0.5})
