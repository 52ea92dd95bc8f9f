"""What each of two processes runs in `test_loop.py`; spawned processes import it by name."""

import json
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import small
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raycase.errors import WorkError
from raycase.heads.condition_head import ConditionHead
from raycase.heads.projector import Activation
from raycase.io.stored_tokens import StoredStates
from raycase.models.condition_pooling import condition_pooling
from raycase.models.contracts import PairVectors
from raycase.papers.baselines.model import cross_encoder
from raycase.papers.csr.model import csr
from raycase.training.condition_head_fit import UnfrozenEncoder, fit_condition_head
from raycase.training.condition_pairs import PairStates, PairTokens
from raycase.training.encoder_fit import PairObjective, TunePairs, fit_tuned
from raycase.training.loop import FitConfig, epoch_batches, fit, gather, shard, unwrapped
from raycase.training.losses import Loss
from raycase.training.projector import ProjectorRecipe, fit_projector
from raycase.training.recipe import HeadRecipe, RatedRecipe

MAKE = {"csr": lambda model: csr(model, routed=2), "cross": cross_encoder}
# 37 pairs: the last batch of 16 has five. 33: it has one, and one process has none.
CASES = [(Loss.SQUARED, 33), (Loss.PEARSON, 37)]
TUNED_ROWS = 17  # in batches of four, one of which has a single pair
HEADS = (3,)  # of condition pooling: 17 pairs in batches of four
SHARES = (5, 2, 1)  # rows of the batches that are gathered


def pairs(rows, seed=0):
    """Random vectors and ratings."""
    random = np.random.default_rng(seed)
    return PairVectors(
        vectors=random.standard_normal((60, 12)).astype(np.float32),
        pair_index=random.integers(0, 60, (rows, 2)),
        ratings=random.integers(1, 6, rows).astype(np.float32),
    )


def ended(wrap, fit, *data, **options):
    """The state after the last epoch of a fit, and the gradients of its last step, by name."""
    wrapped = []

    def keep(module):
        wrapped.append(wrap(module))
        return wrapped[0]

    *_, state = fit(*data, wrap=keep, **options)
    return state, {name: parameter.grad for name, parameter in unwrapped(wrapped[0]).named_parameters()}


def fitted(loss, rows, wrap=lambda module: module):
    """The state after three epochs, and the gradients of the last step."""
    shape = {"dim": 6, "layers": 2, "activation": Activation.SILU, "dropout": 0.0}
    recipe = ProjectorRecipe(batch_size=16, epochs=3, loss=loss, **shape)
    return ended(wrap, fit_projector, pairs(rows), pairs(40, seed=1), recipe, seed=3)


def save_encoder(folder):
    """What both processes fine-tune."""
    small.save_bert(folder / "bert", layers=2)
    config = folder / "bert" / "config.json"
    values = json.loads(config.read_text()) | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps(values))


def fine_tuned(folder, name, wrap=lambda module: module):
    """The state after two epochs, and the gradients of the last step."""
    config = MAKE[name](str(Path(folder) / "bert"))
    recipe = RatedRecipe(batch_size=4, epochs=2, dropout=0.0)
    data = [_texts(config, n, seed) for seed, n in ((0, TUNED_ROWS), (1, 12))]
    return ended(wrap, fit_tuned, *data, recipe, PairObjective(config=config))


def _texts(config, rows, seed):
    rated = small.rated(rows + 1, seed)  # one is rated -1
    return TunePairs.of(config, rated)


def head_fitted(heads, wrap=lambda module: module):
    """The state of condition pooling's head after two epochs, and the gradients of the last step."""
    recipe = HeadRecipe(heads=heads, head_dim=4, dim=6, nested=(3,), dropout=0.0, batch_size=4, epochs=2)
    return ended(wrap, fit_condition_head, _states(17), _states(12, seed=1), recipe)


