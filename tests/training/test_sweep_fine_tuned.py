"""Sweeps of fine-tuned encoders in one process: a trial is what `train` trains; they resume; what is refused."""

import json
from dataclasses import replace
from functools import partial

import pytest
import small
import torch
from sweeps import sweep_of, trials_of
from uncached import LocalRunner, LocalTrials, open_local_trials

from raycase.errors import RequestError
from raycase.training import job as jobs
from raycase.training import sweep
from raycase.training.sweep_cells import Cell, grid_of

tune = partial(sweep.tune, open_trials=open_local_trials)

CLUSTER = partial(pytest.param, marks=pytest.mark.cluster)
DATA = {"dualcse": "inferences", "simcse": "inferences", "mixsp": "scored", "sentence-encoder": "scored"}


@pytest.fixture
def flags(tmp_path, request):
    """The flags of a system's training over small data."""
    encoder = small.save_bert(tmp_path / "encoder")

    def made(system):
        data = request.getfixturevalue(DATA.get(system, "rated"))
        names = ("train", "validation")
        settings = {name: data[name] if system in DATA else str(data / f"{name}.csv") for name in names}
        settings |= {"model": encoder, "compute": "float32"}
        settings |= {"prompt": "concat-cs", "pooling": "mean"} if system == "lora" else {}
        return settings | {"output": str(tmp_path / "sweep"), "epochs": 2, "batch_size": 8, "learning_rate": 1e-3}

    return made


@pytest.fixture
def make(flags, tmp_path):
    """Makes a sweep of a system, with its grid in a file where it is no name."""
    return lambda system, grid=None, **options: sweep_of(
        system, tmp_path, grid, **flags(system) | {"seeds": 1} | options
    )


class Kept(LocalRunner):
    """Keeps the state of a fit."""

    def fit(self, *args, **options):
        Kept.state = super().fit(*args, **options)
        return Kept.state


@pytest.mark.parametrize(
    ("system", "grid", "choice", "figure"),
    [
        ("csr", {"routed": [1, 2], "router": ["hidden"], "asks": ["words"]}, {"routed": 2}, "spearman"),
        ("dualcse", {"batch_size": [8], "intra": [True, False]}, {"intra": False}, "rte"),
        CLUSTER("mixsp", {"ranges": [[2, 4]], "range_weight": [None, 0.1]}, {"ranges": "2 4", "range_weight": 0.1}, ""),
        CLUSTER("lora", {"rank": [2, 4], "prompt": ["concat-sc"]}, {"rank": 4, "prompt": "concat-sc"}, ""),
    ],
)
def test_a_trial_is_what_train_trains_with_its_flags_and_seed(make, tmp_path, system, grid, choice, figure):
    job = make(system, grid, seed=3)
    result = tune(job)
    cells = grid_of(job.grid, Cell(job=job.training))
    assert (result["trials"], result["failed"], result["cells"]) == (len(cells), 0, len(cells))
    [trial] = [t for t in trials_of(job) if choice.items() <= t.items()]
    [cell] = [c for c in cells if c.key == trial["key"]]
    trained = replace(cell.job, output=str(tmp_path / "trained"))
    metrics = jobs.train(trained, lambda **_: Kept("cpu"))
    for name in cell.metric_names:
        assert trial[name] == metrics["validation"][name], name
    assert trial["best_epoch"] == metrics["best_epoch"] and trial[figure or "spearman"] is not None
    *_, state = cell.fit(job.training.read_parts(), seed=3)
    assert state.best.keys() == Kept.state.best.keys()
    assert all(torch.equal(state.best[name], weights) for name, weights in Kept.state.best.items())


def test_a_resumed_sweep_trains_the_best_model_only_if_it_is_another(make):
    trained = []

    class Counted(LocalTrials):
        def fit(self, *args, **options):
            trained.append(options["seed"])
            return super().fit(*args, **options)

    job = make("mixsp", {"route": ["cls", "own"]}, epochs=1)
    run = partial(sweep.tune, open_trials=lambda **_: Counted("cpu"))
    best = run(job)["best"]["key"]
    assert run(job)["best"]["key"] == best and trained == [0]
    for file in (job.training.folder / "trials").glob(f"{best}-*"):
        values = json.loads(file.read_text())
        file.write_text(json.dumps(values | {"spearman": -100.0}))
    assert run(job)["best"]["key"] != best and trained == [0, 0]


def test_a_sweep_on_a_knowledge_graph_ranks_by_mrr(make, tmp_path):
    (tmp_path / "entities.tsv").write_text("id\tname\tdefinition\n" + "".join(f"{n}\tn{n}\ta dog\n" for n in range(5)))
    (tmp_path / "relations.tsv").write_text("r\tpeople\n")
    (tmp_path / "train.tsv").write_text("".join(f"{n}\tr\t{n + 1}\n" for n in range(4)))
    (tmp_path / "validation.tsv").write_text("0\tr\t2\n1\tr\t4\n")
    files = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "validation")}
    job = make("tri-encoder", {"limit": [4, 6]}, task="kgc", epochs=1, **files)
    assert {"mrr_mean", "tri"} & tune(job)["best"].keys() == {"mrr_mean"}
    assert all(t["mrr"] > 0 and t["hits@10"] == 100 for t in trials_of(job))


@pytest.mark.parametrize(
    ("system", "grid", "said"),
    [
        ("csr", {"depth": [2]}, "expected names among .*router, asks, routed, weight, compose in .*, got 'depth'"),
        ("csr", {"task": ["kgc"]}, "got 'task'"),
        ("csr", {"routed": ["2"]}, "a whole number as routed"),
        ("csr", {"form": ["bi"], "router": ["hidden"]}, "--form bi: expected no --router"),
        ("csr", {"compute": ["float8"]}, "--grid: expected values of a recipe"),
        ("dualcse", {"intra": ["yes"]}, "true or false as intra"),
        ("mixsp", {"ranges": [[9]]}, "--ranges: expected rising scores"),
        ("mixsp", "table7", "--grid: expected table4, a file NAME.json, got table7"),
        ("lora", {"rank": [0]}, "--rank from 1 to"),
    ],
)
def test_a_grid_that_is_none_is_refused_before_anything_is_trained(make, system, grid, said):
    job = make(system, grid)
    with pytest.raises(RequestError, match=said):
        sweep.tune(job, lambda **_: pytest.fail("expected no runner"))
    assert not job.training.folder.exists()
