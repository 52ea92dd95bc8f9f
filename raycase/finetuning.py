"""Fine-tuning jobs: read the data, fine-tune an encoder by a system, save a model folder."""

from __future__ import annotations

import posixpath
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import tyro

from raycase.cluster import start_ray
from raycase.contrast import Contrast, GraphTexts, fit_graph
from raycase.dual import Dual, InferenceTexts, fit_dual
from raycase.encoders import bf16_is_native
from raycase.finetune import PairLoss, RatedRecipe, TunePairs, TuneRecipe, fit_tuned, recipe_of
from raycase.fit import FitState, restore
from raycase.graph import Known, read_graph
from raycase.inli import read_inferences
from raycase.losses import MOST, Loss, mixsp_loss, scored_loss
from raycase.model_folder import open_model_folder, tuned_card, write_folder
from raycase.pooling import Compose, Pooling
from raycase.provenance import provenance
from raycase.rated import RatedPairs, read_scored, rows_in
from raycase.schema import RequestError
from raycase.storage import fingerprint
from raycase.systems.baselines import (
    BiEncoderConfig,
    TriEncoderConfig,
    bi_encoder,
    cross_encoder,
    sentence_encoder,
    tri_encoder,
)
from raycase.systems.csr import Asks, CsrConfig, Form, Router, Weight, csr
from raycase.systems.dualcse import Form as DualForm
from raycase.systems.dualcse import dualcse
from raycase.systems.lora import lora
from raycase.systems.mixsp import Select, mixsp
from raycase.train import fit_on_ray, make_scaling
from raycase.training import Source, Workers, check_cache, open_checkpoints, said_of, said_of_pairs
from raycase.tuned import Tuned


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(Source, Workers):
    """Fine-tune an encoder and save a model folder; each system adds its choices.

    A run that was stopped goes on from its last epoch when the same command is given again.
    """

    @property
    def recipe(self) -> TuneRecipe:
        """What decides the weights besides the data, the system and the seed."""
        raise NotImplementedError

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        raise NotImplementedError

    def read_task(self, config: Tuned) -> Task:
        """What is learned from. Raises RequestError."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class RatedJob(FineTuneJob, RatedRecipe):
    """Fine-tune an encoder on rated pairs."""

    task: Literal["rated", "kgc"] = "rated"
    """rated: pairs of sentences rated under a condition. kgc: knowledge graph completion (bi-encoder, tri-encoder,
    csr); --train and --validation are then .tsv files of head, relation, tail, with entities.tsv and relations.tsv
    beside the first, and the loss is SimKGC's."""
    margin: float = 0.02
    """kgc: taken from the score of the true tail in training."""
    limit: int | None = None
    """kgc: an epoch is so many triples only, of both ways."""

    @property
    def recipe(self) -> RatedRecipe:
        """What decides the weights besides the data, the system and the seed."""
        return recipe_of(RatedRecipe, self)

    def read_task(self, config: Tuned) -> Task:
        """What is learned from. Raises RequestError."""
        return (_rated if self.task == "rated" else _graph)(self, config)


