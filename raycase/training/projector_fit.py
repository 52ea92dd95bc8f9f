"""Supervised projection learning (CASE, section 3.2): from the vectors of rated pairs to g.

Shapes: P distinct (sentence, condition), N rated pairs, B pairs of a batch, D dimensions of all views, K of g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from raycase.errors import at_least, check_ranges
from raycase.systems.contracts import PairVectors
from raycase.systems.projector import DropoutAt, Projector, ProjectorConfig, project, recorded_settings
from raycase.systems.top import MOST_WIDTH, Activation
from raycase.training.loop import BatchLoss, Evaluation, FitState, epoch_batches, fit, gather, shard
from raycase.training.losses import Loss, unit_ratings
from raycase.training.nested import nested_correlations, nested_cosines, nested_loss, nested_range
from raycase.training.recipe import SHARE, FitRecipe, Ranges

OUTPUT_DIM, DROPOUT = 512, 0.15


@dataclass(frozen=True, kw_only=True)
class ProjectorRecipe(FitRecipe):
    """Everything that determines g besides the data and the seed. The defaults are the paper's."""

    dim: int | None = None
    """Output dimension of the projector. Default: 512, or its input dimension if that is smaller."""
    layers: int = 1
    """0: linear; 1: linear and activation; 2: a hidden layer before them."""
    hidden: int = 1024
    """Width of the hidden layer of --layers 2."""
    activation: Activation = Activation.LEAKY_RELU
    """The non-linearity."""
    dropout: float | None = None
    """Share of dropout. Default: 0.15, and none for --layers 0."""
    dropout_at: DropoutAt = DropoutAt.OUTPUT
    """Dropout on the output of the projector (eq. 4), its input or both; between two layers in any case."""
    bias: bool = False
    """Linear layers with a bias; eq. 3 and 4 have none."""
    nested: tuple[int, ...] = ()
    """Train the first so many dimensions too, so that vectors can be cut to them (Kusupati et al., 2022)."""
    loss: Loss = Loss.SQUARED
    """squared is eq. 2; pearson one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    batch_size: int = 512
    """Rated pairs per step, over all workers."""
    epochs: int = 60
    """Maximum number of epochs."""
    patience: int = 10
    """Stop after this many epochs without a better one."""

    FORMER: ClassVar = FitRecipe.FORMER | {"rating_map": "unit"}

    @property
    def record(self) -> dict[str, Any]:
        """The recipe by name, as fingerprints and `metrics.json` have it."""
        return recorded_settings(self) | self.FORMER

    @property
    def dropout_share(self) -> float:
        """`dropout`, or its default."""
        return DROPOUT * (self.layers > 0) if self.dropout is None else self.dropout

    @property
    def expected(self) -> Ranges:
        """Whether each field is in its range, and what is expected."""
        return super().expected | {
            **at_least(1, self, "dim", "hidden", most=MOST_WIDTH),
            "layers": (self.layers in (0, 1, 2), "0, 1 or 2"),
            "dropout": (self.dropout is None or 0 <= self.dropout < 1, SHARE),
            "nested": nested_range(self.nested, self.dim or OUTPUT_DIM),
        }

    def projector(self, input_dim: int) -> ProjectorConfig:
        """The shape of g for vectors of `input_dim`. Raises RequestError for too large nested dimensions."""
        dim = self.dim or min(OUTPUT_DIM, input_dim)
        check_ranges(self, {"nested": nested_range(self.nested, dim)})
        return ProjectorConfig(
            input_dim=input_dim,
            output_dim=dim,
            layers=self.layers,
            hidden=self.hidden,
            activation=self.activation,
            dropout=self.dropout_share,
            dropout_at=self.dropout_at,
            bias=self.bias,
            nested=tuple(sorted(set(self.nested))),
        )


RECIPE_FIELDS = tuple(f.name for f in fields(ProjectorRecipe))


def fit_projector(
    train: PairVectors,
    validation: PairVectors,
    recipe: ProjectorRecipe,
    *,
    seed: int = 0,
    state: FitState | None = None,
    wrap: Any = lambda module: module,
) -> Iterator[FitState]:
    """Fit g by eq. 2 with a frozen encoder; yields the state after each epoch. Pairs labelled -1 are not trained on.

    `wrap` moves the module to its device and wraps it for several processes.
    """
    train = train.applicable()
    torch.manual_seed(seed)
    shape = recipe.projector(train.dim)
    module = wrap(Projector(shape))
    batches = epoch_batches(len(train.ratings), recipe.batch_size, seed)
    loss, evaluate = pair_loss(train, recipe), projector_evaluation(validation, shape.nested)
    return fit(module, batches, loss, evaluate, recipe.fit_config(seed), state=state)


def pair_loss(train: PairVectors, recipe: ProjectorRecipe) -> BatchLoss:
    """The recipe's loss over a whole batch, the mean over the nested dimensions and all; both sentences go through the
    same g (a Siamese bi-encoder)."""
    targets_N = unit_ratings(torch.tensor(train.ratings))
    shape = recipe.projector(train.dim)
    dims = (*shape.nested, shape.output_dim)

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        device = next(module.parameters()).device
        index_B2 = train.pair_index[shard(batch)]
        x_2BD = torch.from_numpy(train.vectors[index_B2.T.reshape(-1)]).to(device)  # indexing copies
        first_BK, second_BK = module(x_2BD).chunk(2) if len(index_B2) else (module(x_2BD),) * 2
        cosines_BM = gather(nested_cosines(first_BK, second_BK, dims), len(batch))
        return nested_loss(cosines_BM, targets_N[batch].to(device), recipe.loss)

    return of_batch


def projector_evaluation(validation: PairVectors, nested: Sequence[int] = ()) -> Evaluation:
    """The `nested_correlations` of g's vectors."""

    def evaluate(module: nn.Module) -> dict[str, float]:
        vectors_PK = project(module, validation.vectors)
        return nested_correlations(vectors_PK, validation.pair_index, validation.ratings, nested)

    return evaluate


def best_projector(state: FitState, config: ProjectorConfig) -> Projector:
    """g with the weights of its best epoch, in evaluation mode."""
    projector = Projector(config)
    projector.load_state_dict(state.best)
    return projector.eval()
