"""Embed a corpus under conditions: python jobs/embed.py --input captions.parquet --conditions ... --output out/"""

from typing import Any

from raycase.cli import main
from raycase.embed import embed
from raycase.estimate import dry_run
from raycase.request import EmbedJob
from raycase.sample import first_look


def work(job: EmbedJob) -> dict[str, Any]:
    """The job, or its dry run; after the sample, a first look at what the vectors know."""
    if job.dry_run:
        return dry_run(job)
    result = embed(job)
    if job.input is None:
        first_look(result["output"])
    return result


if __name__ == "__main__":
    main(EmbedJob, work)
