"""Check an output against its manifest: python jobs/verify.py OUTPUT"""

from dataclasses import dataclass
from typing import Any

import tyro

from raycase.cli import main
from raycase.corpus.verify import verify


@dataclass(frozen=True, kw_only=True)
class VerifyJob:
    """Read an output of jobs/embed.py back: counts, checksums, schema, no NaN, no row twice."""

    output: tyro.conf.Positional[str]
    """The folder that jobs/embed.py wrote."""


def work(job: VerifyJob) -> dict[str, Any]:
    """Verify; the totals with `verified` true."""
    return verify(job.output) | {"verified": True}


if __name__ == "__main__":
    main(VerifyJob, work)
