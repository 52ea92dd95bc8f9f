"""Sweeps of the projector of CASE: its cells, among them the paper's grids, and the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from raycase.data.fetch import is_trained
from raycase.data.rated import RatedPairs
from raycase.data.storage import fingerprint
from raycase.encoder.prompts import INSTRUCTED, PromptStyle, parse_views
from raycase.errors import RequestError
from raycase.evaluation.published import TABLE7
from raycase.systems.case import CaseConfig
from raycase.systems.pair_vectors import PairVectors, pair_vectors
from raycase.systems.projector import Activation, DropoutAt, settings_of
from raycase.training.loop import FitState
from raycase.training.losses import RatingMap
from raycase.training.projector_fit import OUTPUT_DIM, RECIPE_FIELDS, Recipe, fit_projector
from raycase.training.projector_job import Frozen, save_fit
from raycase.training.runner import Embedder
from raycase.training.sweep_cells import Cell, Columns, Grids, Space
from raycase.training.sweep_job import SweepJob
from raycase.training.sweep_trials import CellScore, varied_choices

DIMS = (50, *range(100, 1001, 100))  # Figure 4
HIDDEN = (256, 768, 1024, 2048, 8192)  # appendix B
NAMES = {
    Activation.RELU: "ReLU",
    Activation.GELU: "GELU",
    Activation.SILU: "SiLU",
    Activation.LEAKY_RELU: "LeakyReLU",
}


def table7(base: ProjectorCell) -> list[ProjectorCell]:
    """The cells of the paper's Table 7: linear, two layers, one layer; each activation; with and without dropout."""
    base = base.changed(dim=base.recipe.dim or OUTPUT_DIM)  # the paper's, even above the encoder's
    cells = [base.changed("Linear", layers=0, dropout=d) for d in (0.2, 0.0)]
    for layers, title in ((2, "Two-layer"), (1, "One-layer")):
        cells += [
            base.changed(f"{title} {a}", layers=layers, hidden=1024, activation=a, dropout=d)
            for a in Activation
            for d in (0.15, 0.0)
        ]
    return cells


def figure4(base: ProjectorCell) -> list[ProjectorCell]:
    """The cells of the paper's Figure 4: dimensions 50 to 1000."""
    return [base.changed(f"{dim}", dim=dim) for dim in DIMS]


@dataclass(frozen=True, kw_only=True)
class ProjectorCell(Cell):
    """A recipe and a prompt."""

    recipe: Recipe
    prompt: str

    names = (*(name for name in RECIPE_FIELDS if name != "nested"), "prompt")
    source = "prompt"
    space: ClassVar[Space] = {
        "activation": list(Activation),
        "dropout": (0.0, 0.5),
        "layers": [1, 2],
        "hidden": list(HIDDEN),
        "dim": list(DIMS),
        "learning_rate": ("log", 1e-4, 5e-3),
        "weight_decay": [0.0, 0.01, 0.1, 1.0],
        "batch_size": [128, 256, 512, 1024],
        "rating_map": list(RatingMap),
    }  # and the prompts of the job
    grids: ClassVar[Grids] = {"table7": table7, "figure4": figure4}
    columns: ClassVar[Columns] = {
        "activation": str,
        "dropout": float,
        "dropout_at": str,
        "bias": bool,
        "layers": int,
        "hidden": int,
        "dim": int,
        "input_dim": int,
        "above_encoder": bool,  # g's dimension is above its input's
        "learning_rate": float,
        "weight_decay": float,
        "batch_size": int,
        "rating_map": str,
        "loss": str,
        "average": float,
        "prompt": str,
    }
    earlier: ClassVar[Mapping[str, Any]] = {"dropout_at": DropoutAt.INPUT, "bias": True}

    @cached_property
    def key(self) -> str:
        """Without what has no effect: the width of no hidden layer, a linear g's activation, where no dropout is."""
        values = settings_of(self.recipe) | {"prompt": self.prompt, "dropout": self.recipe.dropout_share}
        if not values["dropout"]:
            values.pop("dropout_at", None)
        if self.recipe.layers < 2:
            del values["hidden"]
        if self.recipe.layers == 0:
            del values["activation"]
        return fingerprint(values)[:10]

    def fit(self, train: Any, validation: Any, *, seed: int, **options: Any) -> Iterator[FitState]:
        return fit_projector(train, validation, self.recipe, seed=seed, **options)

    def check(self, system: CaseConfig | None = None) -> None:
        """A system decides the dimension of g, which nested dimensions must be below."""
        parse_views(self.prompt)
        self.recipe.check()
        if system:
            self.recipe.projector(system.views_dim)

    def row(self, input_dim: int) -> dict[str, Any]:
        dim = self.recipe.projector(input_dim).output_dim
        dropout = self.recipe.dropout_share
        return super().row(input_dim) | {"dim": dim, "above_encoder": dim > input_dim, "dropout": dropout}

    @staticmethod
    def describe(row: Mapping[str, Any]) -> str:
        activation = row["activation"]
        kind = {0: "linear", 1: activation, 2: f"{activation} {row['hidden']}-{activation}"}[row["layers"]]
        return (
            f"{row['prompt']}, {kind} {row['dim']}{' with bias' if row['bias'] else ''}, "
            f"dropout {row['dropout']:.2g} at {row['dropout_at']}, "
            f"lr {row['learning_rate']:.2g}, decay {row['weight_decay']:g}, batch {row['batch_size']}, "
            f"{row['loss']}, {row['rating_map']}"
        )

    @staticmethod
    def tables(scores: Sequence[CellScore], grid: str | None) -> list[str]:
        """The paper's figures beside ours."""
        if grid == "table7":
            return [_table7(scores)]
        return [_dimensions(scores)] if varied_choices([t for s in scores for t in s.trials]) == ["dim"] else []


