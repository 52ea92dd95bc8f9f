"""The training loop, without Ray, over a module, batches, a loss and an evaluation, in one or several processes.

Each process gets the same batches and computes its shard of each; the loss is always that of the whole batch.
"""

from __future__ import annotations

import json
import math
import resource
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor, nn

from raycase.errors import WorkError
from raycase.io.json_values import figure, finite
from raycase.training.recipe import Recipe

Weights = dict[str, Tensor]
Batches = Callable[[int], Sequence[Any]]  # epoch -> whole batches, with a length: row numbers, mostly
BatchLoss = Callable[[nn.Module, Any], Tensor]  # of a whole batch; use `computed_rows` and `gather`
Evaluation = Callable[[Any], dict[str, float]]  # of the module


@dataclass(frozen=True)
class Learner:
    """What learns, and from what: `fit` runs it by a recipe."""

    module: nn.Module
    batches: Batches
    loss: BatchLoss
    evaluate: Evaluation


TITLES = {"spearman": "Spearman", "pearson": "Pearson", "rte": "RTE", "eis": "EIS"}


@dataclass(frozen=True, kw_only=True)
class FitState:
    """The state of a fit after an epoch, from which `fit` resumes as if it had never stopped: the trained weights
    themselves, so that one of `fit` is good until the next epoch begins."""

    weights: Weights
    best: Weights  # of the best epoch so far
    moments: Weights  # of the optimizer: "NUMBER OF THE WEIGHT.NAME"
    history: list[dict[str, float]]  # a line per epoch
    select: str  # the metric that chooses the best epoch

    @property
    def best_epoch(self) -> int:
        """0: no figure that chooses it is a number so far."""
        return best_epoch_of(self.history, self.select)

    @property
    def line(self) -> dict[str, float]:
        """The metrics of the last epoch."""
        return self.history[-1]

    @property
    def best_line(self) -> dict[str, float]:
        """The metrics of the best epoch."""
        return self.history[self.best_epoch - 1]

    def to_bytes(self) -> bytes:
        """One safetensors file, with the history in its header."""
        parts = {"weights": self.weights, "best": self.best, "moments": self.moments}
        tensors = {f"{part}/{name}": t.contiguous() for part, named in parts.items() for name, t in named.items()}
        return save(tensors, metadata={"history": json.dumps(self.history), "select": self.select})

    @classmethod
    def from_bytes(cls, data: bytes) -> FitState:
        """Read what `to_bytes` wrote."""
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
        parts: dict[str, Weights] = {"weights": {}, "best": {}, "moments": {}}
        for key, tensor in load(data).items():
            part, name = key.split("/", 1)
            parts[part][name] = tensor
        return cls(**parts, history=json.loads(header["history"]), select=header["select"])


def show(line: dict[str, float]) -> None:
    """Print the metrics of an epoch."""
    scores = "".join(f"{title} {figure(line[name]):>6}  " for name, title in TITLES.items() if name in line)
    cost = f"{line['seconds']:.2f} s  {line['mib']:,} MiB"
    print(f"epoch {line['epoch']:>3}  loss {line['loss']:.4f}  {scores}{cost}", flush=True)


def best_epoch_of(history: Sequence[dict[str, float]], select: str) -> int:
    """The first epoch with the highest value of `select`, counted from 1; 0 where no epoch has a finite one."""
    epochs = [i for i, line in enumerate(history) if finite(line[select]) is not None]
    return 1 + max(epochs, key=lambda i: history[i][select]) if epochs else 0


def fit(
    recipe: Recipe,
    learner: Learner,
    *,
    state: FitState | None = None,
    wrap: Callable[[Any], Any] = lambda module: module,
) -> Iterator[FitState]:
    """Train with AdamW and yield the state after each epoch, until the best epoch is `patience` epochs ago.

    `wrap` moves the module to its device and may wrap it in DistributedDataParallel. Dropout is seeded by (seed, epoch,
    rank), so a fit that resumes from a saved state equals one that was never stopped. Raises WorkError for a loss or
    weights that are not finite, and where no epoch has a number of `select`.
    """
    select = recipe.select
    module = wrap(learner.module)
    inner = module.module if isinstance(module, nn.parallel.DistributedDataParallel) else module
    trained = [weight for weight in inner.parameters() if weight.requires_grad]
    not_finite_before = _not_finite(trained)  # an encoder may come with some, in rows of unused tokens
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    history: list[dict[str, float]] = []
    best: Weights = {}
    if state is not None:
        restore(inner, state.weights)
        _restore_moments(optimizer, state.moments)
        history, best = list(state.history), state.best
    del state  # as large as what is trained
    best_epoch = best_epoch_of(history, select)
    while len(history) < recipe.epochs and len(history) - best_epoch < recipe.patience:
        began = time.perf_counter()
        epoch = len(history) + 1
        torch.manual_seed(int(np.random.SeedSequence((recipe.seed, epoch, rank())).generate_state(1)[0]))
        rate_of = partial(_rate, recipe, epoch)
        with _deterministic(trained[0].device):
            mean_loss = _train_epoch(module, learner.batches(epoch), learner.loss, optimizer, rate_of)
        if not math.isfinite(mean_loss):
            raise WorkError(f"epoch {epoch}: expected a finite loss, got {mean_loss}; lower the learning rate")
        if _not_finite(trained) > not_finite_before:  # by the last step, after its loss
            raise WorkError(f"epoch {epoch}: expected finite weights, got NaN or infinity; lower the learning rate")
        scores = _evaluate(inner.eval(), learner.evaluate)
        cost = {"seconds": time.perf_counter() - began, "mib": peak_mib(next(inner.parameters()).device)}
        history.append({"epoch": epoch, "loss": mean_loss, **scores, **cost})
        if best_epoch_of(history, select) == epoch:
            best_epoch, best = epoch, {name: tensor.clone() for name, tensor in _trained(inner).items()}
        of_weight = optimizer.state_dict()["state"].items()
        moments = {f"{index}.{name}": tensor for index, of in of_weight for name, tensor in of.items()}
        yield FitState(weights=_trained(inner), best=best, moments=moments, history=list(history), select=select)
    if not best_epoch:
        raise WorkError(
            f"expected an epoch whose {select} on the validation data is a number, got none in {len(history)}: "
            "all scores of the model are equal, or not finite; lower the learning rate or change the recipe"
        )


