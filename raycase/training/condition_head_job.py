"""The training job of condition pooling: embed each sentence and condition once, fit the head, save a model folder."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raycase.data.provenance import provenance
from raycase.data.rated import RatedPairs
from raycase.data.storage import Location, fingerprint
from raycase.encoder.loading import whole_model
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import Span
from raycase.errors import WorkError, note
from raycase.systems.condition_head import ConditionHead, ZeroShotHead
from raycase.systems.condition_pooling import ConditionPoolingConfig, condition_pooling, write_model_folder
from raycase.systems.model_card import head_card
from raycase.systems.model_folder import open_model_folder
from raycase.systems.pairs import Indexed
from raycase.training.condition_head_fit import (
    Along,
    fit_condition_head,
    head_correlations,
    weights_of,
)
from raycase.training.condition_pairs import PairStates, PairTokens, ReadPairs
from raycase.training.condition_recipe import FrozenHeadRecipe, HeadRecipe
from raycase.training.condition_teachers import taught_pairs
from raycase.training.encoder_job import compute_of
from raycase.training.loop import FitState
from raycase.training.plain_share import with_plain_part
from raycase.training.projector_job import Source, Workers, data_metrics, fit_metrics, open_checkpoints
from raycase.training.runner import Embedder, OpenRunner, Runner

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class HeadSource(FrozenHeadRecipe, Source):
    """How an encoder gives states to a head."""

    pooling: Pooling | None = None
    """Pooling of the vectors without a condition. Default: the encoder's."""
    whole_condition: bool = False
    """Represent a condition by the mean of all its tokens, special ones included; else of its words."""

    def config(self) -> ConditionPoolingConfig:
        """The system without the head. Raises RequestError."""
        self.check_source()
        return condition_pooling(
            self.model,
            layers=self.layers,
            pooling=self.pooling,
            whole_condition=self.whole_condition,
            latent=not self.recipe.unfreeze,
        )


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingJob(HeadSource, HeadRecipe, Workers):
    """Condition pooling: fit the head that lets a condition weigh a sentence's words, on a frozen encoder or with it.

    A run that was stopped resumes automatically when the same command is run again.
    """


