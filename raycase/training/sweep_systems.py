"""The sweeps of every fine-tuned system: what a search chooses from, and the papers' grids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from raycase.encoder.pooling import Compose
from raycase.systems.csr import Asks, Form, Router, Weight
from raycase.systems.mixsp import Route, Select, Similarity
from raycase.training.inference_jobs import DualCseJob, SimCseJob
from raycase.training.losses import Loss
from raycase.training.rated_jobs import BiEncoderJob, CrossEncoderJob, CsrJob, LoraJob, TriEncoderJob
from raycase.training.scored_jobs import MixSpJob, SentenceEncoderJob
from raycase.training.sweep_cells import Grids, Space
from raycase.training.sweep_fine_tuned import FineTunedCell, FineTunedSweep

FINE_TUNING: Space = {"learning_rate": ("log", 1e-5, 5e-4), "weight_decay": [0.0, 0.01, 0.1], "warmup": [0.0, 0.1, 0.2]}
RATED: Space = {**FINE_TUNING, "batch_size": [16, 32, 64, 128], "loss": list(Loss)}
INFERENCES: Space = {**FINE_TUNING, "batch_size": [16, 32, 64], "temperature": ("log", 0.01, 0.2)}
SCORED: Space = {**FINE_TUNING, "batch_size": [8, 16, 32, 64]}
ROUTERS: Space = {
    "router": [Router.QUERY, Router.HIDDEN, Router.HEAVY],
    "asks": list(Asks),
    "routed": [1, 2, 3],
    "weight": list(Weight),
}
ADAPTERS: Space = {
    "learning_rate": ("log", 1e-4, 5e-3),
    "rank": [4, 8, 16, 32, 64],
    "alpha": [16.0, 32.0, 64.0],
    "adapter_dropout": (0.0, 0.2),
}
MIXTURE: Space = {
    "select": [Select.HARD, Select.SOFT],
    "route": list(Route),
    "similarity": list(Similarity),
    "similarity_weight": ("log", 1e-4, 1e-1),
    "range_weight": ("log", 1e-5, 1e-2),
}

MIXSP_TABLE4: dict[str, dict[str, Any]] = {
    "MixSP": {},
    "router: the sentence alone": {"route": Route.OWN},
    "router: both sentences": {"route": Route.BOTH},
    "without the router's loss": {"range_weight": 0.0},
    "five ranges": {"ranges": [1, 2, 3, 4]},
    "[0, 3), [3, 5]": {"ranges": [3]},
    "[0, 2), [2, 5]": {"ranges": [2]},
    "weighted average of the projectors": {"select": Select.SOFT},
    "contrastive loss": {"similarity": Similarity.CONTRASTIVE},
    "cosine": {"similarity": Similarity.COSINE},
}


def dualcse_table7(base: FineTunedCell) -> list[FineTunedCell]:
    """The cells of DualCSE's Table 7: batch size and learning rate."""
    return [
        base.changed(f"batch {batch_size}, rate {rate:g}", batch_size=batch_size, learning_rate=rate)
        for batch_size in (16, 32, 64)
        for rate in (1e-5, 3e-5, 5e-5)
    ]


def mixsp_table4(base: FineTunedCell) -> list[FineTunedCell]:
    """The cells of MixSP's Table 4: the base, and cells that differ from it in one choice."""
    return [base.changed(name, **changes) for name, changes in MIXSP_TABLE4.items()]


@dataclass(frozen=True, kw_only=True)
class TuneBiEncoderJob(FineTunedSweep, BiEncoderJob):
    """Search the flags of training a bi-encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = RATED


@dataclass(frozen=True, kw_only=True)
class TuneTriEncoderJob(FineTunedSweep, TriEncoderJob):
    """Search the flags of training a tri-encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = {**RATED, "compose": list(Compose)}


@dataclass(frozen=True, kw_only=True)
class TuneCrossEncoderJob(FineTunedSweep, CrossEncoderJob):
    """Search the flags of training a cross-encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = RATED


@dataclass(frozen=True, kw_only=True)
class TuneCsrJob(FineTunedSweep, CsrJob):
    """Search the flags of training CSR, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    @property
    def space(self) -> Space:
        """What a search chooses from; the paper's bi form has one router."""
        return {**RATED, **ROUTERS} if self.form is Form.TRI else RATED


@dataclass(frozen=True, kw_only=True)
class TuneLoraJob(FineTunedSweep, LoraJob):
    """Search the flags of training low-rank adapters, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = {**RATED, **ADAPTERS}


@dataclass(frozen=True, kw_only=True)
class TuneDualCseJob(FineTunedSweep, DualCseJob):
    """Search the flags of training DualCSE, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = INFERENCES
    grids: ClassVar[Grids] = {"table7": dualcse_table7}


@dataclass(frozen=True, kw_only=True)
class TuneSimCseJob(FineTunedSweep, SimCseJob):
    """Search the flags of training SimCSE, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = INFERENCES
    grids: ClassVar[Grids] = {"table7": dualcse_table7}


@dataclass(frozen=True, kw_only=True)
class TuneSentenceEncoderJob(FineTunedSweep, SentenceEncoderJob):
    """Search the flags of training a sentence encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = SCORED


@dataclass(frozen=True, kw_only=True)
class TuneMixSpJob(FineTunedSweep, MixSpJob):
    """Search the flags of training MixSP, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    space: ClassVar[Space] = {**SCORED, **MIXTURE}
    grids: ClassVar[Grids] = {"table4": mixsp_table4}
