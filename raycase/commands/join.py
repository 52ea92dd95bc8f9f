"""The command join: the exact nearest neighbours of each vector of one output among those of another."""

import time
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from raycase.commands.flags import RayFlag
from raycase.errors import at_least, check_problems, check_ranges
from raycase.names import STALL_TIMEOUT, Advanced

EXAMPLE = "raycase join --query-vectors out/ --vectors out/ --output pairs/ --exclude-same id"


@dataclass(frozen=True, kw_only=True)
class JoinFlags(RayFlag):
    """Find each query's exact k nearest neighbours, by cosine, among all vectors under its condition.

    A job that was stopped resumes automatically when the same command is run again. Under a condition that outputs of
    `raycase embed --any-condition` lack, pool both first: `raycase embed --input OUTPUT --conditions ...`.
    """

    query_vectors: str
    """Output of `raycase embed` with the queries' vectors."""
    vectors: str
    """Output of `raycase embed`, of the same model, with the vectors to search; may be the same output."""
    output: str
    """Folder of the result: neighbours/*.parquet with id, condition (the query's), rank, neighbour, score."""
    condition: tuple[str, ...] = ()
    """Conditions with weights, as in "color=2" "place=-0.5": rank neighbours by the weighted mean of their cosines.
    Default: the neighbours under each condition."""
    k: Annotated[int, tyro.conf.arg(aliases=("-k",))] = 10
    """Number of neighbours."""
    exclude_same: str | None = None
    """Column (id, or a kept column): excludes vectors whose value in it equals the query's."""
    stall_timeout: Advanced[float] = STALL_TIMEOUT
    """Minutes without progress after which the job gives up, for example when no machine is available."""
    overwrite: bool = False
    """Remove an earlier result in the folder first."""


def join(flags: JoinFlags) -> dict[str, Any]:
    """Find the exact nearest neighbours of each vector."""
    from raycase.commands.place import AutoRunner
    from raycase.explore.join import NEIGHBOURS, RECORD, join
    from raycase.io.places import Folder, check_paths
    from raycase.io.storage import locate

    began = time.time()
    check_ranges(flags, at_least(1, flags, "k") | {"stall_timeout": (flags.stall_timeout > 0, "minutes above 0")})
    check_paths(
        opens={"--query-vectors": flags.query_vectors, "--vectors": flags.vectors},
        writes={"--output": Folder(flags.output, (RECORD, NEIGHBOURS))},
    )
    given = {**vars(flags)}
    runner, shares = AutoRunner(given.pop("ray")), {}
    if conditions := given.pop("condition"):
        from raycase.index.weighted_search import check_weights, weights_of

        none = '--condition: expected weights, as in "color=2", got none; leave it out for all conditions'
        check_problems({none: "=" not in "".join(conditions)})
        shares = {str(one.asked): one.share for one in check_weights(weights_of(conditions))}
    counts = join(**given, shares=shares, runner=runner)
    return counts | {"seconds": round(time.time() - began, 3), "output": locate(flags.output).uri}
