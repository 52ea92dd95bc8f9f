"""Fine-tuning jobs: read the data, fine-tune an encoder by a system, save a model folder."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
import tyro

from raycase.cluster import start_ray
from raycase.encoders import bf16_is_native
from raycase.finetune import TunePairs, TuneRecipe, fit_tuned
from raycase.fit import restore
from raycase.losses import Loss
from raycase.model_folder import open_model_folder, tuned_card, write_folder
from raycase.pooling import Compose, Pooling
from raycase.provenance import provenance
from raycase.rated import RatedPairs
from raycase.storage import fingerprint
from raycase.systems.baselines import bi_encoder, cross_encoder, tri_encoder
from raycase.systems.csr import Form, Router, Weight, csr
from raycase.systems.lora import lora
from raycase.train import fit_on_ray, make_scaling
from raycase.training import Source, Workers, check_cache, said_of
from raycase.tuned import Tuned


@dataclass(frozen=True, kw_only=True)
class FineTuneJob(Source, TuneRecipe, Workers):
    """Fine-tune an encoder on rated pairs and save a model folder; each system adds its choices.

    A run that was stopped goes on from its last epoch when the same command is given again.
    """

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class BiEncoderJob(FineTuneJob):
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
class TriEncoderJob(FineTuneJob):
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
class CrossEncoderJob(FineTuneJob):
    """A cross-encoder: both sentences and the condition as one text; it only ranks (Deshpande et al., 2023)."""

    system: tyro.conf.Positional[Literal["cross-encoder"]]
    """What is trained."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        return cross_encoder(self.model)


@dataclass(frozen=True, kw_only=True)
class CsrJob(FineTuneJob):
    """CSR: the condition weights the sentence's tokens in the last layers (Lin et al., 2024)."""

    system: tyro.conf.Positional[Literal["csr"]]
    """What is trained."""
    form: Form = Form.TRI
    """tri: sentence and condition apart. bi: as one text."""
    router: Router = Router.QUERY
    """What asks what: query (the paper's), hidden, heavy, random."""
    routed: int = 1
    """How many of the last layers are routed, T - t. 0: none, a plain tri-encoder."""
    weight: Weight = Weight.ADDED
    """What the attention's output is multiplied by."""
    compose: Compose | None = None
    """Compose with the condition's own vector, too. The paper does not."""

    def config(self) -> Tuned:
        """The system before training. Raises RequestError."""
        choices = {name: getattr(self, name) for name in ("form", "router", "routed", "weight", "compose")}
        return csr(self.model, **choices)


@dataclass(frozen=True, kw_only=True)
class LoraJob(FineTuneJob):
    """Adapters of low rank on the attention's projections of any encoder (CASE, section 4.4)."""

    system: tyro.conf.Positional[Literal["lora"]]
    """What is trained."""
    loss: Loss = Loss.PEARSON
    """The paper's is pearson."""
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


FINE_TUNE_JOBS: dict[str, type[FineTuneJob]] = {
    "bi-encoder": BiEncoderJob,
    "tri-encoder": TriEncoderJob,
    "cross-encoder": CrossEncoderJob,
    "csr": CsrJob,
    "lora": LoraJob,
}


def fine_tune(job: FineTuneJob) -> dict[str, Any]:
    """Fine-tune and save; returns what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    job.check_source()
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
        print(f"{job.folder}: trained before; nothing to do", file=sys.stderr)
        return done
    texts = {part: tokenized(config, rated) for part, rated in pairs.items()}
    start_ray()
    check_cache(job.cache_place)
    scaling = make_scaling(job.workers, job.gpus_per_worker)
    compute = _compute(job)
    checkpoints = job.cache_place / "fits" / fingerprint([name, str(job.folder)])[:16]
    if job.overwrite:
        checkpoints.remove()
    state = fit_on_ray(
        partial(fit_tuned, config=config, compute=compute),
        texts["train"],
        texts["validation"],
        job.recipe,
        seed=job.seed,
        scaling=scaling,
        checkpoints=checkpoints,
    )
    metrics = {
        "fingerprint": name,
        "system": config.SYSTEM,
        **said_of(state, pairs),
        "parameters": sum(t.numel() for t in state.weights.values()),
        "compute": str(compute).removeprefix("torch."),
        "recipe": asdict(job.recipe),
        "seed": job.seed,
        "workers": job.workers,
        "seconds": round(time.time() - began, 1),
        "provenance": provenance(),
    }
    module: Any = config.trainable(job.recipe.dropout, compute)
    restore(module, state.best)
    card = tuned_card(job.folder.name, config.label, metrics)
    write_folder(job.folder, metrics, card, module.system.save)
    checkpoints.remove()
    return metrics


def tokenized(config: Tuned, rated: RatedPairs) -> TunePairs:
    """Rated pairs as training takes them. Raises RequestError for a text that cannot be encoded."""
    return TunePairs(texts=config.rated(rated), ratings=rated.ratings, groups=rated.groups)


def _compute(job: FineTuneJob) -> torch.dtype:
    if job.compute is not None:
        return getattr(torch, job.compute)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.bfloat16 if bf16_is_native(device) else torch.float32
