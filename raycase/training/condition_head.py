"""Fitting the head of condition pooling above a frozen encoder, on rated pairs, on pairs drawn from labelled texts, and
on what teachers rate; then its unconditional part, and whether a text states anything of a condition.

Shapes: N pairs, or texts with a condition each, B pairs of a batch, R rated ones, D vectors, M dimensions: the nested
ones and all; S sentences, W of the states, P of f(s), F features of `StatedHead`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.errors import WorkError
from raycase.evaluation.metrics import auc, calibration_error
from raycase.heads.condition_head import ConditionHead, HeadConfig, StatedHead, ZeroShotHead
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.rated_pairs import NOT_APPLICABLE, read_rated
from raycase.io.storage import fingerprint
from raycase.io.vectors import cosines
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import check_room
from raycase.models.model_folder import write_folder
from raycase.models.registry import resolve
from raycase.training.head_pairs import (
    EVALUATED_AT_ONCE,
    FURTHER,
    FURTHER_OF_MODELS,
    HeadPairs,
    HeadTexts,
    PairIndex,
    PairStates,
    check_teachers,
    further_pairs,
    head_correlations,
    head_pair_vectors,
    head_vectors,
    pseudo_labelled_pairs,
    scores_by_model,
)
from raycase.training.labelled_pairs import check_drawn, drawn_pairs, parted, stated_texts
from raycase.training.loop import BatchLoss, FitState, Learner, computed_rows, gather
from raycase.training.procedure import Fit, Training, fit_metrics, head_card, read_rated_parts
from raycase.training.recipe import Loss, Recipe, nested_cosines, nested_loss, unit_ratings
from raycase.training.vector_cache import VectorCache

HeadStates = HeadPairs[PairStates]
DISTILLED_EPOCHS = 12  # of the fit with teachers (`results/condition_pooling.md`)
DISTILLED_WEIGHT = 4.0  # of the teachers' loss (`results/condition_pooling.md`)
DRAWN_ALONE = 512  # pairs of a batch where none are rated
MORE_CONDITIONS = 4  # further conditions of each pair of sentences of a batch


class HeadCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, at each of the nested dimensions and at the last."""

    def __init__(self, head: ConditionHead) -> None:
        super().__init__()
        self.head = head
        self.dims = (*head.config.nested, head.output_dim)

    def forward(self, pairs: PairStates, rows: np.ndarray) -> Tensor:
        """Cosines of these rated pairs: (B, M)."""
        first_BD, second_BD = head_pair_vectors(self.head, pairs, rows).chunk(2)
        return nested_cosines(first_BD, second_BD, self.dims)