def _train_epoch(
    module: nn.Module,
    batches: Sequence[Any],
    loss: BatchLoss,
    optimizer: torch.optim.Optimizer,
    rate_of: Callable[[float], float],
) -> float:
    """Train on the batches of an epoch; returns the mean loss over their rows."""
    module.train()
    total = rows = 0.0
    for step, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = rate_of((step + 0.5) / len(batches))
        optimizer.zero_grad()
        value = loss(module, batch)
        (value * world_size()).backward()  # DistributedDataParallel takes the mean of the gradients
        total += float(value.detach()) * len(batch)
        rows += len(batch)
        optimizer.step()
    return total / rows


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """On a CPU, whose threads else add gradients of gathered rows in any order; some layers have no way on a GPU."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device.type == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def _rate(recipe: Recipe, epoch: int, done_of_epoch: float) -> float:
    """Linear schedule from 0 to the peak and back to 0; done_of_epoch: from 0 to 1, to the middle of this step."""
    peak, warmup = recipe.learning_rate, recipe.warmup
    if warmup is None:
        return peak
    done = (epoch - 1 + done_of_epoch) / recipe.epochs
    return peak * (done / warmup if done < warmup else (1 - done) / (1 - warmup))


def epoch_batches(rows: int, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Every row once, in an order determined by seed and epoch; the last batch may be short."""
    order = np.random.default_rng([seed, epoch]).permutation(rows)
    return np.split(order, range(batch_size, rows, batch_size))


def peak_mib(device: torch.device) -> int:
    """Peak memory of this process so far in MiB: on the GPU, else in RAM."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device) >> 20)
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)  # KiB on Linux


def _not_finite(weights: Iterable[Tensor]) -> int:
    """How many numbers are NaN or infinite."""
    return sum(int(weight.detach().isfinite().logical_not().sum()) for weight in weights)


def _restore_moments(optimizer: torch.optim.Optimizer, moments: Weights) -> None:
    """Load copies of the moments into an optimizer of the same weights."""
    state: dict[int, Weights] = {}
    for key, tensor in moments.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = tensor.clone()
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


def _trained(module: nn.Module) -> Weights:
    """The trained weights; on a CPU no copies."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    return {name: t.detach().cpu() for name, t in module.state_dict().items() if name not in frozen}


def restore(module: nn.Module, weights: Weights) -> None:
    """Load the weights of a state into a module of the same shape."""
    result = module.load_state_dict(weights, strict=False)
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}
    assert not result.unexpected_keys and set(result.missing_keys) <= frozen


# --------------------------------------------------------------------------------------------- several processes


def rank() -> int:
    """Index of this process among those that train together."""
    return dist.get_rank() if dist.is_initialized() else 0


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def computed_rows(batch: np.ndarray) -> tuple[np.ndarray, int]:
    """The rows of a batch that this process computes, contiguous, and how many of them count: one without rows computes
    a row and drops its result, for DistributedDataParallel waits for every process."""
    rows = np.array_split(batch, world_size())[rank()]
    return (rows, len(rows)) if len(rows) else (batch[:1], 0)


def gather(shard_ND: Tensor, rows: int) -> Tensor:
    """The shards of all processes as one batch of `rows`, in order; the gradient flows into this process's shard alone:
    that of the whole batch's loss, which every process computes, is the sum of theirs."""
    world = world_size()
    if world == 1:
        return shard_ND
    sizes = [len(part) for part in np.array_split(np.empty(rows), world)]
    padded = shard_ND.detach().new_zeros((max(sizes), *shard_ND.shape[1:]))
    padded[: len(shard_ND)] = shard_ND.detach()
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    parts = [part[:size] for part, size in zip(parts, sizes, strict=True)]
    parts[rank()] = shard_ND
    return torch.cat(parts)


def _evaluate(module: nn.Module, evaluate: Evaluation) -> dict[str, float]:
    """Rank 0's metrics, broadcast to all processes, which must agree on when to stop."""
    shared = [evaluate(module) if rank() == 0 else {}]
    if world_size() > 1:
        dist.broadcast_object_list(shared)
    return shared[0]
