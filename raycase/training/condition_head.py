"""Fitting the head of condition pooling above a frozen encoder, on rated pairs and batches of labelled texts; then its
unconditional part, and whether a text states anything of a condition.

Shapes: K texts, each under a condition, N pairs, D vectors, M dimensions: the nested ones and all; S sentences, W of
the states, P of f(s), F features of `StatedHead`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.loading import bf16_is_faster
from raycase.errors import WorkError
from raycase.evaluation.metrics import auc, calibration_error
from raycase.heads.condition_head import ConditionHead, HeadConfig, StatedHead, ZeroShotHead
from raycase.io.labelled_texts import LabelledTexts, labels_of, read_labelled
from raycase.io.rated_pairs import NOT_APPLICABLE, RatedPairs, read_rated
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import check_room
from raycase.models.model_folder import write_folder
from raycase.models.pairs import Indexed
from raycase.training.head_states import (
    PairStates,
    States,
    Under,
    all_vectors,
    head_correlations,
    head_vectors,
)
from raycase.training.label_batches import (
    ColumnIndex,
    LabelBatch,
    label_batches,
    parted,
    stated_texts,
    validation_pairs,
)
from raycase.training.loop import FitState, Learner, computed_rows, gather
from raycase.training.procedure import Fit, Training, fit_metrics, head_card, read_rated_parts
from raycase.training.recipe import LOSSES, Loss, Recipe, unit_ratings
from raycase.training.vector_cache import VectorCache

LEAST_BATCHES = 256  # of an epoch where there are labelled texts


@dataclass(frozen=True, kw_only=True)
class HeadData:
    """What a head is trained on; the columns are of the same states as the rated pairs."""

    rated: PairStates  # may be none
    columns: list[ColumnIndex]

    @property
    def states(self) -> States:
        return self.rated.states

    @property
    def familiar(self) -> Under:
        """The texts that the head knows well: those of rated pairs, or else of the columns."""
        if len(self.rated):
            return self.rated.under()
        texts = [column.texts for column in self.columns]
        of = [np.full(len(column.texts), column.wordings[0]) for column in self.columns]
        return np.concatenate(texts), np.concatenate(of)


class HeadBatch:
    """K texts, each under a condition: both of some rated pairs, then those of a batch of labelled texts."""

    def __init__(self, rated: PairStates, rows: np.ndarray, labelled: LabelBatch | None) -> None:
        sentences, conditions = rated.under(rows)
        self.ratings = rated.ratings[rows]
        self.labelled = labelled
        if labelled:
            sentences = np.concatenate([sentences, labelled.texts])
            conditions = np.append(conditions, np.full(len(labelled.texts), labelled.condition))
        self.under = sentences, conditions

    def __len__(self) -> int:
        return len(self.under[0])


class HeadVectors(nn.Module):
    """The head's vectors of texts, each under a condition."""

    def __init__(self, head: ConditionHead, states: States, *, bf16: bool = False) -> None:
        super().__init__()
        self.head = head
        self.states = states
        self.bf16 = bf16

    def forward(self, under: Under) -> Tensor:
        return head_vectors(self.head, self.states, under, bf16=self.bf16)


def head_batches(data: HeadData, batch_size: int, seed: int, epoch: int) -> list[HeadBatch]:
    """An order that seed and epoch determine: each pair to which its condition applies, those of the same two sentences
    together, whose tokens are read once; and with each batch of them one of labelled texts, if there are any. Where
    the pairs make less than `LEAST_BATCHES`, they come again and again."""
    rated, random = data.rated, np.random.default_rng([seed, epoch])
    rows = np.flatnonzero(rated.ratings != NOT_APPLICABLE)
    key = random.permutation(int(rated.groups.max(initial=0)) + 1)
    rows = rows[np.argsort(key[rated.groups[rows]], kind="stable")]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    labelled: list[LabelBatch | None] = [*label_batches(data.columns, max(LEAST_BATCHES, len(batches)), seed, epoch)]
    count = len(labelled) or len(batches)
    return [
        HeadBatch(rated, batches[i % len(batches)] if batches else rows, labelled[i] if labelled else None)
        for i in range(count)
    ]


