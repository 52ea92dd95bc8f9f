"""The training job of CASE: embed the rated pairs once, fit g, save a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch

from raycase.data.fetch import is_trained
from raycase.data.provenance import provenance
from raycase.encoder.prompt_flags import PromptFlags, prompt_file, read_prompt
from raycase.errors import RequestError
from raycase.systems.baselines import BiEncoderConfig
from raycase.systems.case import CaseConfig, write_case_folder
from raycase.systems.case import resolve as resolve_case
from raycase.systems.contracts import PairVectors, pair_vectors
from raycase.systems.lora import LoraConfig
from raycase.systems.registry import resolve
from raycase.training.checkpoint import Fitting
from raycase.training.job import TrainingJob, data_metrics, fit_metrics
from raycase.training.loop import FitState
from raycase.training.projector_fit import (
    RECIPE_FIELDS,
    ProjectorRecipe,
    best_projector,
    fit_projector,
    projector_evaluation,
)
from raycase.training.runner import TextEmbedder


@dataclass(frozen=True, kw_only=True)
class ProjectorJob(PromptFlags, ProjectorRecipe, TrainingJob):
    """Fit a projector on a frozen encoder by eq. 2 (CASE, section 3.2) and save a model folder.

    A run that was stopped resumes automatically when the same command is run again.
    """

    SYSTEM = "case"
    FROZEN = True
    SHARED_BY = "prompt"
    swept: ClassVar[Sequence[str]] = (*(name for name in RECIPE_FIELDS if name != "nested"), "prompt")

    @property
    def recipe(self) -> ProjectorRecipe:
        """Everything that determines g besides the data and the seed."""
        return ProjectorRecipe.of(self)

    def config(self) -> CaseConfig:
        """The system without g: zero-shot CASE, or the encoder of a fine-tuned bi-encoder. Raises RequestError."""
        if not is_trained(self.model):
            return resolve_case(self.model, **self.text_choices, subtract=self.subtract)
        system = resolve(self.model, **self.prompt_choices | {"subtract": None})
        if not isinstance(system, (BiEncoderConfig, LoraConfig)):
            raise RequestError(
                f"--model: expected an encoder without projector, or a fine-tuned bi-encoder, got the trained model "
                f"{self.model}"
            )
        return CaseConfig(model=self.model, encoder=system.encoder, subtract=bool(self.subtract))

    def check_flags(self) -> None:
        """Raise RequestError for flags out of their range."""
        self.recipe.check()
        read_prompt(self.prompt)

    def check_system(self, config: CaseConfig) -> None:
        """Raise RequestError for nested dimensions above those of g, which the system decides."""
        self.recipe.projector(config.views_dim)

    def identity(self, config: CaseConfig, parts: Sequence[Any]) -> dict[str, Any]:
        """Everything that determines the weights."""
        recipe = self.recipe.record | {"dropout": self.recipe.dropout_share}
        return super().identity(config, parts) | {"recipe": recipe}

    def shared(self, config: CaseConfig, parts: Sequence[Any], runner: TextEmbedder) -> list[PairVectors]:
        """The vectors before g."""
        cached: dict[str, Any] = {"cache": self.cache_location, "compute": self.compute}
        return [pair_vectors(rated, config, runner.vectors_of, **cached) for rated in parts]

    def fitting(self, *, on_gpu: bool) -> Fitting:
        """The fit of g."""
        return fit_projector

    def save(
        self,
        config: CaseConfig,
        parts: dict[str, Any],
        data: tuple[PairVectors, PairVectors],
        fitted: FitState,
        record: dict[str, Any],
    ) -> dict[str, Any]:
        """Write the model folder of a fit; returns the contents of `metrics.json`."""
        _, validation = data
        shape = self.recipe.projector(validation.dim)
        metrics = {
            **record,
            **fit_metrics(fitted),
            "zero_shot": projector_evaluation(validation)(torch.nn.Identity()),
            "data": data_metrics(parts),
            "recipe": self.recipe.record | {"dim": shape.output_dim, "dropout": shape.dropout},
            "provenance": provenance(),
        }
        g = best_projector(fitted, shape)
        write_case_folder(self.folder, replace(config, projector=shape), g, metrics)
        return metrics

    def named(self, config: CaseConfig) -> Self:
        """This job with the prompt and the subtraction of the system, and the pooling that its template implies."""
        if is_trained(self.model):
            return self
        if prompt_file(self.prompt):
            return replace(self, subtract=config.subtract, pooling=config.encoder.pooling[0])
        return replace(self, prompt=config.encoder.prompt, subtract=config.subtract)

    def settings(self) -> dict[str, Any]:
        """Without the width of no hidden layer, a linear g's activation, and where no dropout is."""
        values = self.recipe.record | {"prompt": self.prompt, "dropout": self.recipe.dropout_share}
        if not values["dropout"]:
            values.pop("dropout_at", None)
        if self.layers < 2:
            del values["hidden"]
        if self.layers == 0:
            del values["activation"]
        return values

    def derived(self, input_dim: int) -> dict[str, Any]:
        """The dimension and the dropout of g."""
        if not input_dim:
            return {}
        return {"dim": self.recipe.projector(input_dim).output_dim, "dropout": self.recipe.dropout_share}
