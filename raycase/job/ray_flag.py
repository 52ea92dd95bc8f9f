"""The flag that says where a command runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RayFlag:
    """Where a command runs."""

    ray: bool | None = None
    """Run on Ray; --no-ray: in this process. Default: in this process, unless RAY_ADDRESS or a Ray job names a cluster,
    or several encoders or workers are requested or worth starting."""