def head_loss(loss: Loss, dims: Sequence[int], module: nn.Module, batch: HeadBatch) -> Tensor:
    """The loss of the rated pairs of a batch, plus the weighted squared errors of the pairs of its labelled texts, the
    mean over the nested dimensions and all."""
    rows, count = computed_rows(np.arange(len(batch)))
    vectors_KD = gather(module((batch.under[0][rows], batch.under[1][rows]))[:count], len(batch))
    targets_N = unit_ratings(torch.from_numpy(batch.ratings)).to(vectors_KD.device)
    found = vectors_KD.new_zeros(())
    for dim in dims:
        unit_KD = F.normalize(vectors_KD[:, :dim], dim=-1)
        firsts_ND, seconds_ND = unit_KD[: 2 * len(targets_N)].chunk(2)
        if len(targets_N):
            found = found + LOSSES[loss]((firsts_ND * seconds_ND).sum(1), targets_N)
        if labelled := batch.labelled:
            unit_BD = unit_KD[2 * len(targets_N) :]
            cosines_P = (unit_BD @ unit_BD.T)[tuple(torch.from_numpy(labelled.pairs.T).to(unit_BD.device))]
            targets_P, weights_P = (torch.from_numpy(part).to(unit_BD.device) for part in labelled[-2:])
            found = found + (weights_P * (cosines_P - targets_P).square()).sum()
    return found / len(dims)


