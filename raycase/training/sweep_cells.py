"""The cells of a sweep, whatever is fitted: cells of a base, grids of a file, and searches at random."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args, get_origin, get_type_hints

import numpy as np

from raycase.data.storage import locate
from raycase.errors import RequestError
from raycase.training.loop import FitState

if TYPE_CHECKING:
    from raycase.training.sweep_trials import CellScore

Space = Mapping[str, Any]  # by setting. Lists: one of the values; pairs: a number between, log-uniform where marked
Grids = Mapping[str, Callable[[Any], list[Any]]]  # by name: the base's cells
Columns = Mapping[str, type]
CORRELATIONS = ("spearman", "spearman_rated", "pearson")  # figures of a trial on rated pairs
MOST_CELLS = 10_000  # of a grid; a sweep of more would not end, and takes minutes to lay out
EXPECTED = {int: "a whole number", bool: "true or false", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A choice of every setting; `name` is its label in a grid. A subclass is a kind of fit, and says what it needs."""

    recipe: Any
    name: str = ""

    source: ClassVar[str]
    """The setting that decides which data a cell is fitted on."""
    earlier: ClassVar[Mapping[str, Any]] = {}
    """The values of columns that the trials of earlier versions lack."""

    @property
    def names(self) -> Sequence[str]:
        """The settings in which cells may differ."""
        raise NotImplementedError

    @property
    def space(self) -> Space:
        """What a search chooses from."""
        raise NotImplementedError

    @property
    def grids(self) -> Grids:
        """The grids that have a name."""
        raise NotImplementedError

    @property
    def columns(self) -> Columns:
        """The columns of the table of trials that only this kind has."""
        raise NotImplementedError

    @property
    def figures(self) -> Sequence[str]:
        """The metrics in the table of trials; the first chooses the best epoch and the best cell."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Identifies the cell: equal keys fit the same weights. Excludes settings without effect."""
        raise NotImplementedError

    def fit(self, train: Any, validation: Any, *, seed: int, device: str = "cpu") -> Iterator[FitState]:
        """Fit the recipe on its data; yields the state after each epoch."""
        raise NotImplementedError

    def check(self, system: Any = None) -> None:
        """Raise RequestError for values out of their range, or, given the cell's system, that do not fit it."""
        self.recipe.check()

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name, as in the table of trials."""
        every = vars(self) | vars(self.recipe)
        return {name: _plain(every[name]) for name in self.names}

    @property
    def read(self) -> str:
        """Which data the cell is fitted on."""
        return str(self.values[self.source])

    def row(self, input_dim: int) -> dict[str, Any]:
        """The values of `columns`, for a fit on states or vectors of this dimension."""
        return self.values | {"input_dim": input_dim}

    def describe(self, row: Mapping[str, Any]) -> str:
        """A row in one line."""
        raise NotImplementedError

    def tables(self, scores: Sequence[CellScore], grid: str | None) -> list[str]:
        """Tables of the summary that only this kind has, as markdown."""
        raise NotImplementedError

    def changed(self, name: str = "", /, **choices: Any) -> Self:
        """This cell with some settings changed. Raises RequestError for a value out of its range."""
        hints = get_type_hints(type(self.recipe))
        try:
            typed = {k: _typed(k, v, hints[k]) if k in hints else v for k, v in choices.items()}
            recipe = replace(self.recipe, **{k: v for k, v in typed.items() if k in hints})
            cell = replace(self, recipe=recipe, name=name, **{k: v for k, v in typed.items() if k not in hints})
            cell.check()
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"--grid: expected values of a recipe, got {choices}: {error}") from error
        return cell


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value of a table or a JSON file as the recipe's. Raises what `changed` catches."""
    kinds = get_args(hint) or (hint,)
    if Ellipsis in kinds:
        return depths_of(value)
    if value is None and NoneType in kinds:
        return None
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, Enum):
            return kind(value)
        if get_origin(kind) is Literal and value in get_args(kind):
            return value
    if float not in kinds and type(value) not in kinds:
        raise TypeError(f"expected {EXPECTED.get(kinds[0], 'another value')} as {name}")
    return value


def _plain(value: Any) -> Any:
    """A setting as in the table of trials."""
    if isinstance(value, tuple):
        fractions = {depth: Fraction(depth).limit_denominator(100) for depth in value}
        return " ".join(str(short) if float(short) == depth else repr(depth) for depth, short in fractions.items())
    return str(value) if isinstance(value, Enum) else value


def depths_of(value: str | Sequence[float]) -> tuple[float, ...]:
    """Fractions of a depth: "2/3 1", as the table of trials has them, or numbers."""
    return tuple(float(Fraction(part)) for part in (value.split() if isinstance(value, str) else value))


def grid_of(uri: str, base: Cell) -> list[Cell]:
    """The product of the lists in a JSON file, as {"dropout": [0.1, 0.3], "prompt": ["cond", "cond+sent"]}.

    Raises RequestError for anything but a JSON object of lists, unknown names, values out of their range, and more than
    `MOST_CELLS` cells.
    """
    source = locate(uri)
    if not source.exists():
        raise RequestError(f"--grid: expected {', '.join(base.grids)} or a JSON file, got {uri}")
    values = source.read_json()
    if not isinstance(values, dict) or not all(isinstance(v, list) and v for v in values.values()):
        raise RequestError(f"--grid: expected an object of lists in {uri}, got {json.dumps(values)[:80]}")
    for name in values:
        if name not in base.names:
            raise RequestError(f"--grid: expected names among {', '.join(base.names)} in {uri}, got {name!r}")
    count = math.prod(map(len, values.values()))
    if count > MOST_CELLS:
        raise RequestError(f"--grid: expected at most {MOST_CELLS:,} cells in {uri}, got {count:,}; leave values out")
    cells = []
    for combination in itertools.product(*values.values()):
        choice = dict(zip(values, combination, strict=True))
        label = ", ".join(f"{k} {v}" for k, v in choice.items()) or "base"
        cells.append(base.changed(label, **choice))
    return cells


def random_cells(base: Cell, space: Space, count: int, seed: int) -> list[Cell]:
    """The first `count` cells of a random search; does not depend on `count` otherwise."""
    return [base.changed(**_draw(np.random.default_rng([seed, i]), space)) for i in range(count)]


def _draw(random: np.random.Generator, space: Space) -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, choices in space.items():
        match choices:
            case list():
                point[name] = choices[random.integers(len(choices))]
            case ("log", low, high):
                point[name] = float(np.exp(random.uniform(np.log(low), np.log(high))))
            case (low, high):
                point[name] = float(random.uniform(low, high))
    return point
