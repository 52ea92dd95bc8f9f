"""The training loop over a toy module: when it stops, what it keeps, resuming as if never stopped; two processes."""

from copy import deepcopy
from functools import partial
from multiprocessing import get_context

import numpy as np
import pytest
import small
import torch
import torch.multiprocessing as mp
import two_processes
from safetensors.torch import load_file
from torch import nn

from raycase.errors import WorkError
from raycase.training.loop import FitState, Learner, epoch_batches, fit
from raycase.training.recipe import Recipe

X = torch.from_numpy(np.random.default_rng(0).standard_normal((50, 3), dtype=np.float32))
Y = X[:, :1] * 2 - X[:, 1:2] ** 2


def toy(dropout=0.3):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1))


def squared(module, batch):
    return (module(X[batch]) - Y[batch]).square().mean()


def evaluate(module):
    with torch.no_grad():
        return {"score": -float(squared(module, np.arange(50)))}


def scripted(*scores):
    """An evaluation that gives these figures, one an epoch."""
    following = iter(scores)
    return lambda module: {"score": next(following)}


def fitting(*, module=None, loss=squared, evaluation=evaluate, batch_size=16, state=None, **options):
    options = {"epochs": 6, "patience": 10, "learning_rate": 0.01, "seed": 5, "select": "score"} | options
    batches = partial(epoch_batches, 50, batch_size, options["seed"])
    return fit(Recipe(**options), Learner(module or toy(), batches, loss, evaluation), state=state)


def figures(state):
    """The history without the clock and the memory."""
    return [{name: v for name, v in line.items() if name not in ("seconds", "mib")} for line in state.history]


def tensors(state):
    """Every number of a state, by name."""
    parts = {"weights": state.weights, "best": state.best, "moments": state.moments}
    return {f"{part}/{name}": tensor for part, named in parts.items() for name, tensor in named.items()}


def assert_equal(a, b):
    assert tensors(a).keys() == tensors(b).keys()
    assert [name for name, tensor in tensors(a).items() if not torch.equal(tensor, tensors(b)[name])] == []
    assert figures(a) == figures(b)
    assert a.best_epoch == b.best_epoch


def test_the_loss_of_an_epoch_is_the_mean_over_its_rows():
    """The last batch is shorter and counts for less."""
    seen = []

    def noted(module, batch):
        value = squared(module, batch)
        seen.append((len(batch), value.item()))
        return value

    (state,) = fitting(loss=noted, epochs=1)
    assert state.line["epoch"] == 1 and state.line["seconds"] > 0 and state.line["mib"] > 50
    assert [rows for rows, _ in seen] == [16, 16, 16, 2]
    assert state.line["loss"] == pytest.approx(sum(rows * value for rows, value in seen) / 50)


def test_one_step_of_adam_with_decoupled_decay_by_hand():
    module = toy(dropout=0.0)
    before = deepcopy(module)
    squared(before, np.arange(50)).backward()
    (state,) = fitting(module=module, batch_size=50, epochs=1, learning_rate=0.1, weight_decay=0.5)
    for name, weight in before.named_parameters():
        # The first step of Adam, its moments freed of their bias, goes by the sign of the gradient.
        step = weight.grad / (weight.grad.abs() + 1e-8)
        torch.testing.assert_close(state.weights[name], weight.detach() * (1 - 0.1 * 0.5) - 0.1 * step)


def test_a_loss_that_is_not_finite_ends_the_fit():
    epochs = []

    def broken(module, batch):
        return squared(module, batch) * (float("nan") if epochs else 1)

    states = fitting(loss=broken)
    epochs.append(next(states).line["epoch"])
    with pytest.raises(WorkError, match="epoch 2: expected a finite loss, got nan; lower the learning rate"):
        next(states)


def test_weights_lost_by_the_last_step_are_an_error():
    """The loss before the step was finite."""
    one_step = {"batch_size": 50, "learning_rate": 3e38, "evaluation": scripted(1.0)}
    with pytest.raises(WorkError, match="epoch 1: expected finite weights"):
        list(fitting(module=nn.Linear(3, 1), loss=lambda m, rows: m.weight.sum() - m.bias.sum(), **one_step))


@pytest.mark.parametrize(("patience", "epochs"), [(2, 2), (9, 5)])
def test_a_fit_without_a_number_in_any_epoch_is_an_error_after_its_patience(patience, epochs):
    with pytest.raises(WorkError, match=f"whose score on the validation data is a number, got none in {epochs}"):
        list(fitting(evaluation=scripted(*[float("nan")] * 5), epochs=5, patience=patience))