def head_fitted_along(folder, wrap=lambda module: module):
    """The state of condition pooling's head and encoder after two epochs."""
    config = condition_pooling(str(Path(folder) / "bert"), layers=(0.5, 1.0))
    recipe = HeadRecipe(heads=2, head_dim=4, dim=6, dropout=0.0, batch_size=4, epochs=2)
    torch.manual_seed(0)
    head = ConditionHead(recipe.head(config.states_dim)).state_dict()
    along = UnfrozenEncoder(config=config, head=head, compute=torch.float32)
    data = [PairTokens.of(config, small.rated(rows, seed)) for seed, rows in ((0, 18), (1, 13))]  # one is rated -1
    *_, state = fit_condition_head(*data, recipe, unfrozen=along, wrap=wrap)
    return state


def _states(rows, seed=0):
    """Random states of 20 sentences and five conditions, and ratings."""
    random = np.random.default_rng(seed)
    return PairStates(
        sentences=StoredStates.of([random.standard_normal((random.integers(1, 6), 5)) for _ in range(20)], 5),
        plain=np.zeros((20, 5), np.float32),
        conditions=random.standard_normal((5, 5)).astype(np.float32),
        sentence_index=random.integers(0, 20, (rows, 2)),
        condition_index=random.integers(0, 5, rows),
        groups=np.arange(rows) // 2,
        ratings=random.integers(1, 6, rows).astype(np.float32),
        epochs=np.zeros(rows, np.int64),
    )


def gathered(rows):
    """What `gather` gives for a batch of so many rows, and the gradient of this process's shard."""
    part = torch.from_numpy(shard(whole(rows).numpy())).requires_grad_()
    batch = gather(part, rows)
    of_batch(batch).backward()
    return {"batch": batch.detach(), "gradient": part.grad}


def whole(rows):
    """A batch of vectors."""
    return torch.from_numpy(np.random.default_rng(rows).standard_normal((rows, 3)))


def of_batch(batch):
    """A loss in which every row meets every other."""
    return (batch @ batch.T).sin().sum()


def stopped_by_the_first():
    """Epochs after which both processes stop, where the figures of the first one stop getting better; what dropout
    would have drawn."""
    figures = iter([1.0, 2.0, 1.0, 1.0, 1.0])
    drawn = []

    def evaluate(module):
        assert dist.get_rank() == 0, "only the first process evaluates"
        return {"spearman": next(figures)}

    def loss(module, batch):
        drawn.append(torch.rand(1))
        return module(torch.ones(1, 2)).sum()

    config = FitConfig(epochs=5, patience=2, learning_rate=0.1)
    *_, state = fit(DistributedDataParallel(nn.Linear(2, 1)), epoch_batches(4, 4, 0), loss, evaluate, config)
    return {"epochs": torch.tensor([state.best_epoch, len(state.history)]), "drawn": torch.cat(drawn)}


def run(rank, folder):
    """Leave a file for each case, `NAME-RANK`; a case whose fit fails leaves none."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for rows in SHARES:
        save_file(gathered(rows), Path(folder) / f"gather-{rows}-{rank}")
    save_file(stopped_by_the_first(), Path(folder) / f"stop-{rank}")
    for loss, rows in CASES:
        with suppress(WorkError):
            state, gradients = fitted(loss, rows, wrap=DistributedDataParallel)
            name = f"{loss}-{rows}"
            (Path(folder) / f"{name}-{rank}").write_bytes(state.to_bytes())
            save_file(gradients, Path(folder) / f"{name}-gradients-{rank}")
    for name in MAKE:
        state, gradients = fine_tuned(folder, name, wrap=DistributedDataParallel)
        (Path(folder) / f"{name}-{rank}").write_bytes(state.to_bytes())
        save_file(gradients, Path(folder) / f"{name}-gradients-{rank}")
    for heads in HEADS:
        state, gradients = head_fitted(heads, wrap=DistributedDataParallel)
        (Path(folder) / f"heads-{heads}-{rank}").write_bytes(state.to_bytes())
        save_file(gradients, Path(folder) / f"heads-{heads}-gradients-{rank}")
    along = head_fitted_along(folder, wrap=DistributedDataParallel)
    (Path(folder) / f"along-{rank}").write_bytes(along.to_bytes())
    dist.destroy_process_group()
