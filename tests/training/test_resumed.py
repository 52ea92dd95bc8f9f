"""Training jobs and sweeps that were killed at a write, states that do not fit, and folders that were altered."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from helpers import rated_rows, to_csv, worst
from safetensors.torch import load, load_file, save
from sweeps import sweep_of
from uncached import open_local_runner, open_local_trials

from raycase.data.storage import Location
from raycase.errors import RequestError, WorkError
from raycase.training import job as jobs
from raycase.training import sweep
from raycase.training.catalogue import TRAIN_JOBS
from raycase.training.checkpoint import Checkpoint

train = partial(jobs.train, open_runner=open_local_runner)
tune = partial(sweep.tune, open_trials=open_local_trials)
EMBEDS = {"prompt": "concat-sc", "pooling": "mean"}
KINDS = {  # the job, its flags, and the files before whose write it is killed; None: each
    "case": (EMBEDS, None),
    "condition-pooling": (
        {"layers": (1.0,), "dim": 8, "heads": 2, "head_dim": 4, "teachers": 1, "unfreeze": True, "unfrozen_epochs": 1}
        | {"epochs": 1},
        ("frozen/state.safetensors", "raycase.json"),
    ),
    "bi-encoder": ({"epochs": 1}, ("history.json", "README.md", "raycase.json")),
    "tune": (EMBEDS | {"seeds": 2}, ("1.json", "trials.csv", "projector.safetensors")),
}


@pytest.fixture
def make(tiny_model, tmp_path):
    """Makes a job of a kind over small data."""

    def made(kind, **options):
        settings = {"model": str(tiny_model), "compute": "float32", "epochs": 2, "batch_size": 12}
        settings |= {"output": str(tmp_path / "out"), "cache": str(tmp_path / "cache")} | KINDS[kind][0]
        for name, rows, seed in (("train", 24, 0), ("validation", 12, 1)):
            settings[name] = to_csv(rated_rows(rows, seed), tmp_path / f"{name}.csv")
        if kind == "tune":
            return sweep_of("case", tmp_path, {"learning_rate": [0.001]}, **settings | options)
        return TRAIN_JOBS[kind](**settings | options)

    return made


def weights_in(folder):
    files = sorted(folder.rglob("*.safetensors"))
    return {f"{file.relative_to(folder)} {name}": t for file in files for name, t in load_file(file).items()}


def finite(weights):
    return {name: t.float().nan_to_num() for name, t in weights.items()}  # the tiny model's "poison" is NaN


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_killed_at_any_write_ends_in_the_same_model(make, kind, tmp_path, monkeypatch):
    """The disk is copied before each write: so a kill leaves it. The copy is put back, and the job runs again."""
    job, put, at = make(kind), Location.put, []
    places = [tmp_path / "out", tmp_path / "cache"]

    def copied(location, data):
        if KINDS[kind][1] is None or location.path.endswith(KINDS[kind][1]):
            at.append(location.name)
            for place in places:
                if place.exists():
                    shutil.copytree(place, tmp_path / "killed" / str(len(at)) / place.name)
            half = Path(location.path).with_name(f".{location.name}.{'0' * 32}")
            copy = tmp_path / "killed" / str(len(at)) / half.relative_to(tmp_path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data[: len(data) // 2])
        put(location, data)

    run, folder = (tune, job.training.folder) if kind == "tune" else (train, job.folder)
    monkeypatch.setattr(Location, "put", copied)
    run(job)
    monkeypatch.setattr(Location, "put", put)
    wanted = finite(weights_in(folder))
    assert len(at) >= (6 if KINDS[kind][1] is None else len(KINDS[kind][1]))
    for step in range(1, len(at) + 1):
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
            killed = tmp_path / "killed" / str(step) / place.name
            if killed.exists():
                shutil.move(killed, place)
        assert not list(folder.rglob("raycase.json")), "no model is there before it is whole"
        run(job)
        assert worst(finite(weights_in(folder)), wanted) == 0
        if kind != "tune":
            assert not [file for file in folder.iterdir() if file.name.startswith(".")], "half of a file is left"


STATES = {
    "another shape": lambda tensors, values: tensors.update({"weights/1.weight": torch.zeros(3)}),
    "another type": lambda tensors, values: tensors.update({"best/1.weight": tensors["best/1.weight"].double()}),
    "a weight that lacks": lambda tensors, values: tensors.pop("best/1.weight"),
    "an average of the weights": lambda tensors, values: tensors.update({"average/module.1.weight": torch.zeros(3)}),
    "a weight more": lambda tensors, values: tensors.update({"weights/2.bias": torch.zeros(3)}),
    "a shorter moment": lambda tensors, values: tensors.update({"optimizer/0.exp_avg": torch.zeros(7)}),
    "a moment of another weight": lambda tensors, values: tensors.update({"optimizer/9.step": torch.zeros(())}),
    "no moments": lambda tensors, values: [tensors.pop(n) for n in list(tensors) if n.startswith("optimizer/")],
    "weights that are no numbers": lambda tensors, values: tensors["weights/1.weight"].fill_(torch.nan),
    "epochs of text": lambda tensors, values: values.update(history="two"),
    "an epoch without figures": lambda tensors, values: values["history"][0].pop("spearman"),
    "an epoch without loss": lambda tensors, values: values["history"][0].pop("loss"),
    "too many epochs": lambda tensors, values: values.update(history=values["history"] * 9),
    "another best": lambda tensors, values: values.update(best_epoch=7),
}


def test_a_state_without_checksum_that_does_not_fit_is_named(make, monkeypatch):
    """As versions up to 0.2.0 wrote it: without a checksum. Some ended the process, some were used."""
    job, kept = make("case"), []
    monkeypatch.setattr(Location, "put", lambda at, data: kept.append((at, data)))
    with pytest.raises(AssertionError):  # nothing was written
        train(job)
    monkeypatch.undo()
    at, data = next((at, data) for at, data in kept if at.name == "state.safetensors")
    fit = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["fit"])

    def put(alter):
        tensors = load(data)
        values = json.loads(json.dumps({name: fit[name] for name in ("history", "best_epoch", "groups")}))
        alter(tensors, values)
        at.put(save(tensors, metadata={"fit": json.dumps(values)}))

    for name, alter in STATES.items():
        put(alter)
        with pytest.raises(WorkError, match=r"state.safetensors: expected the state of this fit, got .*; remove it"):
            train(job)
            pytest.fail(name)
    put(lambda tensors, values: values["groups"].clear())  # a fit has its own
    assert train(job)["epochs"] == 2 and Checkpoint(at).read() is None


@pytest.mark.parametrize("mine", ["encoder", "adapter", "1_Pooling", "head.safetensors", "tokenizer.json"])
def test_an_output_with_anothers_files_is_refused(make, tmp_path, mine):
    file = tmp_path / "out" / mine / "config.json" if "." not in mine else tmp_path / "out" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    for kind in ("case", "bi-encoder", "condition-pooling"):
        with pytest.raises(RequestError, match=f"got {mine} without metrics.json"):
            train(make(kind))
    assert file.read_text() == "mine"


def test_a_finished_model_that_was_altered_is_not_said_to_be_done(make, tmp_path):
    job = make("bi-encoder", epochs=1)
    train(job)
    for name in ("raycase.json", "config.json", "1_Pooling/config.json", "model.safetensors"):
        whole = (job.folder / name).read_bytes()
        (job.folder / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(RequestError, match=f"expected a whole model in .*, got in {name}: .*; pass --overwrite"):
            train(job)
        (job.folder / name).write_bytes(whole)
    assert train(job)["epochs"] == 1
    with pytest.raises(RequestError, match=r"this very sweep in .*, got raycase.json without sweep.json"):
        tune(make("tune"))
    to_csv(rated_rows(24, 7), tmp_path / "train.csv")
    with pytest.raises(RequestError, match=r"this very model in .*, got another"):
        train(job)


def test_a_sweep_resumes_only_on_its_data_and_grid(make, tmp_path):
    job = make("tune", seeds=1)
    tune(job)
    for file, text in (
        ("grid.json", '{"learning_rate": [0.1]}'),
        ("train.csv", rated_rows(24, 7).to_csv(index=False)),
    ):
        whole = (tmp_path / file).read_bytes()
        (tmp_path / file).write_text(text)
        with pytest.raises(RequestError, match=r"expected an empty folder or this very sweep in .*, got another"):
            tune(job)
        (tmp_path / file).write_bytes(whole)
    [trial] = (job.training.folder / "trials").iterdir()
    for text in ("{}", trial.read_text()[:40]):
        trial.write_text(text)
        with pytest.raises(RequestError, match=r"trials/.*json: expected"):
            tune(job)
