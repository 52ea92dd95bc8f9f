"""Embed a corpus under conditions: python jobs/embed.py --input captions.parquet --conditions ... --output out/"""

from typing import Any

from raycase.cli import main
from raycase.corpus.request import EmbedJob
from raycase.distributed.embed import embed
from raycase.distributed.estimate import dry_run


def work(job: EmbedJob) -> dict[str, Any]:
    """The job, or its dry run."""
    return dry_run(job) if job.dry_run else embed(job)


if __name__ == "__main__":
    main(EmbedJob, work)
