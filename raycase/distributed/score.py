"""The scoring of pairs of sentences on Ray: the embedding job, whose units end in scores."""

from __future__ import annotations

import time
from typing import Any

from raycase.corpus.run import Execute, run_checked
from raycase.corpus.score_request import ScoreJob, check_score
from raycase.distributed.embed import prepare_ray


def score(job: ScoreJob, *, execute: Execute | None = None) -> dict[str, Any]:
    """Score the pairs on Ray, or by `execute`; returns counts and rates. Raises RequestError and WorkError."""
    began = time.time()
    return run_checked(check_score(job), began, prepare=prepare_ray if execute is None else lambda *_: execute)
