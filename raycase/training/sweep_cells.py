"""The cells of a sweep: a training job, some of whose flags are replaced; grids, and the space of a search."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from types import NoneType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from raycase.data.storage import fingerprint, json_file
from raycase.errors import RequestError
from raycase.training.job import TrainingJob, plain
from raycase.training.loop import FitState

Sampler = Mapping[str, list[Any]]  # {"uniform": [0, 0.5]}: a function of `ray.tune` and its arguments
Space = Mapping[str, Sampler]  # by flag
SAMPLERS = {"choice": None, "uniform": float, "loguniform": float, "randint": int, "lograndint": int}  # of `ray.tune`
COUNTED = ("epochs", "patience")  # the table of trials has them in columns of its own
MOST_CELLS = 10_000  # of a grid; a sweep of more would not end, and takes minutes to lay out
EXPECTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
BUILT_IN: dict[str, Any] = json.loads(files("raycase.training").joinpath("sweeps.json").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A training job with a choice of its flags; `name` is its label in a grid."""

    job: TrainingJob
    name: str = ""
    choices: Mapping[str, Any] = field(default_factory=dict)  # as the grid or the search gave them
    wrong: str = ""  # why they contradict each other: such a trial fails

    @cached_property
    def key(self) -> str:
        """Identifies the cell: equal keys fit the same weights."""
        return fingerprint([self.job.settings(), self.choices] if self.wrong else self.job.settings())[:10]

    @property
    def values(self) -> dict[str, Any]:
        """The settings by name, as in the table of trials."""
        return {name: plain(getattr(self.job, name)) for name in self.job.swept}

    @property
    def data_key(self) -> str:
        """The key of the data that the cell is fitted on."""
        return str(plain(getattr(self.job, self.job.SHARED_BY)))

    @property
    def columns(self) -> dict[str, type]:
        """The settings in the table of trials."""
        hints = get_type_hints(type(self.job))
        return {name: _column(hints[name]) for name in self.job.swept if name not in COUNTED} | {"input_dim": int}

    def row(self, input_dim: int) -> dict[str, Any]:
        """The values of `columns`, for a fit on states or vectors of this dimension."""
        return self.values | self.job.derived(input_dim) | {"input_dim": input_dim}

    @property
    def metric_names(self) -> Sequence[str]:
        """The metrics in the table of trials; the first chooses the best epoch and the best cell."""
        return self.job.metric_names

    def fit(self, shared: Any, *, seed: int, device: str = "cpu") -> Iterator[FitState]:
        """A trial, on what `TrainingJob.shared` gave; yields the state after each epoch. Raises RequestError."""
        if self.wrong:
            raise RequestError(self.wrong)
        fitting = self.job.fitting(on_gpu=device != "cpu")
        return fitting(*self.job.prepared(shared), self.job.recipe, seed=seed, wrap=lambda module: module.to(device))

    def changed(self, name: str = "", /, **choices: Any) -> Self:
        """This cell with some flags replaced. Raises RequestError for a value out of its range."""
        hints = get_type_hints(type(self.job))
        try:
            typed = {flag: _typed(flag, value, hints[flag]) for flag, value in choices.items()}
            cell = replace(self, job=self.job.replaced(**typed), name=name, choices=choices)
            cell.job.check_flags()
        except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(f"--grid: expected values of a recipe, got {choices}: {error}") from error
        return cell

    def drawn(self, choices: Mapping[str, Any]) -> Self:
        """This cell with choices of a search, each of which can be, but not always beside the others."""
        try:
            return self.changed(**choices)
        except RequestError as error:
            return replace(self, choices=choices, wrong=str(error))


