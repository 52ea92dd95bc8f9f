"""Supervised projection learning (CASE, section 3.2): from the vectors of rated pairs to g.

Shapes: P distinct (sentence, condition), N rated pairs, B pairs of a batch, D dimensions of all views, K of g.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from raycase.commands.flags import Advanced, PromptFlags
from raycase.encoder.prompts import read_prompt
from raycase.errors import RequestError, at_least, check_ranges
from raycase.heads.layers import MOST_WIDTH
from raycase.heads.projector import Projector, ProjectorConfig, project
from raycase.io.model_files import is_trained
from raycase.models.case import CaseConfig
from raycase.models.case import resolve as resolve_case
from raycase.models.configs import PromptEncoderConfig
from raycase.models.model_card import case_card
from raycase.models.model_folder import write_folder
from raycase.models.pairs import PairVectors
from raycase.models.registry import resolve
from raycase.names import Activation, DropoutAt, Loss
from raycase.training.job import SHARE, Ranges, TrainFlags, fit_metrics
from raycase.training.loop import FitState, computed_rows, epoch_batches, fit, gather
from raycase.training.losses import nested_correlations, nested_cosines, nested_loss, nested_range, unit_ratings
from raycase.training.vector_cache import VectorCache

OUTPUT_DIM, HIDDEN, DROPOUT = 512, 1024, 0.15


def pair_loss(train: PairVectors, shape: ProjectorConfig, loss: Loss, module: nn.Module, batch: np.ndarray) -> Tensor:
    """The loss of g over a whole batch, the mean over the nested dimensions and all; both sentences go through the same
    g (a Siamese bi-encoder)."""
    device = next(module.parameters()).device
    rows_b, count = computed_rows(batch)
    x_2bD = torch.from_numpy(train.vectors[train.pair_index[rows_b].T.reshape(-1)]).to(device)  # indexing copies
    first_bK, second_bK = module(x_2bD).chunk(2)
    cosines_bM = nested_cosines(first_bK, second_bK, (*shape.nested, shape.output_dim))
    targets_B = unit_ratings(torch.from_numpy(train.ratings[batch])).to(device)
    return nested_loss(gather(cosines_bM[:count], len(batch)), targets_B, loss)


def projector_correlations(g: nn.Module, pairs: PairVectors, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of g's vectors."""
    return nested_correlations(project(g, pairs.vectors), pairs.pair_index, pairs.ratings, nested)


def best_projector(state: FitState, config: ProjectorConfig) -> Projector:
    """g with the weights of its best epoch, in evaluation mode."""
    projector = Projector(config)
    projector.load_state_dict(state.best)
    return projector.eval()


@dataclass(frozen=True, kw_only=True)
class ProjectorFlags(PromptFlags, TrainFlags):
    """Fit a projector on a frozen encoder (CASE, section 3.2) and save a model folder.

    The defaults are the paper's, but vectors are no longer than their input.
    """

    dim: Advanced[int | None] = None
    """Output dimension of the projector. Default: 512, or its input dimension if that is smaller."""
    layers: Advanced[Literal[0, 1, 2]] = 1
    """0: linear; 1: linear and activation; 2: a hidden layer of 1,024 before them."""
    activation: Advanced[Activation] = "leaky_relu"
    """The non-linearity."""
    dropout: Advanced[float | None] = None
    """Dropout rate. Default: 0.15, and none for --layers 0."""
    dropout_at: Advanced[DropoutAt] = "output"
    """Dropout on the output of the projector, its input or both; between two layers in any case."""
    bias: Advanced[bool] = False
    """Linear layers with a bias; the paper has none."""
    nested: Advanced[tuple[int, ...]] = ()
    """Also train the first N dimensions, for each N given, so that vectors can be cut to them."""
    loss: Advanced[Loss] = Loss.SQUARED
    """squared: mean squared error (the paper's); pearson: one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    batch_size: int = 512
    """Rated pairs per step, over all workers."""
    epochs: int = 60
    """Maximum number of epochs."""

    SYSTEM = "case"
    RECIPE = (
        *TrainFlags.RECIPE, "dim", "layers", "activation", "dropout", "dropout_at", "bias", "nested", "loss",
    )  # fmt: skip
    PATIENCE = 10
    FROZEN = True
    SHARED_BY = ("prompt", "pooling", "subtract", "model", "compute")
    NOT_SWEPT = ("nested",)

    @property
    def ranges(self) -> Ranges:
        return super().ranges | {
            **at_least(1, self, "dim", most=MOST_WIDTH),
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
            hidden=HIDDEN,
            activation=self.activation,
            dropout=DROPOUT * (self.layers > 0) if self.dropout is None else self.dropout,
            dropout_at=self.dropout_at,
            bias=self.bias,
            nested=tuple(sorted(set(self.nested))),
        )

    def config(self) -> CaseConfig:
        """The system without g: zero-shot CASE, or the encoder of a fine-tuned bi-encoder. Raises RequestError."""
        if not is_trained(self.model):
            return resolve_case(self.model, **self.text_choices, subtract=self.subtract)
        system = resolve(self.model, **self.prompt_choices | {"subtract": None})
        if not isinstance(system, PromptEncoderConfig) or system.known_conditions is not None:
            raise RequestError(
                f"--model: expected an encoder without projector, or a fine-tuned bi-encoder, got the trained model "
                f"{self.model}"
            )
        return CaseConfig(model=self.model, encoder=system.encoder, subtract=bool(self.subtract))

    def check_flags(self) -> None:
        super().check_flags()
        read_prompt(self.prompt)

    def identity(self, config: CaseConfig, parts: Sequence[Any]) -> dict[str, Any]:
        shape = self.projector(config.views_dim)  # whose dimensions bound the nested ones
        recipe = self.recipe | {"dropout": shape.dropout}
        return super().identity(config, parts) | {"recipe": recipe}

    def shared(self, config: CaseConfig, parts: Sequence[Any], vectors: VectorCache) -> list[PairVectors]:
        cached: dict[str, Any] = {"cache": self.cache_location, "compute": self.compute}
        return [vectors.pair_vectors(rated, config, **cached) for rated in parts]

    def fit_epochs(
        self, config: Any, train: PairVectors, validation: PairVectors, *, on_gpu: bool = False, **how: Any
    ) -> Iterator[FitState]:
        """`fit` g by eq. 2 with a frozen encoder; `how`: its state and wrap. Pairs labelled -1 are not trained on."""
        train = train.applicable()
        torch.manual_seed(self.seed)
        shape = self.projector(train.dim)
        return fit(
            Projector(shape),
            partial(epoch_batches, len(train.ratings), self.batch_size, self.seed),
            partial(pair_loss, train, shape, self.loss),
            lambda g: projector_correlations(g, validation, shape.nested),
            **self.loop,
            **how,
        )

    def save(
        self, config: CaseConfig, data: tuple[PairVectors, PairVectors], fitted: FitState, record: dict[str, Any]
    ) -> dict[str, Any]:
        _, validation = data
        shape = self.projector(validation.dim)
        metrics = {
            **record,
            **fit_metrics(fitted),
            "zero_shot": projector_correlations(nn.Identity(), validation),
            "recipe": self.recipe | {"dim": shape.output_dim, "dropout": shape.dropout},
        }
        trained, g = replace(config, projector=shape), best_projector(fitted, shape)
        write_folder(self.folder, trained, g, metrics, case_card(self.folder.name, trained, metrics))
        return metrics
