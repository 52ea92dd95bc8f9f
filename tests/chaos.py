"""Jobs under random failures, round after round, each compared with an undisturbed run: `make chaos`.

    python tests/chaos.py --minutes 10 --seed 0

A round is a small `embed` from S3 to S3 on a cluster of two machines. Some requests fail, and at seeded moments an
encoder's process, the process of a task, a machine or the driver is killed. A driver that is killed, or that gives up
because the store failed, is started again with the same command. At the end the output must be that of an undisturbed
run, and pass `verify`.

Prints a line a round, and one JSON object. Exit status 1 where a round lost a row or had one twice.
"""

import argparse
import json
import logging
import random
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import conftest  # noqa: F401 (sets the environment for the store and for Ray)
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from disturbed import Disturbed
from helpers import embed_here, flags_of, same_output, save_tiny_model, sentences, small_job, wait_for
from s3_proxy import FAULTS, Proxy, serving

from raycase.job.output import output_at

KINDS = ("actor", "task", "machine", "driver")
ROUND_SECONDS = 900  # a loaded machine takes minutes to start a driver


@contextmanager
def failing_store(seed):
    """An S3 server, and the URL of a proxy to it that fails one request in twenty."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    with serving() as url, Proxy(url, failing=0.05, faults=FAULTS, seed=seed) as proxy:
        yield proxy.url


def play(number, seed, head, environment, home):
    """One round; gives what was killed."""
    chance = random.Random(f"{seed}-{number}")
    folder, place = home / str(number), f"corpus/chaos-{seed}-{number}"
    (folder / "in").mkdir(parents=True)
    units, unit_rows = chance.randint(20, 40), chance.choice([20, 50, 100])
    table = pa.table({"text": sentences(units * unit_rows, f"{seed}-{number}")})
    pq.write_table(table, folder / "in" / "0.parquet", row_group_size=5 * unit_rows)
    fsspec.filesystem("s3").put(str(folder / "in"), f"{place}/in", recursive=True)
    plain = replace(small_job(folder, home / "model"), input=str(folder / "in"), unit_rows=unit_rows)
    embed_here(plain)
    flags = flags_of(replace(plain, input=f"s3://{place}/in", output=f"s3://{place}/out", actors="1:2"))
    run = Disturbed(head, flags, output_at(f"s3://{place}/out"), folder, environment)

    def finished():
        """Whether the driver is done; one that gave up is started again."""
        if run.driver.poll() in (None, 0):
            return run.driver.poll() == 0
        assert run.driver.poll() == 1, run.said()
        run.start()
        return False

    kinds = chance.choices(KINDS, k=chance.randint(1, 4))
    try:
        for kind, moment in zip(kinds, sorted(chance.randint(1, units - 2) for _ in kinds), strict=True):
            wait_for(lambda moment=moment: finished() or run.began() >= moment, ROUND_SECONDS)
            if not finished():
                run.kill(kind, chance)
        wait_for(finished, ROUND_SECONDS)
    finally:
        run.driver.kill()
    same_output(f"s3://{place}/out", plain.output)
    return kinds


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=10, help="begin no further round after so long")
    arguments.add_argument("--first", type=int, default=0, help="number of the first round")
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    from clusters import Head

    began, failed, number = time.monotonic(), [], asked.first
    with tempfile.TemporaryDirectory(prefix="chaos") as home, failing_store(asked.seed) as url:
        save_tiny_model(Path(home) / "model")
        environment = {"AWS_ENDPOINT_URL": url, "RAYCASE_S3_TIMEOUT": "2"}  # of the cluster's machines
        with Head(environment=environment) as head:
            while number == asked.first or time.monotonic() - began < 60 * asked.minutes:
                try:
                    said = f"killed {', '.join(play(number, asked.seed, head, environment, Path(home)))}"
                except Exception:
                    traceback.print_exc()
                    failed.append(number)
                    said = "FAILED"
                print(f"round {number}: {said}", file=sys.stderr, flush=True)
                number += 1
    print(json.dumps({"rounds": number - asked.first, "failed": failed, "seed": asked.seed}))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
