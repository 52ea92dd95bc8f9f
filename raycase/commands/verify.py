"""The command verify: an output against its manifest."""

from dataclasses import dataclass
from typing import Any

import tyro

from raycase.commands.flags import RayFlag
from raycase.errors import check_ranges

EXAMPLE = "raycase verify out/"


@dataclass(frozen=True, kw_only=True)
class VerifyFlags(RayFlag):
    """Check an output of `raycase embed` or `raycase score`: counts, checksums, schema, no NaN, no duplicate row."""

    output: tyro.conf.Positional[str]
    """The folder that the job wrote."""


def verify(flags: VerifyFlags) -> dict[str, Any]:
    """Check an output of `embed` or `score` against its manifest."""
    from raycase.commands.place import AutoRunner
    from raycase.io.places import check_paths
    from raycase.job.verify import verify

    check_paths(opens={"OUTPUT": flags.output})
    check_ranges(flags)
    return verify(flags.output, AutoRunner(flags.ray)) | {"verified": True}
