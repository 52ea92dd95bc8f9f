"""The cells of a sweep: the paper's grids, grids of a file, the random search."""

import json
from dataclasses import replace

import pytest

from raycase.errors import RequestError
from raycase.evaluation.published import TABLE7
from raycase.systems.projector import Activation, DropoutAt
from raycase.training.projector_fit import Recipe
from raycase.training.sweep_cells import grid_of, random_cells
from raycase.training.sweep_job import identity_of
from raycase.training.sweep_projector import ProjectorCell, TuneJob, figure4, table7

SPACE = {**ProjectorCell.space, "prompt": ["cond", "sent"]}


def base(prompt="cond", **recipe):
    return ProjectorCell(recipe=Recipe(**recipe), prompt=prompt)


def test_table_7_has_its_18_cells():
    cells = table7(base())
    assert len({c.key for c in cells}) == 18
    shapes = [(c.recipe.layers, c.recipe.activation, c.recipe.dropout) for c in cells]
    assert shapes[:2] == [(0, Activation.LEAKY_RELU, 0.2), (0, Activation.LEAKY_RELU, 0.0)]
    assert {s for s in shapes if s[0]} == {(n, a, d) for n in (1, 2) for a in Activation for d in (0.15, 0.0)}
    assert {(c.recipe.dim, c.recipe.hidden) for c in cells} == {(512, 1024)}
    assert {(s[0], s[1] if s[0] else None) for s in shapes} == set(TABLE7)


def test_figure_4_goes_from_50_to_1000_dimensions():
    assert [c.recipe.dim for c in figure4(base())] == [50, *range(100, 1001, 100)]


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


THEN = {"dropout": 0.15, "dropout_at": DropoutAt.INPUT, "bias": True}  # what has other defaults since


def test_keys_are_those_of_version_0_1_0():
    assert base(**THEN).key == "4c721f2679"
    assert base("cond+sent", layers=2, dim=64, **THEN).key == "1714e6231e"
    assert base(nested=(8,), **THEN).key != "4c721f2679" != base().key


def test_the_fingerprint_of_a_search_is_that_of_version_0_1_0():
    job = TuneJob(train="a", validation="b", output="c", **THEN)
    models = {prompt: {"dim": len(prompt)} for prompt in ("cond", "cond+sent")}
    found = [identity_of(j, None, models, ["x", "y"])["fingerprint"][:16] for j in (job, replace(job, nested=(8,)))]
    assert found[0] == "4c215c12fb2a3c84" != found[1]


def test_a_grid_of_a_file_is_the_product_of_its_lists(tmp_path):
    file = tmp_path / "grid.json"
    file.write_text(
        json.dumps({"dropout": [0.1, 0.3], "activation": ["relu", "gelu"], "prompt": ["cond", "cond+sent"]})
    )
    cells = grid_of(str(file), base("concat-sc", epochs=7))
    assert len({c.key for c in cells}) == 8
    assert {(c.recipe.dropout, c.recipe.activation, c.prompt) for c in cells} == {
        (d, a, p) for d in (0.1, 0.3) for a in ("relu", "gelu") for p in ("cond", "cond+sent")
    }
    assert {c.recipe.epochs for c in cells} == {7}
    file.write_text("{}")
    assert [c.recipe for c in grid_of(str(file), base())] == [Recipe()]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"layers": [true]}', "a whole number as layers"),
        ("[1]", "an object of lists"),
        ('{"dropout": 0.1}', "an object of lists"),
        ('{"dropout": []}', "an object of lists"),
        ('{"colour": [1]}', "got 'colour'"),
        ('{"nested": [[8]]}', "got 'nested'"),
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
        grid_of(str(file), base())


def test_a_grid_too_large_to_lay_out_is_refused_with_its_size(tmp_path):
    file = tmp_path / "grid.json"
    names = ("dropout", "weight_decay", "average", "hidden")
    file.write_text(json.dumps({name: [0.5] * 100 for name in names}))
    with pytest.raises(RequestError, match=r"--grid: expected at most 10,000 cells in .*, got 100,000,000"):
        grid_of(str(file), base())


def test_a_grid_that_is_not_there_is_refused():
    with pytest.raises(RequestError, match="table7, figure4 or a JSON file"):
        grid_of("table8", base())


def test_a_longer_random_search_begins_with_the_shorter_one():
    short, long = (random_cells(base(), SPACE, n, seed=3) for n in (20, 40))
    assert long[:20] == short
    assert len({c.key for c in long}) == 40
    assert random_cells(base(), SPACE, 20, seed=4) != short
    assert {c.prompt for c in long} == {"cond", "sent"}
    for name in ("activation", "layers", "dim", "rating_map", "hidden"):
        assert {getattr(c.recipe, name) for c in long} == set(SPACE[name])
    assert all(0 <= c.recipe.dropout <= 0.5 and 1e-4 <= c.recipe.learning_rate <= 5e-3 for c in long)
