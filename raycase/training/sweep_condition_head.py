"""Sweeps of the head of condition pooling on a frozen encoder: its cells, among them an ablation, and the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar

from raycase.data.rated import RatedPairs
from raycase.data.storage import fingerprint
from raycase.systems.condition_pooling import ConditionPoolingConfig
from raycase.systems.projector import Activation
from raycase.training.condition_head_fit import fit_condition_head, head_correlations
from raycase.training.condition_head_job import HeadSource, best_head, pair_states, save_fit
from raycase.training.condition_pairs import PairStates
from raycase.training.condition_recipe import FrozenHeadRecipe, HeadRecipe
from raycase.training.loop import FitState
from raycase.training.losses import Loss, RatingMap
from raycase.training.runner import Embedder
from raycase.training.sweep_cells import CORRELATIONS, Cell, Columns, Grids, Space, depths_of
from raycase.training.sweep_job import SweepJob
from raycase.training.sweep_trials import CellScore

ABLATION: dict[str, dict[str, Any]] = {
    "base": {},
    "4 heads of 128": {"heads": 4, "head_dim": 128},
    "1 head of 64": {"heads": 1, "head_dim": 64},
    "no gate": {"gate": False},
    "last layer alone": {"layers": "1"},
    "layers at 0, 1/3, 2/3 and 1": {"layers": "0 1/3 2/3 1"},
    "Pearson's loss": {"loss": Loss.PEARSON},
    "8 heads of 16, 128 dimensions": {"heads": 8, "head_dim": 16, "dim": 128},
    "8 heads of 32, 256 dimensions": {"heads": 8, "head_dim": 32, "dim": 256},
    "16 heads of 64": {"heads": 16, "head_dim": 64},
}


def ablation(base: HeadCell) -> list[HeadCell]:
    """The base, and cells that differ from it in one choice."""
    return [base.changed(name, **changes) for name, changes in ABLATION.items()]


@dataclass(frozen=True, kw_only=True)
class HeadCell(Cell):
    """A recipe of the head on a frozen encoder."""

    recipe: HeadRecipe

    names = tuple(f.name for f in fields(FrozenHeadRecipe) if f.name != "nested")
    source = "layers"
    space: ClassVar[Space] = {
        "layers": ["1", "2/3 1", "1/3 2/3 1", "0 1/3 2/3 1"],
        "heads": [1, 2, 4, 8, 16],
        "head_dim": [16, 32, 64, 128],
        "dim": [128, 256, 512, 768],
        "activation": list(Activation),
        "dropout": (0.0, 0.5),
        "gate": [True, False],
        "temperature": ("log", 5.0, 50.0),
        "loss": list(Loss),
        "rating_map": list(RatingMap),
        "learning_rate": ("log", 1e-4, 5e-3),
        "weight_decay": [0.0, 0.01, 0.1, 1.0],
        "batch_size": [64, 128, 256, 512],
    }
    figures: ClassVar[Sequence[str]] = CORRELATIONS
    grids: ClassVar[Grids] = {"ablation": ablation}
    columns: ClassVar[Columns] = {
        "layers": str,
        "heads": int,
        "head_dim": int,
        "dim": int,
        "activation": str,
        "dropout": float,
        "gate": bool,
        "temperature": float,
        "loss": str,
        "rating_map": str,
        "learning_rate": float,
        "weight_decay": float,
        "warmup": float,
        "batch_size": int,
        "average": float,
        "input_dim": int,
    }

    @cached_property
    def key(self) -> str:
        """Of the frozen encoder's settings alone."""
        return fingerprint({f.name: getattr(self.recipe, f.name) for f in fields(FrozenHeadRecipe)})[:10]

    def fit(self, train: Any, validation: Any, *, seed: int, device: str = "cpu") -> Iterator[FitState]:
        return fit_condition_head(train, validation, self.recipe, seed=seed, wrap=lambda module: module.to(device))

    @staticmethod
    def describe(row: Mapping[str, Any]) -> str:
        gate = "gate" if row["gate"] else "no gate"
        dim = row["dim"] or "by width"
        return (
            f"layers {row['layers']}, heads {row['heads']} x {row['head_dim']}, {row['activation']} {dim}, "
            f"{gate}, dropout {row['dropout']:.2g}, tau {row['temperature']:.2g}, lr {row['learning_rate']:.2g}, "
            f"decay {row['weight_decay']:g}, batch {row['batch_size']}, {row['loss']}, {row['rating_map']}"
        )

    @staticmethod
    def tables(scores: Sequence[CellScore], grid: str | None) -> list[str]:
        """The ablation, in its order."""
        if grid != "ablation":
            return []
        place = {name: i for i, name in enumerate(ABLATION)}
        lines = [
            "## Ablation: the base, and cells that differ from it in one choice\n",
            "| | Spearman | without label -1 | seeds |",
            "|---|---|---|---|",
        ]
        for s in sorted(scores, key=lambda s: place.get(s.first.name, len(place))):
            lines.append(f"| {s.first.name} | {s.text()} | {s.rated:.2f} | {len(s.trials)} |")
        return ["\n".join(lines) + "\n"]


@dataclass(frozen=True, kw_only=True)
class TuneHeadJob(HeadSource, SweepJob):
    """Search the settings of condition pooling's head on a frozen encoder, or run a grid; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    @property
    def cells(self) -> HeadCell:
        """The cell of the flags."""
        return HeadCell(recipe=self.recipe)

    def system(self, config: ConditionPoolingConfig, read: str) -> ConditionPoolingConfig:
        """The system with these layers."""
        return replace(config, layers=depths_of(read))

    def embed(self, rated: RatedPairs, system: ConditionPoolingConfig, runner: Embedder) -> PairStates:
        """The states of sentences and conditions."""
        return pair_states(rated, system, runner, self)

    def save(
        self,
        cell: Cell,
        state: FitState,
        system: ConditionPoolingConfig,
        validation: PairStates,
        pairs: dict[str, RatedPairs],
        facts: dict[str, Any],
    ) -> None:
        """Write the model folder of a fit into `best`."""
        head = best_head(state, cell.recipe, system.states_dim)
        figures = {"validation": head_correlations(head, validation, head.config.nested)}  # after rounding
        facts = facts | {"recipe": asdict(replace(cell.recipe, plain_share=0.0))}  # the head alone
        save_fit(self.folder / "best", system, head, state, validation, pairs, facts, figures)
