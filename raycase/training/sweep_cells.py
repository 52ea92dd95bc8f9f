"""The cells of a sweep, each a recipe and a prompt: the paper's grids, grids from a file, and the search space."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from raycase.data.storage import fingerprint, locate
from raycase.encoder.prompts import parse_views
from raycase.errors import RequestError
from raycase.systems.projector import Activation, settings_of
from raycase.training.losses import Loss, RatingMap
from raycase.training.projector_fit import OUTPUT_DIM, RECIPE_FIELDS, Recipe

DIMS = (50, *range(100, 1001, 100))  # Figure 4
HIDDEN = (256, 768, 1024, 2048, 8192)  # appendix B

# The search space. Lists: one of the values; pairs: a number between the two, log-uniform where marked.
SPACE: dict[str, Any] = {
    "activation": list(Activation),
    "dropout": (0.0, 0.5),
    "layers": [1, 2],
    "hidden": list(HIDDEN),
    "dim": list(DIMS),
    "learning_rate": ("log", 1e-4, 5e-3),
    "weight_decay": [0.0, 0.01, 0.1, 1.0],
    "batch_size": [128, 256, 512, 1024],
    "rating_map": list(RatingMap),
}
SWEPT = tuple(name for name in RECIPE_FIELDS if name != "nested")  # what cells may differ in
WHOLE = {"layers", "hidden", "dim", "batch_size", "epochs", "patience"}
ENUMS = {"activation": Activation, "loss": Loss, "rating_map": RatingMap}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A recipe and a prompt; `name` is its label in a grid."""

    recipe: Recipe
    prompt: str
    name: str = ""

    @cached_property
    def key(self) -> str:
        """Identifies the cell: equal keys fit the same g. Excludes settings without effect."""
        values = settings_of(self.recipe) | {"prompt": self.prompt}
        if self.recipe.layers < 2:
            del values["hidden"]
        if self.recipe.layers == 0:
            del values["activation"]
        return fingerprint(values)[:10]

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name, as in the table of trials."""
        values = {name: getattr(self.recipe, name) for name in SWEPT}
        return {k: str(v) if k in ENUMS else v for k, v in values.items()} | {"prompt": self.prompt}


def table7(base: Recipe, prompt: str) -> list[Cell]:
    """The cells of the paper's Table 7: linear, two layers, one layer; each activation; with and without dropout."""
    base = replace(base, dim=base.dim or OUTPUT_DIM)  # the paper's, even above the encoder's
    cells = [make_cell(base, prompt, "Linear", layers=0, dropout=d) for d in (0.2, 0.0)]
    for layers, title in ((2, "Two-layer"), (1, "One-layer")):
        cells += [
            make_cell(base, prompt, f"{title} {a}", layers=layers, hidden=1024, activation=a, dropout=d)
            for a in Activation
            for d in (0.15, 0.0)
        ]
    return cells


def figure4(base: Recipe, prompt: str) -> list[Cell]:
    """The cells of the paper's Figure 4: dimensions 50 to 1000."""
    return [make_cell(base, prompt, f"{dim}", dim=dim) for dim in DIMS]


def grid_of(uri: str, base: Recipe, prompt: str) -> list[Cell]:
    """The product of the lists in a JSON file, as {"dropout": [0.1, 0.3], "prompt": ["cond", "cond+sent"]}.

    Raises RequestError for anything but a JSON object of lists, unknown names, and values out of their range.
    """
    source = locate(uri)
    if not source.exists():
        raise RequestError(f"--grid: expected table7, figure4 or a JSON file, got {uri}")
    values = source.read_json()
    known = (*SWEPT, "prompt")
    if not isinstance(values, dict) or not all(isinstance(v, list) and v for v in values.values()):
        raise RequestError(f"--grid: expected an object of lists in {uri}, got {json.dumps(values)[:80]}")
    for name in values:
        if name not in known:
            raise RequestError(f"--grid: expected names among {', '.join(known)} in {uri}, got {name!r}")
    cells = []
    for combination in itertools.product(*values.values()):
        choice = dict(zip(values, combination, strict=True))
        label = ", ".join(f"{k} {v}" for k, v in choice.items()) or "base"
        cells.append(make_cell(base, choice.pop("prompt", prompt), label, **choice))
    return cells


def make_cell(base: Recipe, prompt: str, label: str, **choices: Any) -> Cell:
    """`base` with some settings changed. Raises RequestError for a value out of its range."""
    try:
        typed: dict[str, Any] = {k: ENUMS[k](v) if k in ENUMS else v for k, v in choices.items()}
        for name in typed.keys() & WHOLE:
            if not isinstance(typed[name], int) and (name, typed[name]) != ("dim", None):
                raise TypeError(f"expected a whole number as {name}")
        parse_views(prompt)
        recipe = replace(base, **typed)
        recipe.check()
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"--grid: expected values of a recipe, got {choices}: {error}") from error
    return Cell(recipe=recipe, prompt=prompt, name=label)


def random_cells(base: Recipe, prompts: Sequence[str], count: int, seed: int) -> list[Cell]:
    """The first `count` cells of a random search; does not depend on `count` otherwise."""
    return [cell_of(_draw(np.random.default_rng([seed, i]), prompts), base) for i in range(count)]


def _draw(random: np.random.Generator, prompts: Sequence[str]) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, choices in (SPACE | {"prompt": list(prompts)}).items():
        match choices:
            case list():
                point[name] = choices[random.integers(len(choices))]
            case ("log", low, high):
                point[name] = float(np.exp(random.uniform(np.log(low), np.log(high))))
            case (low, high):
                point[name] = float(random.uniform(low, high))
    return point


def cell_of(point: dict[str, Any], base: Recipe) -> Cell:
    """The cell at a point of the search space."""
    choices = dict(point)
    return make_cell(base, choices.pop("prompt"), "", **choices)
