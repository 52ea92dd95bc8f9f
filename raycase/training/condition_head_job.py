"""The training job of condition pooling: embed each sentence and condition once, fit the head, save a model folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.commands.flags import Advanced, Hidden
from raycase.errors import RequestError, WorkError, at_least
from raycase.heads.condition_head import ConditionHead, HeadConfig, ZeroShotHead
from raycase.heads.layers import MOST_WIDTH
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.model_files import model_folder
from raycase.io.places import Paths
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.io.storage import Location, fingerprint
from raycase.io.vectors import cosines
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.model_card import head_card
from raycase.models.model_folder import write_folder
from raycase.models.pairs import Indexed, check_room
from raycase.models.registry import resolve
from raycase.names import Activation, Loss, Pooling
from raycase.training.condition_head_fit import (
    HeadCosine,
    head_batches,
    head_correlations,
    head_loss,
    head_vectors,
    with_stated,
    with_unconditional_part,
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
from raycase.training.job import SHARE, Ranges, TrainFlags, fit_metrics
from raycase.training.loop import FitState, fit
from raycase.training.losses import nested_range
from raycase.training.trainer import Trainer
from raycase.training.vector_cache import VectorCache

MOST_NUMBER = 2**40  # of a distance: its products fit into float32
LEAST_DIM = 512  # of the vectors, by default
DISTILLED_EPOCHS = 12  # of the fit with teachers (`results/condition_pooling.md`)


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingFlags(TrainFlags):
    """Condition pooling: fit the head that lets a condition weigh a sentence's words, on a frozen encoder.

    The trials of a sweep are fits without teachers.
    """

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
    layers: Advanced[tuple[float, ...]] = (2 / 3, 1.0)
    """Layers that the head reads, as fractions of the encoder's depth: 0 input of the first, 1 output of the last."""
    heads: Advanced[int] = 8
    """Number of attention distributions that are mixed."""
    head_dim: Advanced[int] = 64
    """Dimension of the queries and keys of each."""
    dim: Advanced[int | None] = None
    """Dimension of the vectors. Default: 512, or that of the encoder's states if larger."""
    activation: Advanced[Activation | None] = None
    """Non-linearity of the words' values. Default: none; they then start as the states of the last layer."""
    dropout: Advanced[float] = 0.3
    """Dropout on the states of words and conditions."""
    gate: Hidden[bool] = True
    """Whether the condition gates the dimensions of the vector."""
    nested: Advanced[tuple[int, ...]] = ()
    """Also train the first N dimensions, for each N given, so that vectors can be cut to them."""
    loss: Advanced[Loss] = Loss.SQUARED
    """squared is the mean squared error; pearson one minus the correlation over the batch."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW."""
    batch_size: int = 256
    """Rated pairs per step, over all workers."""
    epochs: int = 5
    """Number of epochs, over which the learning rate falls to 0."""
    teachers: int = 0
    """Number of heads to fit first, with the next seeds. The final head also learns their mean scores for the same
    sentences under other conditions."""
    unconditional_share: Advanced[float] = 0.5
    """Share of the unconditional vector in the vectors of sentences unlike the training data; 0: none."""
    unconditional_rise: Advanced[tuple[float, float, float, float]] = (1.4, 2.0, 3.2, 4.0)
    """Four distances of a sentence from the training data, in units of a typical sentence's. The share starts at the
    first, is full at the second, rises again from the third, and is all from the fourth."""

    pooling: Advanced[Pooling | None] = None
    """Pooling of the vectors without a condition. Default: the encoder's."""
    teacher_models: tuple[str, ...] = ()
    """Trained models that read conditions, such as fine-tuned ones: the head learns the mean of their scores
    and those of the --teachers heads, with equal weight."""

    SYSTEM = "condition-pooling"
    RECIPE = (
        *TrainFlags.RECIPE, "layers", "heads", "head_dim", "dim", "activation", "dropout", "gate", "nested", "loss",
        "teachers", "unconditional_share", "unconditional_rise",
    )  # fmt: skip
    PATIENCE = 5
    WEIGHT_DECAY = 0.01
    WARMUP = 0.1
    FROZEN = True
    SHARED_BY = ("layers", "model", "compute")
    NOT_SWEPT = ("nested", "teachers", "teacher_models", "unconditional_share", "unconditional_rise", "pooling")

    @property
    def ranges(self) -> Ranges:
        a, b, c, d = self.unconditional_rise
        return super().ranges | {
            **at_least(1, self, "heads", "dim", most=MOST_WIDTH),
            **at_least(1, self, "head_dim", most=MOST_WIDTH // max(1, self.heads)),
            "dropout": (0 <= self.dropout < 1, SHARE),
            "nested": nested_range(self.nested, self.dim or LEAST_DIM),
            **at_least(0, self, "teachers"),
            "unconditional_share": (0 <= self.unconditional_share < 1, SHARE),
            "unconditional_rise": (0 <= a < b <= MOST_NUMBER and 0 <= c < d <= MOST_NUMBER, "two pairs that rise"),
        }

    def head(self, states_dim: int) -> HeadConfig:
        """The shape of the head for states of this dimension."""
        return HeadConfig(
            states_dim=states_dim,
            heads=self.heads,
            head_dim=self.head_dim,
            output_dim=self.dim or max(LEAST_DIM, states_dim // len(self.layers)),
            activation=self.activation,
            dropout=self.dropout,
            gate=self.gate,
            nested=tuple(sorted(set(self.nested))),
        )

    def config(self) -> ConditionPoolingConfig:
        return ConditionPoolingConfig.untrained(self.model, self.pooling, self.layers)

    @property
    def opens(self) -> Paths:
        folders = [folder for model in self.teacher_models if (folder := model_folder(model))]
        return {**super().opens, "--teacher-models": folders}

    def identity(self, config: ConditionPoolingConfig, parts: Sequence[Any]) -> dict[str, Any]:
        teachers = {model: resolve(model) for model in self.teacher_models}
        for model, teacher in teachers.items():
            if not teacher.folder or teacher.known_conditions is not None:
                raise RequestError(f"--teacher-models: expected trained models that read conditions, got {model}")
        described = [teachers[model].describe() for model in self.teacher_models]  # one given twice counts twice
        return super().identity(config, parts) | ({"teacher_models": described} if described else {})

    @property
    def reads(self) -> dict[str, Any]:
        rated = {"--train": self.train or None, "--validation": self.validation or None}
        return super().reads | rated | {"--labelled": self.labelled, "--labels": self.labels}

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
        """Rated pairs with states of their sentences and conditions. Raises RequestError for a text without any, and
        for two conditions of a table that the encoder reads alike."""
        for table in parts[2:]:
            check_room(config, [word for column in table.columns for word in column.conditions], "--labelled")
        states_of = partial(vectors.states_of, cache=self.cache_location, compute=self.compute)
        found = []
        for rated in parts[:2]:
            sentences, conditions = indexed_texts(rated)
            sentence_states, unconditional = states_of(sentences.values, config, name=rated.uri)
            condition_states, _ = states_of(conditions.values, config, name=f"conditions of {rated.uri}")
            pairs = PairStates(
                sentences=sentence_states,
                unconditional=unconditional,
                conditions=condition_states.means,
                sentence_index=sentences.codes.reshape(2, -1).T,
                condition_index=conditions.codes,
                groups=rated.groups,
                ratings=rated.ratings,
                epochs=rated.epochs,
            )
            found.append(pairs)
        return found

    def fit_epochs(
        self,
        config: Any,
        train: PairStates,
        validation: PairStates,
        *,
        on_gpu: bool = False,
        pseudo_labelled: PairIndex | None = None,
        **how: Any,
    ) -> Iterator[FitState]:
        """`fit` the head; `how`: its state and wrap. Pairs labelled -1 are not trained on.

        pseudo_labelled: further pairs of the training sentences, rated by teachers (`condition_pairs`).
        """
        torch.manual_seed(self.seed)
        head = ConditionHead(self.head(train.dim))
        if self.activation is None:
            head.start_from_states(train.dim // len(self.layers))
        rated = train.rated[train.ratings[train.rated] != NOT_APPLICABLE]
        more = 0 if pseudo_labelled is None else len(pseudo_labelled.ratings)
        return fit(
            HeadCosine(head),
            partial(head_batches, train, rated, self.batch_size, self.seed, more),
            head_loss(train, self.loss, pseudo_labelled),
            lambda module: head_correlations(module.head, validation, head.config.nested),
            **self.loop | ({"patience": self.epochs} if more else {}),
            **how,
        )

    def fit_all(
        self,
        config: ConditionPoolingConfig,
        parts: Sequence[Any],
        data: tuple[PairStates, PairStates],
        trainer: Trainer,
        checkpoints: Location,
    ) -> list[FitState]:
        """The last states of the fits of its teachers, then of its own."""
        train, _ = data
        own: dict[str, Any] = {"checkpoints": checkpoints}
        last, teachers = self, []
        if self.teachers or self.teacher_models:
            rated = train.take(train.rated)
            further = further_pairs(rated, self.seed, FURTHER_OF_MODELS if self.teacher_models else FURTHER)
            scores = [
                self._scores_by_model(model, parts[0], rated, further, trainer.vectors) for model in self.teacher_models
            ]
            for seed in range(self.seed + 1, self.seed + 1 + self.teachers):
                teachers.append(trainer.fit(replace(self, seed=seed), config, *data, **own))
                head = best_head(teachers[-1], self.head(train.dim))
                scores.append(cosines(*head_vectors(head, replace(rated, **vars(further)))))
            last = replace(self, epochs=DISTILLED_EPOCHS)
            own["pseudo_labelled"] = pseudo_labelled_pairs(further, scores)
        return [*teachers, trainer.fit(last, config, *data, **own)]

    def _scores_by_model(
        self, model: str, rated: RatedPairs, train: PairStates, further: PairIndex, vectors: VectorCache
    ) -> np.ndarray:
        """The scores by a trained model of the further pairs, on the scale of ratings: (N,)."""
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
        best = best_head(state, self.head(config.states_dim))  # rounded: metrics are those of what is saved
        familiar = train.take(train.rated if len(train.rated) else np.flatnonzero(train.epochs == 1))
        head = with_unconditional_part(
            best, familiar, validation, config, self.unconditional_share, self.unconditional_rise
        )
        head, stated = with_stated(head, train, self.seed)
        metrics = {
            **record,
            "teachers": [fit_metrics(teacher)["validation"] for teacher in teachers],
            "teacher_models": [
                {"name": Path(model).name, "fingerprint": fingerprint(resolve(model).describe())}
                for model in self.teacher_models
            ],
            **fit_metrics(state),
            "without_unconditional_part": head_correlations(best, validation, best.config.nested),
            "validation": head_correlations(head, validation, head.config.nested),
            **({"stated": stated} if stated else {}),
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


def best_head(state: FitState, config: HeadConfig) -> ConditionHead:
    """The head with the weights of its best epoch, rounded to float16 as they are saved, in evaluation mode.

    Raises WorkError for weights that float16 cannot hold.
    """
    head = ConditionHead(config)
    rounded = {name.removeprefix("head."): tensor.half().float() for name, tensor in state.best.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in rounded.values()):
        raise WorkError("expected weights that float16 can hold, got larger ones; lower the learning rate")
    head.load_state_dict(rounded)
    return head.eval()
