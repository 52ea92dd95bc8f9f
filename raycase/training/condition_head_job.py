"""The training job of condition pooling: embed each sentence and condition once, fit the head, save a model folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from raycase.encoder.pooling import Pooling
from raycase.errors import RequestError, WorkError
from raycase.heads.condition_head import ConditionHead, ZeroShotHead
from raycase.io.fetch import model_folder
from raycase.io.labelled import labels_of, read_labelled
from raycase.io.places import Paths
from raycase.io.rated import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.io.storage import Location, fingerprint
from raycase.io.vectors import cosines
from raycase.job.vector_cache import VectorCache
from raycase.models.condition_pooling import ConditionPoolingConfig, condition_pooling
from raycase.models.model_card import head_card
from raycase.models.model_folder import write_folder
from raycase.models.pairs import Indexed
from raycase.models.registry import resolve
from raycase.training.condition_head_fit import (
    fit_condition_head,
    head_correlations,
    head_vectors,
    with_plain_part,
    with_says,
)
from raycase.training.condition_pairs import (
    FURTHER,
    FURTHER_OF_MODELS,
    PairIndex,
    PairStates,
    further_pairs,
    on_the_scale_of_ratings,
    parted,
    pseudo_labelled_pairs,
    with_pairs_of,
)
from raycase.training.job import TrainingJob, fit_metrics
from raycase.training.loop import FitState
from raycase.training.recipe import DISTILLED_EPOCHS, HeadRecipe
from raycase.training.trainer import Fitting, Trainer


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingJob(HeadRecipe, TrainingJob):
    """Condition pooling: fit the head that lets a condition weigh a sentence's words, on a frozen encoder.

    The trials of a sweep are fits without teachers.
    """

    pooling: Pooling | None = None
    """Pooling of the vectors without a condition. Default: the encoder's."""
    teacher_models: tuple[str, ...] = ()
    """Trained models that read conditions, such as fine-tuned ones: the head learns the mean of their scores
    and those of the --teachers heads, with equal weight."""

    train: str = ""
    """Training pairs: .csv, .jsonl or .parquet with sentence1, sentence2, condition, label (1 to 5). Needed unless
    there is --labelled."""
    validation: str = ""
    """Validation pairs, which select the best epoch; never trained on. Default: drawn from a fifth of the labelled
    texts, which are then not trained on."""
    labelled: tuple[str, ...] = ()
    """Labelled texts: .csv, .jsonl or .parquet with a column `text` and one for each condition."""
    labels: tuple[str, ...] = ()
    """JSON files, each named after its table in --labelled: wordings, groups and answers (docs/training.md)."""

    SYSTEM = "condition-pooling"
    RECIPE = HeadRecipe
    FROZEN = True
    SHARED_BY = ("layers", "model", "compute")
    NOT_SWEPT = ("nested", "teachers", "teacher_models", "plain_share", "plain_rise", "pooling")

    def config(self) -> ConditionPoolingConfig:
        return condition_pooling(self.model, layers=self.layers, pooling=self.pooling)

    @property
    def opened(self) -> Paths:
        folders = [folder for model in self.teacher_models if (folder := model_folder(model))]
        return {**super().opened, "--teacher-models": folders}

    def identity(self, config: ConditionPoolingConfig, parts: Sequence[Any]) -> dict[str, Any]:
        teachers = {model: resolve(model) for model in self.teacher_models}
        for model, teacher in teachers.items():
            if not teacher.folder or teacher.known_conditions is not None:
                raise RequestError(f"--teacher-models: expected trained models that read conditions, got {model}")
        described = [teachers[model].describe() for model in self.teacher_models]  # one given twice counts twice
        return super().identity(config, parts) | ({"teacher_models": described} if described else {})

    @property
    def sources(self) -> dict[str, Any]:
        rated = {"--train": self.train or None, "--validation": self.validation or None}
        return super().sources | rated | {"--labelled": self.labelled, "--labels": self.labels}

    def check_flags(self) -> None:
        """Raise RequestError for flags out of their range, or without data."""
        super().check_flags()
        if not (self.train or self.labelled) or (self.train and not self.validation):
            raise RequestError("expected --train and --validation, or --labelled, or all three")
        if (self.teachers or self.teacher_models) and not self.train:
            raise RequestError("--train: expected rated pairs for --teachers and --teacher-models, got none")

    def read_parts(self) -> tuple[Any, ...]:
        """Rated pairs and those drawn from labelled texts to train on, rated pairs to validate with, and the labelled
        texts. Raises RequestError."""
        read = zip(self.labelled, labels_of(self.labelled, self.labels), strict=True)
        sets = [read_labelled(uri, labels, "--labelled") for uri, labels in read]
        if self.train:
            train, validation = super().read_parts()
            return with_pairs_of(train, sets, self.epochs, self.seed), validation, *sets
        if self.validation:
            return with_pairs_of(None, sets, self.epochs, self.seed), read_rated(self.validation, "--validation"), *sets
        taught, left = zip(*(parted(labelled, self.seed) for labelled in sets), strict=True)
        drawn = with_pairs_of(None, left, 1, self.seed)
        validation = replace(drawn, ratings=1 + 4 * drawn.ratings, drawn=None)
        return with_pairs_of(None, taught, self.epochs, self.seed), validation, *sets

    def shared(self, config: ConditionPoolingConfig, parts: Sequence[Any], vectors: VectorCache) -> list[PairStates]:
        """Rated pairs with states of their sentences and conditions. Raises RequestError for a text without any."""
        states_of = partial(vectors.states_of, cache=self.cache_location, compute=self.compute)
        found = []
        for rated in parts[:2]:
            sentences, conditions = indexed_texts(rated)
            sentence_states, plain = states_of(sentences.values, config, name=rated.uri)
            condition_states, _ = states_of(conditions.values, config, name=f"conditions of {rated.uri}")
            pairs = PairStates(
                sentences=sentence_states,
                plain=plain,
                conditions=condition_states.means,
                sentence_index=sentences.codes.reshape(2, -1).T,
                condition_index=conditions.codes,
                groups=rated.groups,
                ratings=rated.ratings,
                epochs=rated.epochs,
            )
            found.append(pairs)
        return found

    def fitting(self, *, on_gpu: bool) -> Fitting:
        return fit_condition_head

    def fit(
        self,
        config: ConditionPoolingConfig,
        parts: Sequence[Any],
        data: tuple[PairStates, PairStates],
        trainer: Trainer,
        checkpoints: Location,
    ) -> list[FitState]:
        """The last states of the fits of its teachers, then of its own."""
        train, validation = data
        fit = partial(trainer.fit, train=train, validation=validation)
        fitting, recipe = fit_condition_head, self.recipe
        teachers: list[FitState] = []
        if self.teachers or self.teacher_models:
            rated = train.take(train.rated)
            further = further_pairs(rated, self.seed, FURTHER_OF_MODELS if self.teacher_models else FURTHER)
            said = [
                self._said_by_model(model, parts[0], rated, further, trainer.vectors) for model in self.teacher_models
            ]
            for seed in range(self.seed + 1, self.seed + 1 + self.teachers):
                teachers.append(fit(fitting, recipe=recipe, seed=seed, checkpoints=checkpoints))
                vectors = head_vectors(best_head(teachers[-1], recipe, train.dim), replace(rated, **vars(further)))
                said.append(cosines(*vectors))
            fitting = partial(fitting, pseudo_labelled=pseudo_labelled_pairs(further, said))
            recipe = replace(recipe, epochs=DISTILLED_EPOCHS)
        return [*teachers, fit(fitting, recipe=recipe, seed=self.seed, checkpoints=checkpoints)]

    def _said_by_model(
        self, model: str, rated: RatedPairs, train: PairStates, further: PairIndex, vectors: VectorCache
    ) -> np.ndarray:
        """What a trained model says of the further pairs, on the scale of ratings: (N,)."""
        applies = train.ratings != NOT_APPLICABLE
        sentences, conditions = (indexed.values for indexed in indexed_texts(rated))
        both = train.then(further)
        index_N2, condition_N = both.sentence_index.tolist(), both.condition_index.tolist()
        rows = [(sentences[i], sentences[j], conditions[c]) for (i, j), c in zip(index_N2, condition_N, strict=True)]
        name = f"--teacher-models: sentences of {rated.uri} under its and further conditions"
        scores = vectors.scores_of(rows, model, name=name, cache=self.cache_location, compute=self.compute)
        of_rated, of_further = np.split(scores, [len(train.ratings)])
        return on_the_scale_of_ratings(of_further, of_rated[applies], train.ratings[applies])

    def save(
        self,
        config: ConditionPoolingConfig,
        data: tuple[PairStates, PairStates],
        fitted: list[FitState],
        record: dict[str, Any],
    ) -> dict[str, Any]:
        train, validation = data
        *teachers, state = fitted
        best = best_head(state, self.recipe, config.states_dim)  # rounded: metrics are those of what is saved
        familiar = train.take(train.rated if len(train.rated) else np.flatnonzero(train.epochs == 1))
        head = with_plain_part(best, familiar, validation, config, self.recipe)
        head, says = with_says(head, train, self.seed)
        metrics = {
            **record,
            "teachers": [fit_metrics(teacher)["validation"] for teacher in teachers],
            "teacher_models": [
                {"name": Path(model).name, "fingerprint": fingerprint(resolve(model).describe())}
                for model in self.teacher_models
            ],
            **fit_metrics(state),
            "without_plain_part": head_correlations(best, validation, best.config.nested),
            "validation": head_correlations(head, validation, head.config.nested),
            **({"says": says} if says else {}),
            "zero_shot": head_correlations(ZeroShotHead(config.hidden_dim), validation),
            "parameters": sum(weights.numel() for weights in state.weights.values()),
        }
        trained = replace(config, head=head.config)
        card = head_card(self.folder.name, trained, metrics)
        write_folder(self.folder, trained, head.half(), metrics, card)
        return metrics


def indexed_texts(rated: RatedPairs) -> tuple[Indexed, Indexed]:
    """The sentences of rated pairs, all first ones before all second ones, and their conditions."""
    return Indexed.of([*rated.sentences1, *rated.sentences2]), Indexed.of(rated.conditions)


def best_head(state: FitState, recipe: HeadRecipe, states_dim: int) -> ConditionHead:
    """The head with the weights of its best epoch, rounded to float16 as they are saved, in evaluation mode.

    Raises WorkError for weights that float16 cannot hold.
    """
    head = ConditionHead(recipe.head(states_dim))
    rounded = {name.removeprefix("head."): tensor.half().float() for name, tensor in state.best.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in rounded.values()):
        raise WorkError("expected weights that float16 can hold, got larger ones; lower the learning rate")
    head.load_state_dict(rounded)
    return head.eval()
