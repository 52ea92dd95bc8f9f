"""Where a command runs: in this process, unless there is a reason for Ray. Ray is imported only then.

Reasons of a command that can run on either: `--ray`; RAY_ADDRESS, or a Ray job; several workers or encoders; several
GPUs here, or processors for several encoders and work that repays them. A cluster that merely runs here is not joined.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from raycase.errors import RequestError, note_once
from raycase.job.runner import CPUS_OF_ENCODER, Item, Mapped, Runner

if TYPE_CHECKING:
    from raycase.job.plan import Plan
    from raycase.job.request import Actors, Request
    from raycase.job.units import WrittenUnit

USE_RAY = " Add --ray to use a Ray cluster."
UNITS_OF_ENCODER = 4  # at least, of several encoders: fewer would not repay the start of Ray


def why_ray(ray: bool | None, several: str = "") -> str:
    """The reason to run on Ray, "" for this process, named in a line once. several: what asks for several processes."""
    if ray is False and several.startswith("--"):
        raise RequestError(f"--no-ray: expected one process, got {several}")
    cluster = "a Ray job" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else ""
    cluster = cluster or ("RAY_ADDRESS" if os.environ.get("RAY_ADDRESS") else "")
    why = "" if ray is False else "--ray" if ray else cluster or several
    note_once(f"Running on Ray: {why}" if why else "Running in this process." + USE_RAY * (ray is not False))
    return why


def several_encoders(actors: Actors, units: int) -> str:
    """What asks for more than one encoder, or for what only Ray gives one: flags, GPUs, or processors for the units."""
    import torch

    if actors.count and actors.count[1] > 1:
        return f"--actors {':'.join(map(str, dict.fromkeys(actors.count)))}"
    if actors.gpus is not None:
        return f"--gpus-per-actor {actors.gpus:g}"
    gpus = torch.cuda.device_count()
    if actors.count or gpus == 1:
        return ""
    if gpus:
        return f"{gpus} GPUs"
    encoders = (os.cpu_count() or 1) // CPUS_OF_ENCODER
    return f"{encoders} encoders for {units} units" if 1 < encoders <= units / UNITS_OF_ENCODER else ""


class AutoRunner(Runner):
    """A runner that decides by the rule, when it is given its work. ray: the flag of the command."""

    def __init__(self, ray: bool | None = None) -> None:
        self.ray = ray
        self.embedding: Runner | None = None  # which then also does what follows

    def map(
        self,
        function: Callable[..., Mapped],
        items: Sequence[Item],
        *,
        encoder_of: tuple[Actors, int] | None = None,
        **how: Any,
    ) -> Iterator[Mapped]:
        """`Runner.map`."""
        runner = self.embedding or self._on(several_encoders(*encoder_of) if encoder_of else "")
        return runner.map(function, items, encoder_of=encoder_of, **how)

    def embed(self, request: Request, plan: Plan) -> Iterator[WrittenUnit]:
        """`Runner.embed`."""
        self.embedding = self._on(several_encoders(request.actors, plan.units))
        return self.embedding.embed(request, plan)

    def _on(self, several: str) -> Runner:
        if not why_ray(self.ray, several):
            return Runner()
        from raycase.ray.runner import RayRunner

        return RayRunner()