@pytest.fixture
def rates(monkeypatch):
    """The learning rate of every step that is taken."""
    taken = []

    class Noted(torch.optim.AdamW):
        def step(self, *arguments, **options):
            [rate] = {group["lr"] for group in self.param_groups}
            taken.append(rate)
            return super().step(*arguments, **options)

    monkeypatch.setattr(torch.optim, "AdamW", Noted)
    return taken


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"warmup": 0.0}, [0.105, 0.075, 0.045, 0.015]),
        ({"warmup": 0.5}, [0.03, 0.09, 0.09, 0.03]),
        ({"warmup": None}, [0.12] * 4),
    ],
)
def test_the_learning_rate_of_one_epoch_by_hand(rates, options, wanted):
    list(fitting(epochs=1, learning_rate=0.12, **options))
    assert rates == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [
        ([1, 3, 2, 2.5, 0, 9], 3, 5, 2),
        ([3, 2, 1, 9], 1, 2, 1),
        ([1, 2, 2, 2, 9, 9], 2, 4, 2),  # as good is not better
    ],
)
def test_it_stops_when_the_best_epoch_is_long_ago(scores, patience, epochs, best):
    states = list(fitting(evaluation=scripted(*scores), patience=patience))
    assert (len(states), states[-1].best_epoch) == (epochs, best)
    assert [line["score"] for line in states[-1].history] == scores[:epochs]


def test_a_resumed_fit_equals_one_that_never_stopped():
    stopped = 3
    undisturbed = small.kept(fitting(weight_decay=0.1))
    saved = undisturbed[stopped - 1].to_bytes()
    torch.manual_seed(99)
    state = FitState.from_bytes(saved)
    *_, last = fitting(module=toy(), weight_decay=0.1, state=state)
    assert_equal(last, undisturbed[-1])


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The folder that two processes left their results in."""
    folder = tmp_path_factory.mktemp("two")
    two_processes.save_encoder(folder)
    get_context("forkserver").set_forkserver_preload(["two_processes"])  # imports once
    mp.start_processes(two_processes.run, args=(str(folder),), nprocs=2, start_method="forkserver")
    return folder


@pytest.mark.parametrize("name", two_processes.FITS)
def test_two_processes_end_alike_and_as_one_does(two, name):
    one, gradients = two_processes.FITS[name](two)
    first, second = (FitState.from_bytes((two / f"{name}-{rank}").read_bytes()) for rank in (0, 1))
    assert_equal(first, second)
    for part in ("weights", "best"):
        found, wanted = getattr(first, part), getattr(one, part)
        assert found.keys() == wanted.keys()
        for key in wanted:
            if not key.endswith("key.bias"):  # its gradient is 0 but for rounding, which AdamW turns into whole steps
                torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=1e-5)
    found = load_file(two / f"{name}-gradients-0")  # Adam forgives one that is larger or smaller by a factor
    assert found.keys() == gradients.keys()
    for key, wanted in gradients.items():
        torch.testing.assert_close(found[key], wanted, rtol=1e-3, atol=1e-5)
    assert first.best_epoch == one.best_epoch and first.line["loss"] == pytest.approx(one.line["loss"], abs=1e-5)
    for line, wanted in zip(figures(first), figures(one), strict=True):
        assert line == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("rows", two_processes.SHARES)
def test_gathered_shards_are_the_batch_and_its_gradient(two, rows):
    whole = two_processes.whole(rows).requires_grad_()
    two_processes.of_batch(whole).backward()
    parts = [load_file(two / f"gather-{rows}-{rank}") for rank in (0, 1)]
    assert [len(part["gradient"]) for part in parts] == [rows - rows // 2, rows // 2]
    for part in parts:
        torch.testing.assert_close(part["batch"], whole.detach(), rtol=0, atol=0)
    torch.testing.assert_close(torch.cat([part["gradient"] for part in parts]), whole.grad)


def test_both_processes_stop_by_the_figures_of_the_first(two):
    assert [load_file(two / f"stop-{rank}")["epochs"].tolist() for rank in (0, 1)] == [[2, 4], [2, 4]]


def test_dropout_differs_in_every_process_and_epoch(two):
    assert len({x for rank in (0, 1) for x in load_file(two / f"stop-{rank}")["drawn"].tolist()}) == 8
