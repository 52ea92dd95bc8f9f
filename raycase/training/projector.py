"""Supervised projection learning (CASE, section 3.2): from the vectors of rated pairs to g.

Shapes: P distinct (sentence, condition), N rated pairs, B pairs of a batch, D dimensions of all views, K of g.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.model_files import is_trained
from raycase.errors import RequestError
from raycase.evaluation.metrics import nested_correlations
from raycase.heads.projector import Projector, ProjectorConfig, project
from raycase.io.rated_pairs import RatedPairs
from raycase.models.case import CaseConfig
from raycase.models.case import resolve as resolve_case
from raycase.models.configs import PromptEncoderConfig
from raycase.models.model_folder import write_folder
from raycase.models.pairs import PairVectors
from raycase.models.registry import resolve
from raycase.training.loop import FitState, Learner, computed_rows, epoch_batches, gather
from raycase.training.procedure import Training, case_card, fit_metrics
from raycase.training.recipe import Loss, Recipe, nested_cosines, nested_loss, unit_ratings
from raycase.training.vector_cache import VectorCache


def pair_loss(train: PairVectors, shape: ProjectorConfig, loss: Loss, module: nn.Module, batch: np.ndarray) -> Tensor:
    """The loss of g over a whole batch, the mean over the nested dimensions and all."""
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
class ProjectorTraining(Training):
    """A projector on a frozen encoder (CASE, section 3.2)."""

    shape: Callable[[int], ProjectorConfig]  # that of g for the dimension of its input
    loss: Loss

    def identity(self, parts: Sequence[Any]) -> dict[str, Any]:
        shape = self.shape(self.config.views_dim)  # whose dimensions bound the nested ones
        return super().identity(parts) | {"recipe": {**self.settings, "dropout": shape.dropout}}

    def share(self, parts: Sequence[RatedPairs], vectors: VectorCache) -> list[PairVectors]:
        cached: dict[str, Any] = {"cache": self.cache, "compute": self.compute}
        return [vectors.pair_vectors(rated, self.config, **cached) for rated in parts]

    def learner(self, recipe: Recipe, train: PairVectors, validation: PairVectors) -> Learner:
        """g by eq. 2. Pairs labelled -1 are not trained on."""
        train = train.applicable()
        torch.manual_seed(recipe.seed)
        shape = self.shape(train.dim)
        return Learner(
            Projector(shape),
            partial(epoch_batches, len(train.ratings), recipe.batch_size, recipe.seed),
            partial(pair_loss, train, shape, self.loss),
            lambda g: projector_correlations(g, validation, shape.nested),
        )

    def save(
        self, folder: Path, data: tuple[PairVectors, PairVectors], fitted: FitState, record: dict[str, Any]
    ) -> dict[str, Any]:
        _, validation = data
        shape = self.shape(validation.dim)
        metrics = {
            **record,
            **fit_metrics(fitted),
            "zero_shot": projector_correlations(nn.Identity(), validation),
            "recipe": {**self.settings, "dim": shape.output_dim, "dropout": shape.dropout},
        }
        trained, g = replace(self.config, projector=shape), best_projector(fitted, shape)
        write_folder(folder, trained, g, metrics, case_card(folder.name, trained, metrics))
        return metrics


def starting_system(
    model: str, text_choices: dict[str, Any], prompt: str | None, *, subtract: bool | None
) -> CaseConfig:
    """The system without g: zero-shot CASE, or the encoder of a fine-tuned bi-encoder. prompt: as a person gave it."""
    if not is_trained(model):
        return resolve_case(model, **text_choices, subtract=subtract)
    system = resolve(model, prompt=prompt, pooling=text_choices["pooling"])
    if not isinstance(system, PromptEncoderConfig) or system.known_conditions is not None:
        raise RequestError(
            f"--model: expected an encoder without projector, or a fine-tuned bi-encoder, got the trained model {model}"
        )
    return CaseConfig(name=model, encoder=system.encoder, subtract=bool(subtract))