def _table7(scores: Sequence[CellScore]) -> str:
    rows = [(s, s.first.settings) for s in scores]
    by_shape = {(r["layers"], r["activation"] if r["layers"] else None, r["dropout"] > 0): s for s, r in rows}
    shape = scores[0].first.settings
    lines = [
        "## Table 7: linear and non-linear projectors\n",
        "The paper's: NV-Embed-v2, test set, single figures. Dropout: 20 % linear, 15 % else.\n",
        "| | with dropout | without | paper, with | paper, without |",
        "|---|---|---|---|---|",
    ]
    titles = {0: "Linear ({d} → {k})", 2: "Two layers ({d} → 1024 → {k})", 1: "One layer ({d} → {k})"}
    for (layers, activation), paper in TABLE7.items():
        title = titles[layers].format(d=shape["input_dim"], k=shape["dim"]) + (
            f", {NAMES[Activation(activation)]}" if activation else ""
        )
        row = [by_shape.get((layers, activation, dropout)) for dropout in (True, False)]
        cells = [s.text() if s else "" for s in row]
        lines.append(f"| {title} | {' | '.join(cells)} | {paper[0]:.2f} | {paper[1]:.2f} |")
    return "\n".join(lines) + "\n"


def _dimensions(scores: Sequence[CellScore]) -> str:
    lines = [
        "## Figure 4: Spearman against the dimension of g\n",
        "The paper's (a plot; NV-Embed-v2, test set) is above 72.12, fine-tuned SimCSE-base, from 200 dimensions on. "
        "`dimensions.png` is this table as a plot.\n",
        "| dimension | Spearman | without label -1 |",
        "|---|---|---|",
    ]
    for s in sorted(scores, key=lambda s: s.first.settings["dim"]):
        lines.append(f"| {s.first.settings['dim']} | {s.text()} | {s.rated:.2f} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class TuneJob(Frozen, Recipe, SweepJob):
    """Search the settings of the projector on a frozen encoder, or run a grid of them; flags set those not swept.

    A sweep that was stopped resumes with the same command and --resume.
    """

    prompts: tuple[str, ...] | None = None
    """Prompts of a search. Default: --prompt; else the encoder's and a combination of two views."""
    cells = ProjectorCell

    def check_sweep(self) -> None:
        """Raise RequestError for flags that contradict each other or are out of range."""
        if self.prompts is not None and (self.grid is not None or self.prompt is not None):
            raise RequestError(
                "--prompts: expected it for a search, without --prompt, got --grid or --prompt beside it"
            )
        super().check_sweep()

    def config(self) -> CaseConfig:
        """The system without g, under the first prompt. Raises RequestError."""
        if not self.prompts:
            return super().config()
        reads_own = (prompt for prompt in self.prompts if PromptStyle.TEMPLATE in prompt.split("+"))
        config = replace(self, prompt=next(reads_own, self.prompts[0]), prompts=None).config()
        return replace(config, encoder=replace(config.encoder, prompt=self.prompts[0]))

    def base(self, config: CaseConfig) -> ProjectorCell:
        """The cell of the flags."""
        return ProjectorCell(recipe=self.recipe, prompt=config.encoder.prompt)

    def search_space(self, config: CaseConfig) -> Space:
        """What a search chooses from, prompts among it."""
        return {**ProjectorCell.space, "prompt": self._search_prompts(config.encoder.prompt)}

    def _search_prompts(self, default: str) -> list[str]:
        if self.prompts is None:
            if self.prompt is not None or self.template is not None or is_trained(self.model):
                return [default]
            if default in INSTRUCTED:
                return [default, "+".join(INSTRUCTED)]
            return [default, f"{PromptStyle.QUESTION}+{PromptStyle.STATEMENT}"]  # results/csts_minilm.md
        for prompt in self.prompts:
            parse_views(prompt)
        return list(dict.fromkeys(self.prompts))

    def system(self, config: CaseConfig, read: str) -> CaseConfig:
        """The system under a prompt."""
        return replace(config, encoder=replace(config.encoder, prompt=read))

    def embed(self, rated: RatedPairs, system: CaseConfig, runner: Embedder) -> PairVectors:
        """The vectors before g."""
        return pair_vectors(rated, system, runner.vectors_of, cache=self.cache_location, compute=self.compute)

    def save(
        self,
        cell: Cell,
        state: FitState,
        system: CaseConfig,
        validation: PairVectors,
        pairs: dict[str, RatedPairs],
        facts: dict[str, Any],
    ) -> None:
        """Write the model folder of a fit into `best`."""
        save_fit(self.folder / "best", system, cell.recipe, state, validation, pairs, facts)
