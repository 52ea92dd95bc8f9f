"""What each of two processes runs in `test_loop.py`; spawned processes import it by name."""

import os
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import random_pairs
import small
import torch
import torch.distributed as dist
from helpers import change_json, fit_by
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from raycase.commands.train import ConditionPoolingFlags, ProjectorFlags
from raycase.errors import WorkError
from raycase.papers.baselines.train import CrossEncoderFlags
from raycase.papers.csr.train import CsrFlags
from raycase.training import condition_head
from raycase.training.loop import Learner, epoch_batches, fit, gather
from raycase.training.recipe import Loss, Recipe

ROWS = 17  # in batches of four, one of which has a single pair
RATINGS = (1, 2, 3, 4, 5)
SHARES = (5, 2, 1)  # rows of the batches that are gathered


def ended(wrap, fit, *data, **options):
    """The state after the last epoch of a fit, and the gradients of its last step, by name."""
    wrapped = []

    def keep(module):
        wrapped.append(wrap(module))
        return wrapped[0]

    *_, state = fit(*data, wrap=keep, **options)
    return state, {
        name: parameter.grad for name, parameter in getattr(wrapped[0], "module", wrapped[0]).named_parameters()
    }


def same(module):
    return module


def projector(folder, wrap=same, *, loss, rows):
    """The last state of g after three epochs, and the gradients of the last step."""
    shape = {"dim": 6, "layers": 2, "activation": "silu", "dropout": 0.0}
    where = dict.fromkeys(("train", "validation", "output"), "")
    job = ProjectorFlags(**where, batch_size=16, epochs=3, seed=3, loss=loss, **shape)
    parts = (random_pairs.vector_pairs(n, seed, dim=12, ratings=RATINGS) for n, seed in ((rows, 0), (40, 1)))
    return ended(wrap, fit_by, job, *parts)


def save_encoder(folder):
    """What both processes fine-tune."""
    small.save_bert(folder / "bert", layers=2)
    change_json(folder / "bert" / "config.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def encoder(folder, wrap=same, *, flags, **choices):
    """Those of an encoder after two epochs."""
    job = small.job(flags, Path(folder) / "bert", batch_size=4, epochs=2, dropout=0.0, **choices)
    parts = [small.rated(rows + 1, seed) for seed, rows in ((0, ROWS), (1, 12))]  # one is rated -1
    return ended(wrap, small.fit, job, parts)


def head(folder, wrap=same, *, rows=ROWS, columns=()):
    """Those of condition pooling's head after two epochs on rated pairs and columns of labels."""
    shape = {"heads": 3, "head_dim": 4, "hidden": 5, "dim": 6, "nested": (3,)}
    job = ConditionPoolingFlags(output="", **shape, dropout=0.0, batch_size=4, epochs=2)
    train, validation = (random_pairs.pairs(n, seed, ratings=RATINGS) for n, seed in ((rows, 0), (12, 1)))
    with patch.object(condition_head, "LEAST_BATCHES", 6):
        return ended(wrap, fit_by, job, random_pairs.learned(train, *columns), validation)


COLUMNS = random_pairs.column(), random_pairs.column(7, seed=1)
FITS = {
    "squared-33": partial(projector, loss=Loss.SQUARED, rows=33),  # the last batch of 16 has one: one process has none
    "pearson-37": partial(projector, loss=Loss.PEARSON, rows=37),
    "csr": partial(encoder, flags=CsrFlags, routed=2),
    "cross": partial(encoder, flags=CrossEncoderFlags),
    "head": head,
    "head-labels": partial(head, columns=COLUMNS),
    "head-labels-alone": partial(head, rows=0, columns=COLUMNS),
}


def gathered(rows):
    """What `gather` gives for a batch of so many rows, and the gradient of this process's shard."""
    part = torch.from_numpy(np.array_split(whole(rows).numpy(), 2)[dist.get_rank()]).requires_grad_()
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

    learner = Learner(DistributedDataParallel(nn.Linear(2, 1)), partial(epoch_batches, 4, 4, 0), loss, evaluate)
    *_, state = fit(Recipe(epochs=5, patience=2, learning_rate=0.1), learner)
    return {"epochs": torch.tensor([state.best_epoch, len(state.history)]), "drawn": torch.cat(drawn)}


def run(rank, folder):
    """Leave a file for each fit, `NAME-RANK`; one that fails leaves none."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    for rows in SHARES:
        save_file(gathered(rows), Path(folder) / f"gather-{rows}-{rank}")
    save_file(stopped_by_the_first(), Path(folder) / f"stop-{rank}")
    for name, fit_of in FITS.items():
        with suppress(WorkError):
            state, gradients = fit_of(folder, DistributedDataParallel)
            (Path(folder) / f"{name}-{rank}").write_bytes(state.to_bytes())
            save_file(gradients, Path(folder) / f"{name}-gradients-{rank}")
    dist.destroy_process_group()