def train_condition_head(job: ConditionPoolingJob, open_runner: OpenRunner) -> dict[str, Any]:
    """Embed, fit, save; returns the contents of `metrics.json`. Raises RequestError and WorkError."""
    began = time.time()
    job.recipe.check()
    job.check_workers()
    config = job.config()
    pairs = dict(zip(("train", "validation"), job.read(), strict=True))
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "data": {part: rated.data_sha256 for part, rated in pairs.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        note(f"{job.folder}: trained before; nothing to do")
        return done
    runner = open_runner(workers=job.workers, gpus_per_worker=job.gpus_per_worker, cache=job.cache_location)
    train, validation = (pair_states(rated, config, runner, job) for rated in pairs.values())
    embedded = time.time()
    checkpoints = open_checkpoints(job, name)
    state, teachers = _fit_frozen(job, runner, train, validation, checkpoints)
    head = best_head(state, job.recipe, config.states_dim)  # rounded: figures are those of what is saved
    figures = {"without_plain_part": head_correlations(head, validation, head.config.nested)}
    read: list[ReadPairs] = [train, validation]
    encoder = None
    if job.unfreeze:
        figures = {"frozen": figures["without_plain_part"]}
        along = Along(config=config, head=head.state_dict(), compute=compute_of(job, on_gpu=runner.on_gpu))
        tokens = [PairTokens.of(config, rated) for rated in pairs.values()]
        state = _fit_along(job, runner, along, tokens, checkpoints)
        head, reader = best_head(state, job.recipe, config.states_dim), along.trained(state)
        read = [part.read_by(reader, along.compute) for part in tokens]
        figures["without_plain_part"] = head_correlations(head, read[1], head.config.nested)
        encoder = whole_model(reader.encoder)
    head = with_plain_part(head, read[0], read[1], config, job.recipe)
    figures["validation"] = head_correlations(head, read[1], head.config.nested)
    facts = {
        "fingerprint": name,
        "unseeded": fingerprint(identity | {"seed": None}),  # equal for the seeds of one system
        "teachers": [fit_metrics(teacher)["validation"] for teacher in teachers],
        "recipe": asdict(job.recipe),
        "seed": job.seed,
        "workers": job.workers,
        "seconds": round(time.time() - began, 1),
        "embed_seconds": round(embedded - began, 1),
    }
    metrics = save_fit(job.folder, config, head, state, validation, pairs, facts, figures, encoder=encoder)
    checkpoints.remove()
    return metrics


def _fit_frozen(
    job: ConditionPoolingJob, runner: Runner, train: PairStates, validation: PairStates, checkpoints: Location
) -> tuple[FitState, list[FitState]]:
    """The fit on stored states, and those of its teachers before it."""
    fit = partial(runner.fit, train=train, validation=validation)
    fitting, recipe = fit_condition_head, job.recipe
    seeds = range(job.seed + 1, job.seed + 1 + job.teachers)
    teachers = [fit(fitting, recipe=recipe, seed=seed, checkpoints=checkpoints / f"{seed}") for seed in seeds]
    if teachers:
        heads = [best_head(state, recipe, train.dim) for state in teachers]
        fitting = partial(fitting, taught=taught_pairs(train, heads, job.seed))
        recipe = recipe.distilled
    return fit(fitting, recipe=recipe, seed=job.seed, checkpoints=checkpoints / "frozen"), teachers


def _fit_along(
    job: ConditionPoolingJob, runner: Runner, along: Along, pairs: list[PairTokens], checkpoints: Location
) -> FitState:
    """The fit of the head with its encoder."""
    fitting = partial(fit_condition_head, along=along)
    recipe = job.recipe.unfrozen
    train, validation = pairs
    return runner.fit(fitting, train, validation, recipe=recipe, seed=job.seed, checkpoints=checkpoints / "unfrozen")


def pair_states(rated: RatedPairs, config: ConditionPoolingConfig, runner: Embedder, job: Source) -> PairStates:
    """States of the sentences and conditions of rated pairs. Raises RequestError for a text without any."""
    sentences = Indexed.of([*rated.sentences1, *rated.sentences2])
    conditions = Indexed.of(rated.conditions)
    states_of = partial(runner.states_of, cache=job.cache_location, compute=job.compute)
    whole = Span.ALL if config.whole_condition else Span.SENTENCE
    kept, plain = states_of(sentences.values, replace(config, keep=Span.SENTENCE), name=rated.uri)
    asked, _ = states_of(conditions.values, replace(config, keep=whole), name=f"conditions of {rated.uri}")
    return PairStates(
        sentences=kept,
        plain=plain,
        conditions=asked.means,
        sentence_index=sentences.codes.reshape(2, -1).T,
        condition_index=conditions.codes,
        groups=rated.groups,
        ratings=rated.ratings,
    )


def save_fit(
    folder: Path,
    config: ConditionPoolingConfig,
    head: ConditionHead,
    state: FitState,
    validation: PairStates,
    pairs: dict[str, RatedPairs],
    facts: dict[str, Any],
    figures: dict[str, Any],
    *,
    encoder: PreTrainedModel | None = None,
) -> dict[str, Any]:
    """Write the model folder of a fit; returns the contents of `metrics.json`, `facts` and `figures` among them."""
    metrics = {
        **facts,
        **fit_metrics(state),
        **figures,
        "zero_shot": head_correlations(ZeroShotHead(config.hidden_dim), validation),
        "data": data_metrics(pairs),
        "parameters": sum(weights.numel() for weights in state.weights.values()),
        "provenance": provenance(),
    }
    trained = replace(config, head=head.config)
    card = head_card(folder.name, trained, metrics)
    write_model_folder(folder, trained, head, metrics, card, encoder=encoder)
    return metrics


def best_head(state: FitState, recipe: HeadRecipe, states_dim: int) -> ConditionHead:
    """The head with the weights of its best epoch, rounded to float16 as they are saved, in evaluation mode.

    Raises WorkError for weights that float16 cannot hold.
    """
    head = ConditionHead(recipe.head(states_dim))
    rounded = {name: tensor.half().float() for name, tensor in weights_of(state.best, "head.").items()}
    if not all(bool(tensor.isfinite().all()) for tensor in rounded.values()):
        raise WorkError("expected weights that float16 can hold, got larger ones; lower the learning rate")
    head.load_state_dict(rounded)
    return head.eval()