def head_batches(
    train: HeadStates, rated: np.ndarray, batch_size: int, seed: int, pseudo_labelled: int, epoch: int
) -> list[np.ndarray]:
    """Rows of the rated pairs, the drawn ones and the pseudo-labelled ones, which follow each other, in an order that
    seed and epoch determine: the rows `rated` once, those of the same two sentences together, whose tokens are read
    once; for each of these, `MORE_CONDITIONS` of the `pseudo_labelled` pairs, which stand in the order of their groups;
    and a share of the epoch's drawn pairs, after the last epoch that has some those of the first again."""
    names, group_R = np.unique(train.rated.groups, return_inverse=True)
    each = pseudo_labelled // max(1, len(names))
    last = int(train.epochs.max(initial=0))

    def further(step: int, rows: np.ndarray) -> np.ndarray:
        groups = np.unique(group_R[rows])
        orders = np.random.default_rng([seed, epoch, step]).permuted([np.arange(each)] * len(groups), axis=1)
        before = len(train.rated) + len(train.drawn)
        return before + (each * groups[:, None] + orders[:, :MORE_CONDITIONS]).reshape(-1)

    key = np.random.default_rng([seed, epoch]).permutation(int(train.pairs.groups.max()) + 1)
    rows = rated[np.argsort(key[train.rated.groups[rated]], kind="stable")]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    if pseudo_labelled:
        batches = [np.concatenate([batch, further(step, batch)]) for step, batch in enumerate(batches)]
    if last > 0:
        drawn = len(train.rated) + np.flatnonzero(train.epochs == (epoch - 1) % last + 1)
        batches = batches or [rows] * -(-len(drawn) // DRAWN_ALONE)
        shares = np.array_split(drawn, len(batches))
        batches = [np.concatenate(both) for both in zip(batches, shares, strict=True)]
    return batches


def head_loss(train: HeadStates, loss: Loss, pseudo_labelled: PairIndex | None = None) -> BatchLoss:
    """The loss of the rated pairs of a batch, the mean over the nested dimensions and all; plus the squared
    errors of the pairs drawn from labels, and of the pseudo-labelled ones to what the teachers give."""
    drawn, taught = train.drawn, train.drawn.take(np.arange(0)) if pseudo_labelled is None else pseudo_labelled
    pairs = train.rated.then(drawn).then(taught)
    targets = torch.cat(
        [unit_ratings(torch.tensor(train.rated.ratings)), torch.tensor(pairs.ratings[len(train.rated) :])]
    )
    losses = ((loss, 1.0), (Loss.SQUARED, 1.0), (Loss.SQUARED, DISTILLED_WEIGHT))
    loss_of = torch.arange(3).repeat_interleave(torch.tensor([len(train.rated), len(drawn), len(taught)]))

    def of_batch(module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        cosines_BM = gather(module(pairs, rows_b)[:count], len(batch))
        targets_B, loss_B = (part[batch].to(cosines_BM.device) for part in (targets, loss_of))
        found = cosines_BM.new_zeros(())
        for number, (of_these, weight) in enumerate(losses):
            if (rows_B := loss_B == number).any():
                found = found + weight * nested_loss(cosines_BM[rows_B], targets_B[rows_B], of_these)
        return found

    return of_batch


@dataclass(frozen=True, kw_only=True)
class HeadTraining(Training):
    """The head of condition pooling, on a frozen encoder.

    labelled, labels: tables of labelled texts and their JSON; shape: gives that of the head for states of a dimension,
    which are those of so many `layers` side by side. teachers: heads that are fitted first, with the next seeds;
    teacher_models: trained models. unconditional_share, unconditional_rise: of `with_unconditional_part`.
    """

    labelled: tuple[str, ...]
    labels: tuple[str, ...]
    shape: Callable[[int], HeadConfig]
    layers: int
    loss: Loss
    teachers: int
    teacher_models: tuple[str, ...]
    unconditional_share: float
    unconditional_rise: tuple[float, float, float, float]

    def read(self) -> tuple[Any, ...]:
        """Rated pairs and what labelled texts teach, to train on; pairs to validate with; and the labelled texts."""
        read = zip(self.labelled, labels_of(self.labelled, self.labels), strict=True)
        tables = [read_labelled(uri, labels, "--labelled") for uri, labels in read]
        sets, seed = tables, self.recipe.seed
        if self.train:
            rated, validation = read_rated_parts(self.train, self.validation)
            if not tables:
                return rated, validation
        elif self.validation:
            validation = read_rated(self.validation, "--validation")
        else:
            taught, left = zip(*(parted(labelled, seed) for labelled in tables), strict=True)
            sets, (held_out, _) = list(taught), drawn_pairs(left, 1, seed)
            check_drawn(held_out, left)
            validation = replace(held_out, ratings=1 + 4 * held_out.ratings)
        drawn, epochs = drawn_pairs(sets, self.recipe.epochs, seed)
        if not self.train:
            check_drawn(drawn, sets)
            rated = drawn.take(np.arange(0))
        texts = HeadTexts(rated=rated, drawn=drawn, epochs=epochs, stated=stated_texts(sets, seed))
        return texts, validation, *tables

    def identity(self, parts: Sequence[Any]) -> dict[str, Any]:
        described = check_teachers(self.teacher_models)
        return super().identity(parts) | ({"teacher_models": described} if described else {})

    def share(self, parts: Sequence[Any], vectors: VectorCache) -> tuple[HeadStates, PairStates]:
        train, validation, *tables = parts
        for table in tables:
            check_room(self.config, [word for column in table.columns for word in column.conditions], "--labelled")
        pairs, epochs = (train.pairs, train.epochs) if tables else (train, np.zeros(0, np.int64))
        states, others = (
            PairStates.of(rated, self.config, vectors, cache=self.cache, compute=self.compute)
            for rated in (pairs, validation)
        )
        return HeadStates.of(states, len(train), epochs), others

    def learner(
        self,
        recipe: Recipe,
        train: HeadStates,
        validation: PairStates,
        pseudo_labelled: PairIndex | None = None,
    ) -> Learner:
        """The head. Pairs labelled -1 are not trained on. pseudo_labelled: further pairs that teachers rate."""
        torch.manual_seed(recipe.seed)
        head = ConditionHead(self.shape(train.rated.dim))
        if head.config.activation is None:
            head.start_from_states(train.rated.dim // self.layers)
        rated = np.flatnonzero(train.rated.ratings != NOT_APPLICABLE)
        more = 0 if pseudo_labelled is None else len(pseudo_labelled)
        return Learner(
            HeadCosine(head),
            partial(head_batches, train, rated, recipe.batch_size, recipe.seed, more),
            head_loss(train, self.loss, pseudo_labelled),
            lambda module: head_correlations(module.head, validation, head.config.nested),
        )

    def fit_all(
        self, fit: Fit, parts: Sequence[Any], data: tuple[HeadStates, PairStates], vectors: VectorCache
    ) -> list[FitState]:
        """The last states of the fits of its teachers, then of its own."""
        if not (self.teachers or self.teacher_models):
            return [fit(self.recipe, self.learner, *data)]
        rated = data[0].rated
        further = further_pairs(rated, self.recipe.seed, FURTHER_OF_MODELS if self.teacher_models else FURTHER)
        pairs = parts[0].pairs if self.labelled else parts[0]
        cached: dict[str, Any] = {"cache": self.cache, "compute": self.compute}
        scores = [scores_by_model(model, pairs, rated, further, vectors, **cached) for model in self.teacher_models]
        teachers = []
        for number in range(1, self.teachers + 1):
            teachers.append(fit(replace(self.recipe, seed=self.recipe.seed + number), self.learner, *data))
            head = best_head(teachers[-1], self.shape(rated.dim))
            scores.append(cosines(*head_vectors(head, replace(rated, **vars(further)))))
        last = replace(self.recipe, epochs=DISTILLED_EPOCHS, patience=DISTILLED_EPOCHS)
        return [*teachers, fit(last, self.learner, *data, pseudo_labelled_pairs(further, scores))]

    def save(
        self,
        folder: Path,
        data: tuple[HeadStates, PairStates],
        fitted: list[FitState],
        record: dict[str, Any],
    ) -> dict[str, Any]:
        train, validation = data
        *teachers, state = fitted
        config = self.config
        best = best_head(state, self.shape(config.states_dim))  # rounded: metrics are those of what is saved
        familiar = train.rated if len(train.rated) else train.drawn.take(np.flatnonzero(train.epochs == 1))
        head = with_unconditional_part(
            best, familiar, validation, config, self.unconditional_share, self.unconditional_rise
        )
        head, stated = with_stated(head, train.stated, self.recipe.seed)
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
        write_folder(folder, trained, head.half(), metrics, head_card(folder.name, trained, metrics))
        return metrics


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
    train: PairStates,
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

    def texts(pairs: PairStates) -> tuple[Tensor, Tensor]:
        """m and f of each distinct sentence of the pairs: (S, W), (S, P)."""
        read = pairs.states(np.unique(pairs.sentence_index))
        means, own = zip(*((part.means(s, real).cpu(), own.cpu()) for _, s, real, own in read), strict=True)
        return torch.cat(means), torch.cat(own)

    trained = torch.from_numpy(np.concatenate(head_vectors(head, train)))
    part.fit(*texts(train), texts(validation)[0], trained)
    return whole.half().float().eval()


def _extended(head: ConditionHead, **shape: Any) -> ConditionHead:
    """The head with its weights in a larger shape; what is new is random."""
    whole = ConditionHead(replace(head.config, **shape))
    whole.load_state_dict(head.state_dict(), strict=False)
    return whole


# ------------------------------------------------------------------------------- whether a text states something

EPOCHS, LEAST_STEPS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY, DROPOUT = 12, 300, 512, 1e-3, 0.1, 0.3
LEFT = 5  # one text in so many calibrates, and is not trained on


def with_stated(head: ConditionHead, texts: PairStates, seed: int) -> tuple[ConditionHead, dict[str, float]]:
    """The head with `StatedHead`, in float16 as it is saved, and its figures on texts left out, on which its log-odds
    are calibrated (Platt, 1999, with his targets); itself without texts, which are those of `HeadPairs.stated`."""
    if not len(texts):
        return head, {}
    torch.manual_seed(seed)
    whole = _extended(head, stated=True)
    stated = whole.stated
    assert stated is not None
    features_NF, stated_N = stated_features(whole.eval(), texts), torch.tensor(texts.ratings)
    left_N = torch.from_numpy(texts.sentence_index[:, 0] % LEFT == 0)
    _fit_stated(stated, features_NF[~left_N], stated_N[~left_N])
    _calibrate_stated(stated, features_NF[left_N], stated_N[left_N])
    whole.half().float()  # `stated` with it
    with torch.inference_mode():
        probabilities = stated(features_NF[left_N]).sigmoid().numpy()
    truth = stated_N[left_N].numpy()
    error = calibration_error(probabilities, truth)
    return whole, {"auc": 100 * auc(probabilities, truth), "calibration_error": error, "texts": len(truth)}


@torch.inference_mode()
def stated_features(head: ConditionHead, pairs: PairStates) -> Tensor:
    """What `StatedHead` sees of the first sentences of pairs: (N, F)."""
    parts = np.array_split(np.arange(len(pairs)), -(-len(pairs) // EVALUATED_AT_ONCE))
    found = [head_pair_vectors(head, pairs, part, head.stated_features).chunk(2)[0].cpu() for part in parts]
    return torch.cat(found)


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