@dataclass(frozen=True, kw_only=True)
class BiEncoderJob(RatedJob):
    """A bi-encoder: sentence and condition as one text (Deshpande et al., 2023)."""

    system: tyro.conf.Positional[Literal["bi-encoder"]]
    """What is trained."""
    prompt: str | None = None
    """How sentence and condition become one text. Default: concat-cs:all, which is "condition: sentence"."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return bi_encoder(self.model, prompt=self.prompt, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class TriEncoderJob(RatedJob):
    """A tri-encoder: sentence and condition apart, then composed (Deshpande et al., 2023)."""

    system: tyro.conf.Positional[Literal["tri-encoder"]]
    """What is trained."""
    compose: Compose = Compose.HADAMARD
    """How the two vectors become one."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return tri_encoder(self.model, compose=self.compose, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class CrossEncoderJob(RatedJob):
    """A cross-encoder: both sentences and the condition as one text; it only ranks (Deshpande et al., 2023)."""

    system: tyro.conf.Positional[Literal["cross-encoder"]]
    """What is trained."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return cross_encoder(self.model)


@dataclass(frozen=True, kw_only=True)
class CsrJob(RatedJob):
    """CSR: the condition weights the sentence's tokens in the last layers (Lin et al., 2024).

    The defaults are the paper's. For an encoder that is averaged (MiniLM): --asks words --weight Tw --routed 3 --router
    hidden.
    """

    system: tyro.conf.Positional[Literal["csr"]]
    """What is trained."""
    form: Form = Form.TRI
    """tri: sentence and condition apart. bi: as one text."""
    router: Router = Router.QUERY
    """What asks what: query (the paper's), hidden, heavy, random."""
    asks: Asks = Asks.CLS
    """Whose state asks for the condition: cls (the paper's), or its words; only words are weighted then."""
    routed: int = 1
    """How many of the last layers are routed, T - t. 0: none, a plain tri-encoder."""
    weight: Weight = Weight.ADDED
    """What the attention's output is multiplied by: 1+w (the paper's), w, or Tw, w times the tokens that share it."""
    compose: Compose | None = None
    """Compose with the condition's own vector, too. The paper does not."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        choices = {name: getattr(self, name) for name in ("form", "router", "asks", "routed", "weight", "compose")}
        return csr(self.model, **choices)


@dataclass(frozen=True, kw_only=True)
class LoraJob(RatedJob):
    """Adapters of low rank on the attention's projections of any encoder (CASE, section 4.4)."""

    system: tyro.conf.Positional[Literal["lora"]]
    """What is trained."""
    loss: Loss = Loss.PEARSON
    """The paper's is pearson."""
    learning_rate: float = 1e-3
    """The largest, of AdamW; adapters need a larger one than whole weights (measured: `results/fine_tuning.md`)."""
    prompt: str | None = None
    """How sentence and condition become one text. Default: the encoder's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""
    rank: int = 32
    """Of the adapters."""
    alpha: float = 32.0
    """Their product is multiplied by alpha / rank."""
    adapter_dropout: float = 0.05
    """Share of an adapter's inputs that is dropped in training."""
    merged: bool = True
    """Save the encoder with the adapters added to it. Else the adapters alone, a small file beside its encoder."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        names = ("prompt", "pooling", "rank", "alpha", "adapter_dropout", "merged")
        return lora(self.model, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class InferencesJob(FineTuneJob, TuneRecipe):
    """Fine-tune an encoder on premises and what they say and imply (INLI)."""

    train: str
    """Premises to learn from: .csv, .jsonl or .parquet with premise, explicit_entailment, implied_entailment, neutral,
    contradiction."""
    validation: str
    """Premises to choose the epoch by; never trained on."""
    learning_rate: float = 5e-5
    """The largest, of AdamW."""
    batch_size: int = 64
    """Premises of a batch, over all workers together."""
    temperature: float = 0.05
    """Cosines are divided by it."""

    @property
    def recipe(self) -> TuneRecipe:
        """What decides the weights besides the data, the system and the seed."""
        return recipe_of(TuneRecipe, self)

    @property
    def terms(self) -> dict[str, Any]:
        """What the loss is."""
        if not 0 < self.temperature < float("inf"):
            raise RequestError(f"--temperature: wanted a number above 0, found {self.temperature:g}")
        return {"temperature": self.temperature}

    def read_task(self, config: Tuned) -> Task:
        """What is learned from. Raises RequestError."""
        parts = {name: read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation")}
        seen = set(parts["train"].columns["premise"]) & set(parts["validation"].columns["premise"])
        if seen:
            raise RequestError(
                f"--validation: wanted no premise that is trained on, found {len(seen)}, one of them {min(seen)[:80]!r}"
            )
        return Task(
            identity=["inferences", *self.terms.values()],
            data={
                part: {"file": Path(some.uri).name, "rows": len(some), "sha256": some.data_sha256}
                for part, some in parts.items()
            },
            texts=lambda: [InferenceTexts.of(config, some) for some in parts.values()],
            fitting=partial(fit_dual, config=config, **self.terms),
            module=lambda: Dual(config.trainable(self.recipe.dropout).system),
        )


@dataclass(frozen=True, kw_only=True)
class DualCseJob(InferencesJob):
    """DualCSE: a vector of what a sentence says, and one of what it implies (Oda et al., 2025).

    The defaults are the paper's for --form cross; for bi it takes --batch-size 32 and --learning-rate 3e-5.
    """

    system: tyro.conf.Positional[Literal["dualcse"]]
    """What is trained."""
    form: DualForm = DualForm.CROSS
    """cross: one encoder, with the word explicit or implicit behind the sentence. bi: an encoder for each."""
    contradiction: bool = True
    """Whether contradictions are pushed away; without: eq. 6."""
    intra: bool = True
    """Whether a premise's two vectors are pushed apart and a hypothesis's drawn together; without: eq. 7."""

    @property
    def terms(self) -> dict[str, Any]:
        """What the loss is."""
        return super().terms | {"contradiction": self.contradiction, "intra": self.intra}

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return dualcse(self.model, form=self.form)


@dataclass(frozen=True, kw_only=True)
class SimCseJob(InferencesJob):
    """SimCSE's supervised loss: one vector a sentence (Gao et al., 2021), with both entailments as positives."""

    system: tyro.conf.Positional[Literal["simcse"]]
    """What is trained."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return sentence_encoder(self.model, pooling=Pooling.CLS)


@dataclass(frozen=True, kw_only=True)
class ScoredJob(FineTuneJob, TuneRecipe):
    """Fine-tune an encoder on pairs of sentences scored without a condition (STS)."""

    train: str
    """Scored pairs to learn from: .csv, .jsonl or .parquet with sentence1, sentence2, score (0 to 5)."""
    validation: str
    """Scored pairs to choose the epoch by; never trained on."""
    learning_rate: float = 5e-5
    """The largest, of AdamW."""
    batch_size: int = 16
    """Scored pairs of a batch, over all workers together."""
    epochs: int = 10
    """At most so many; the learning rate falls over all of them."""
    patience: int = 10
    """Stop when the best epoch is so many epochs ago."""

    @property
    def recipe(self) -> TuneRecipe:
        """What decides the weights besides the data, the system and the seed."""
        return recipe_of(TuneRecipe, self)

    @property
    def terms(self) -> dict[str, Any]:
        """What else the loss depends on."""
        return {}

    def loss(self) -> PairLoss:
        """Of the module's outputs and the scores."""
        return scored_loss

    def read_task(self, config: Tuned) -> Task:
        """What is learned from. Raises RequestError."""
        train, validation = (read_scored(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        for flag, scored in (("--train", train), ("--validation", validation)):
            odd = scored.ratings[(scored.ratings < 0) | (scored.ratings > MOST)]
            if len(odd):
                raise RequestError(f"{flag}: wanted scores from 0 to {MOST:g}, found {odd[0]:g}")
        both = rows_in(train, validation)  # STS-B has some
        if len(both):
            print(f"{len(both)} training pairs are validation pairs, too, and are left out", file=sys.stderr)
            train = train.without(both)
            if not len(train):
                raise RequestError("--train: wanted pairs that are not in --validation, found none")
        return Task(
            identity=["scored", *self.terms.values()],
            data=said_of_pairs({"train": train, "validation": validation}),
            texts=lambda: [tokenized(config, scored) for scored in (train, validation)],
            fitting=partial(fit_tuned, config=config, loss=self.loss()),
            module=lambda: config.trainable(self.recipe.dropout),
        )


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderJob(ScoredJob):
    """A sentence encoder without conditions: squared error of the cosine (Reimers and Gurevych, 2019)."""

    system: tyro.conf.Positional[Literal["sentence-encoder"]]
    """What is trained."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return sentence_encoder(self.model, pooling=self.pooling)


@dataclass(frozen=True, kw_only=True)
class MixSpJob(ScoredJob):
    """MixSP: a router and two projectors over both sentences; it only scores (Ponwitayarat et al., 2024)."""

    system: tyro.conf.Positional[Literal["mixsp"]]
    """What is trained."""
    select: Select = Select.HARD
    """hard: the likelier projector alone. soft: both, weighted; a mixture of experts, without the router's loss."""
    similarity_weight: float = 7e-4
    """alpha_1, of the similarity's loss (eq. 5)."""
    range_weight: float | None = None
    """alpha_2, of the router's loss (eq. 5). Default: 1e-4; with --select soft there is none."""

    @property
    def terms(self) -> dict[str, Any]:
        """What else the loss depends on."""
        if self.select is Select.SOFT and self.range_weight is not None:
            raise RequestError("--range-weight: wanted --select hard, found soft, whose router has no loss of its own")
        default = 1e-4 if self.select is Select.HARD else 0.0
        weights = {
            "similarity_weight": self.similarity_weight,
            "range_weight": default if self.range_weight is None else self.range_weight,
        }
        for name, weight in weights.items():
            if not 0 <= weight < float("inf"):
                raise RequestError(f"--{name.replace('_', '-')}: wanted a number of at least 0, found {weight:g}")
        return weights

    def loss(self) -> PairLoss:
        """Of the module's outputs and the scores."""
        return partial(mixsp_loss, **self.terms)

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return mixsp(self.model, select=self.select)


FINE_TUNE_JOBS: dict[str, type[FineTuneJob]] = {
    "bi-encoder": BiEncoderJob,
    "tri-encoder": TriEncoderJob,
    "cross-encoder": CrossEncoderJob,
    "csr": CsrJob,
    "lora": LoraJob,
    "dualcse": DualCseJob,
    "simcse": SimCseJob,
    "sentence-encoder": SentenceEncoderJob,
    "mixsp": MixSpJob,
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is learned from, as the loop takes it."""

    identity: list[Any]  # its name, and what decides the weights besides the recipe
    data: dict[str, dict[str, Any]]  # what `metrics.json` says of each part
    texts: Callable[[], Sequence[Any]]  # training and validation, tokenised
    fitting: Callable[..., Iterator[FitState]]
    module: Callable[[], Any]  # before training, in 32 bits: what is saved is added up in them


def fine_tune(job: FineTuneJob) -> dict[str, Any]:
    """Fine-tune and save; returns what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    job.check_source()
    job.recipe.check()
    job.check_workers()
    config = job.config()
    task = job.read_task(config)
    identity = {
        "model": config.describe(),
        "compute": job.compute,
        "task": task.identity,
        "data": {part: said["sha256"] for part, said in task.data.items()},
        "recipe": asdict(job.recipe),
        "seed": job.seed,
    }
    name = fingerprint(identity)
    if done := open_model_folder(job.folder, name, overwrite=job.overwrite):
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    train, validation = task.texts()
    start_ray()
    check_cache(job.cache_place)
    scaling = make_scaling(job.workers, job.gpus_per_worker)
    checkpoints = open_checkpoints(job, name)
    compute = _compute(job, on_gpu=scaling.use_gpu)
    state = fit_on_ray(
        partial(task.fitting, compute=compute),
        train,
        validation,
        job.recipe,
        seed=job.seed,
        scaling=scaling,
        checkpoints=checkpoints,
    )
    metrics = {
        "fingerprint": name,
        "system": config.SYSTEM,
        "task": task.identity[0],
        **said_of(state),
        "data": task.data,
        "parameters": sum(t.numel() for t in state.weights.values()),
        "compute": str(compute).removeprefix("torch."),
        "recipe": asdict(job.recipe),
        "seed": job.seed,
        "workers": job.workers,
        "seconds": round(time.time() - began, 1),
        "provenance": provenance(),
    }
    module = task.module()
    restore(module, state.best)
    write_folder(job.folder, metrics, tuned_card(job.folder.name, config.label, metrics), module.system.save)
    checkpoints.remove()
    return metrics


def _rated(job: RatedJob, config: Tuned) -> Task:
    """Pairs of sentences, rated under a condition. Raises RequestError."""
    if job.limit is not None:
        raise RequestError("--limit: wanted --task kgc, found rated")
    train, validation = job.read()
    return Task(
        identity=["rated"],
        data=said_of_pairs({"train": train, "validation": validation}),
        texts=lambda: [tokenized(config, rated) for rated in (train, validation)],
        fitting=partial(fit_tuned, config=config),
        module=lambda: config.trainable(job.dropout),
    )


def _graph(job: RatedJob, config: Tuned) -> Task:
    """Triples of a knowledge graph. Raises RequestError."""
    if not isinstance(config, (BiEncoderConfig, TriEncoderConfig, CsrConfig)) or config.dim != config.plain_dim:
        raise RequestError(
            "--task kgc: wanted bi-encoder, tri-encoder or csr, with vectors as long as the encoder's, found "
            f"{config.label}"
        )
    if job.limit is not None and job.limit < 2:
        raise RequestError(f"--limit: wanted at least 2 triples, found {job.limit}")
    if not 0 <= job.margin < 1:
        raise RequestError(f"--margin: wanted a number in [0, 1), found {job.margin:g}")
    graph = read_graph(posixpath.dirname(job.train) or ".", "--train")
    parts = {name: graph.triples(getattr(job, name), f"--{name}") for name in ("train", "validation")}
    seen = Known.of(parts["train"]).has(parts["validation"].queries, parts["validation"].rows[:, 2])
    if seen.any():
        raise RequestError(f"--validation: wanted no triple that is trained on, found {int(seen.sum())}")
    return Task(
        identity=["kgc", job.margin, job.limit],
        data={
            part: {"file": Path(triples.uri).name, "rows": len(triples) // 2, "sha256": triples.data_sha256}
            for part, triples in parts.items()
        },
        texts=lambda: GraphTexts.of(config, graph, list(parts.values())),
        fitting=partial(fit_graph, config=config, margin=job.margin, limit=job.limit),
        module=lambda: Contrast(config.trainable(job.dropout).system),
    )


def tokenized(config: Tuned, rated: RatedPairs) -> TunePairs:
    """Rated pairs as training takes them. Raises RequestError for a text that cannot be encoded."""
    return TunePairs(texts=config.rated(rated), ratings=rated.ratings, groups=rated.groups)


def _compute(job: FineTuneJob, *, on_gpu: bool) -> torch.dtype:
    """The workers' number format: bfloat16 on GPUs, and where this machine's processor has it."""
    if job.compute is not None:
        return getattr(torch, job.compute)
    return torch.bfloat16 if on_gpu or bf16_is_native(torch.device("cpu")) else torch.float32
