"""Search or sweep the projector's choices: python jobs/tune.py --train ... --validation ... --output runs/sweep"""

from typing import Any

from raycase.cli import main
from raycase.distributed.tune import TuneJob, tune


def work(job: TuneJob) -> dict[str, Any]:
    """The sweep; the best cell and where the tables are."""
    result = tune(job)
    print(f"the tables are in {result['output']}, the best cell's model in {result['output']}/best")
    return result


if __name__ == "__main__":
    main(TuneJob, work)