@dataclass(frozen=True, kw_only=True)
class HeadTraining(Training):
    """The head of condition pooling, on a frozen encoder.

    labelled, labels: tables of labelled texts and their JSON; shape: gives that of the head for states of a dimension,
    which are those of so many `layers` side by side. unconditional_share, unconditional_rise: of
    `with_unconditional_part`.
    """

    labelled: tuple[str, ...]
    labels: tuple[str, ...]
    shape: Callable[[int], HeadConfig]
    layers: int
    loss: Loss
    unconditional_share: float
    unconditional_rise: tuple[float, float, float, float]
    bf16: bool = False  # products of the head's fit are in bfloat16

    def on(self, *, gpu: bool) -> Self:
        """With bfloat16 where it is faster, unless `compute` is float32."""
        device = torch.device("cuda" if gpu else "cpu")
        return replace(self, bf16=self.compute != "float32" and bf16_is_faster(device))

    def read(self) -> tuple[Any, ...]:
        """Rated pairs to train on, perhaps none; pairs to validate with; and the labelled texts."""
        read = zip(self.labelled, labels_of(self.labelled, self.labels), strict=True)
        tables = [read_labelled(uri, labels, "--labelled") for uri, labels in read]
        if self.train:
            return *read_rated_parts(self.train, self.validation), *tables
        if self.validation:
            validation = read_rated(self.validation, "--validation")
        else:
            taught, left = zip(*(parted(table, self.recipe.seed) for table in tables), strict=True)
            validation_pairs(taught, self.recipe.seed)  # which refuses texts of one label: nothing is learned from them
            validation = validation_pairs(left, self.recipe.seed)
        return validation.take(np.arange(0)), validation, *tables

    def share(self, parts: Sequence[Any], vectors: VectorCache) -> tuple[HeadData, PairStates]:
        """The states of all texts, and what they teach."""
        rated, validation, *tables = parts
        for table in tables:
            check_room(self.config, [word for column in table.columns for word in column.conditions], "--labelled")
        if not (self.train or self.validation):  # then a fifth of the texts validates
            tables = [parted(table, self.recipe.seed)[0] for table in tables]
        cached: dict[str, Any] = {"cache": self.cache, "compute": self.compute}
        others = PairStates.of(validation, self.config, vectors, **cached)
        return head_data(rated, tables, self.config, vectors, **cached), others

    def learner(self, recipe: Recipe, train: HeadData, validation: PairStates) -> Learner:
        """The head. Pairs labelled -1 are not trained on."""
        torch.manual_seed(recipe.seed)
        head = ConditionHead(self.shape(train.states.dim))
        if head.config.activation is None:
            head.start_from_states(train.states.dim // self.layers)
        return Learner(
            HeadVectors(head, train.states, bf16=self.bf16),
            partial(head_batches, train, recipe.batch_size, recipe.seed),
            partial(head_loss, self.loss, (*head.config.nested, head.output_dim)),
            lambda module: head_correlations(module.head, validation, head.config.nested),
        )

    def fit_all(self, fit: Fit, parts: Sequence[Any], data: tuple[Any, Any], vectors: VectorCache) -> FitState:
        """The last state. With rated pairs and labelled texts the last epoch counts as the best one, where the learning
        rate is 0: validation pairs know nothing of the columns."""
        if not (self.train and self.labelled):
            return fit(self.recipe, self.learner, *data)
        state = fit(replace(self.recipe, patience=self.recipe.epochs), self.learner, *data)
        return replace(state, best=state.weights, select="epoch")

    def save(
        self, folder: Path, data: tuple[HeadData, PairStates], fitted: FitState, record: dict[str, Any]
    ) -> dict[str, Any]:
        train, validation = data
        config = self.config
        best = best_head(fitted, self.shape(config.states_dim))  # rounded: metrics are those of what is saved
        head = with_unconditional_part(
            best, train, validation, config, self.unconditional_share, self.unconditional_rise
        )
        head, stated = with_stated(head, train, self.recipe.seed)
        metrics = {
            **record,
            **fit_metrics(fitted),
            "without_unconditional_part": head_correlations(best, validation, best.config.nested),
            "validation": head_correlations(head, validation, head.config.nested),
            **({"stated": stated} if stated else {}),
            "zero_shot": head_correlations(ZeroShotHead(config.hidden_dim), validation),
            "parameters": sum(weights.numel() for weights in fitted.weights.values()),
        }
        trained = replace(config, head=head.config)
        write_folder(folder, trained, head.half(), metrics, head_card(folder.name, trained, metrics))
        return metrics


def head_data(
    rated: RatedPairs,
    tables: Sequence[LabelledTexts],
    config: ConditionPoolingConfig,
    vectors: VectorCache,
    **cached: Any,
) -> HeadData:
    """Rated pairs and labelled texts, with the states of all texts. cached: as `VectorCache.states_of` takes it."""
    columns = [(column, table.texts) for table in tables for column in table.columns if any(column.labels)]
    texts, conditions = [*rated.sentences1, *rated.sentences2], [*rated.conditions]
    for column, of in columns:
        texts += [*of, *(answer for phrases in column.answers.values() for answer in phrases)]
        conditions += column.conditions
    text, condition = Indexed.of(texts), Indexed.of(conditions)
    states = States.of(text.values, condition.values, config, vectors, name=rated.uri, **cached)
    count = len(rated)
    pairs = PairStates.indexed(rated, states, text.codes[: 2 * count], condition.codes[:count])
    places = [{value: i for i, value in enumerate(of.values)} for of in (text, condition)]
    return HeadData(rated=pairs, columns=[ColumnIndex.of(column, of, *places) for column, of in columns])


def best_head(state: FitState, config: HeadConfig) -> ConditionHead:
    """The head with the weights of its best epoch, rounded to float16 as they are saved, in evaluation mode."""
    head = ConditionHead(config)
    rounded = {name.removeprefix("head."): tensor.half().float() for name, tensor in state.best.items()}
    if not all(bool(tensor.isfinite().all()) for tensor in rounded.values()):
        raise WorkError("expected weights that float16 can hold, got larger ones; lower the learning rate")
    head.load_state_dict(rounded)
    return head.eval()


# -------------------------------------------------------------------------------------- parts that are fitted last


@torch.no_grad()
def with_unconditional_part(
    head: ConditionHead,
    train: HeadData,
    validation: PairStates,
    system: ConditionPoolingConfig,
    share: float,
    rise: tuple[float, float, float, float],
) -> ConditionHead:
    """The head with its unconditional part, for sentences unlike those that trained it, in float16 as it is saved;
    itself where the share is 0. rise: distances, as `--unconditional-rise` has them."""
    if not share:
        return head
    names = ("unconditional_from", "unconditional_to", "unconditional_alone_from", "unconditional_alone_to")
    shape: dict[str, Any] = dict(zip(names, rise, strict=True)) | {"unconditional_share": share}
    shape |= {"unconditional_dim": system.hidden_dim, "unconditional_vector_dim": system.unconditional_dim}
    whole = _extended(head, **shape)
    part = whole.unconditional
    assert part is not None

    def texts(states: States, sentences: np.ndarray) -> tuple[Tensor, Tensor]:
        """m and f of each distinct one of these sentences: (S, W), (S, P)."""
        read = states.parts(np.unique(sentences))
        means, own = zip(*((part.means(s, real).cpu(), own.cpu()) for _, s, real, own in read), strict=True)
        return torch.cat(means), torch.cat(own)

    known, asked = texts(train.states, train.familiar[0]), texts(validation.states, validation.sentence_index)
    part.fit(*known, asked[0], all_vectors(head, train.states, train.familiar))
    return whole.half().float().eval()


def _extended(head: ConditionHead, **shape: Any) -> ConditionHead:
    """The head with its weights in a larger shape; what is new is random."""
    whole = ConditionHead(replace(head.config, **shape))
    whole.load_state_dict(head.state_dict(), strict=False)
    return whole


# ------------------------------------------------------------------------------- whether a text states something

EPOCHS, LEAST_STEPS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 12, 300, 512, 1e-3, 0.1, 0.3
LEFT = 5  # one text in so many calibrates, and is not trained on


def with_stated(head: ConditionHead, train: HeadData, seed: int) -> tuple[ConditionHead, dict[str, float]]:
    """The head with `StatedHead`, in float16 as it is saved, and its figures on texts left out, on which its log-odds
    are calibrated (Platt, 1999, with his targets); itself where each text states something of each condition."""
    texts, conditions, stated_K = stated_texts(train.columns, seed)
    if not len(texts):
        return head, {}
    torch.manual_seed(seed)
    whole = _extended(head, stated=True).eval()
    stated = whole.stated
    assert stated is not None
    features_KF = all_vectors(whole, train.states, (texts, conditions), whole.stated_features)
    truth_K, left_K = torch.from_numpy(stated_K), torch.from_numpy(texts % LEFT == 0)
    _fit_stated(stated, features_KF[~left_K], truth_K[~left_K])
    _calibrate_stated(stated, features_KF[left_K], truth_K[left_K])
    whole.half().float()  # `stated` with it
    with torch.inference_mode():
        probabilities = stated(features_KF[left_K]).sigmoid().numpy()
    truth = truth_K[left_K].numpy()
    error = calibration_error(probabilities, truth)
    return whole, {"auc": 100 * auc(probabilities, truth), "calibration_error": error, "texts": len(truth)}


def _fit_stated(head: StatedHead, features_NF: Tensor, stated_N: Tensor) -> None:
    optimizer = torch.optim.AdamW(head.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    for _ in range(max(EPOCHS, LEAST_STEPS // -(-len(stated_N) // BATCH_SIZE))):
        for rows in torch.randperm(len(stated_N)).split(BATCH_SIZE):
            optimizer.zero_grad()
            log_odds = head(F.dropout(features_NF[rows], DROPOUT))
            F.binary_cross_entropy_with_logits(log_odds, stated_N[rows]).backward()
            optimizer.step()


def _calibrate_stated(head: StatedHead, features_NF: Tensor, stated_N: Tensor) -> None:
    with torch.no_grad():
        log_odds_N = head(features_NF)
    ones = stated_N.sum()
    targets_N = torch.where(stated_N == 1, (ones + 1) / (ones + 2), 1 / (len(stated_N) - ones + 2))
    factor, offset = torch.ones((), requires_grad=True), torch.zeros((), requires_grad=True)
    optimizer = torch.optim.LBFGS([factor, offset], max_iter=100)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(factor * log_odds_N + offset, targets_N)
        loss.backward()
        return loss

    optimizer.step(closure)
    last: Any = head.net[-1]
    with torch.no_grad():
        last.weight.mul_(factor)
        last.bias.mul_(factor).add_(offset)