def choices_text(choices: Mapping[str, Any]) -> str:
    """Choices in a line."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in choices.items()) or "as the flags"


def grid_of(named: str, base: Cell) -> list[Cell]:
    """The cells of a grid: one that has a name, or a JSON file, whose name ends in .json.

    An object of lists is their product; a list of such objects has the cells of each. Raises RequestError for anything
    else, unknown flags, values out of their range, and more than `MOST_CELLS` cells.
    """
    if named.endswith(".json"):
        values = json_file(named, "--grid")
    else:
        known = BUILT_IN.get(base.job.SYSTEM, {}).get("grids", {})
        if named not in known:
            raise RequestError(f"--grid: expected {', '.join([*known, 'a file NAME.json'])}, got {named}")
        values = known[named]
    products = values if isinstance(values, list) and values else [values]
    if not all(isinstance(p, dict) and all(isinstance(v, list) and v for v in p.values()) for p in products):
        got = json.dumps(values)[:80]
        raise RequestError(f"--grid: expected an object of lists, or a list of such objects, in {named}, got {got}")
    for flag in (flag for product in products for flag in product):
        _check_name(flag, base, "--grid", named)
    count = sum(math.prod(map(len, product.values())) for product in products)
    if count > MOST_CELLS:
        raise RequestError(f"--grid: expected at most {MOST_CELLS:,} cells in {named}, got {count:,}; leave values out")
    cells = []
    for product in products:
        for combination in itertools.product(*product.values()):
            choice = dict(zip(product, combination, strict=True))
            cells.append(base.changed(choices_text(choice), **choice))
    return list({cell.key: cell for cell in cells}.values())


def space_of(file: str | None, base: Cell) -> Space:
    """What a search chooses from: a JSON file, as {"dropout": {"uniform": [0, 0.5]}}; None: the system's own.

    Raises RequestError for anything but flags with a sampler each, whose values are in their range.
    """
    if file is None and base.job.SYSTEM not in BUILT_IN:
        raise RequestError(
            f"--space: expected a JSON file for {base.job.SYSTEM}, which has no space of its own, got none"
        )
    space = BUILT_IN[base.job.SYSTEM]["space"] if file is None else json_file(file, "--space")
    where = file or base.job.SYSTEM
    if not isinstance(space, dict) or not space:
        raise RequestError(f"--space: expected an object of flags in {where}, got {json.dumps(space)[:80]}")
    for flag, sampler in space.items():
        _check_name(flag, base, "--space", where)
        for value in _ends(flag, sampler, base, where):
            try:
                base.changed(**{flag: value})
            except RequestError as error:
                raise RequestError(str(error).replace("--grid", f"--space {where}", 1)) from error
    if "choice" not in space.get(base.job.SHARED_BY, {"choice": []}):
        raise RequestError(f"--space: expected a choice for {base.job.SHARED_BY}, got {space[base.job.SHARED_BY]}")
    return space


def most_epochs(space: Space, base: Cell) -> int:
    """The epochs of the longest cell of a search."""
    kind, given = next(iter(space.get("epochs", {"choice": [base.job.recipe.epochs]}).items()))
    return int(max(given)) if kind == "choice" else given[1] - 1


def _ends(flag: str, sampler: Any, base: Cell, where: str) -> list[Any]:
    """The values of a choice, or the least and the largest number that a sampler draws. Raises RequestError."""
    kind, given = next(iter(sampler.items())) if isinstance(sampler, dict) and len(sampler) == 1 else ("", None)
    if kind not in SAMPLERS or not isinstance(given, list) or not given:
        expected = f'one of {", ".join(SAMPLERS)} with a list, as {{"uniform": [0, 0.5]}}'
        raise RequestError(f"--space: expected {expected} for {flag} in {where}, got {json.dumps(sampler)[:80]}")
    if (number := SAMPLERS[kind]) is None:
        return given
    hint = get_type_hints(type(base.job))[flag]
    if number not in (get_args(hint) or (hint,)):
        numbers = "uniform or loguniform" if float in (get_args(hint) or (hint,)) else "randint or lograndint"
        raise RequestError(f"--space: expected choice, or of numbers {numbers}, for {flag} in {where}, got {kind}")
    allowed = (int,) if number is int else (int, float)
    if len(given) != 2 or not all(type(v) in allowed and math.isfinite(v) for v in given) or given[0] >= given[1]:
        wanted = f"2 {'whole ' if number is int else ''}numbers, the first below the second"
        raise RequestError(f"--space: expected {wanted}, for {kind} of {flag} in {where}, got {json.dumps(given)[:80]}")
    if kind.startswith("log") and given[0] <= 0:
        raise RequestError(f"--space: expected numbers above 0 for {kind} of {flag} in {where}, got {given[0]}")
    return [given[0], given[1] - 1 if number is int else given[1]]


def _check_name(flag: str, base: Cell, of: str, where: str) -> None:
    if flag not in base.job.swept:
        raise RequestError(f"{of}: expected names among {', '.join(base.job.swept)} in {where}, got {flag!r}")


def _typed(name: str, value: Any, hint: Any) -> Any:
    """A value of a table or a JSON file as the flag's. Raises what `changed` catches."""
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
    if type(value) not in kinds and not (float in kinds and type(value) is int):
        raise TypeError(f"expected {EXPECTED.get(kinds[0], 'another value')} as {name}")
    return value


def _column(hint: Any) -> type:
    """The type of a flag's column in the table of trials."""
    kind = next((kind for kind in get_args(hint) if kind is not NoneType), hint)
    return kind if kind in (bool, int, float) and Ellipsis not in get_args(hint) else str


def depths_of(value: str | Sequence[float]) -> tuple[float, ...]:
    """Fractions of a depth: "2/3 1", as the table of trials has them, or numbers."""
    return tuple(float(Fraction(part)) for part in (value.split() if isinstance(value, str) else value))
