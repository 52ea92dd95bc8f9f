"""Jobs under random failures, round after round, each compared with an undisturbed run: `make chaos`.

    python tests/chaos.py --minutes 10 --seed 0

A round is a small `embed` from S3 to S3 on a cluster of two machines. Some requests fail, and at seeded moments an
encoder's process, the process of a task, a machine or the driver is killed. A driver that is killed, or that gives up
because the store failed, is started again with the same command. At the end the output must be that of an undisturbed
run, and pass `verify`. In round 0 no request fails, and no unit may be computed again that was not in flight.

Then a search over shards, and a service, under load: `tests/under_load.py`. Each of the three has its part of the time.

Prints a line a round, and one JSON object. Exit status 1 where a round lost a row or had one twice, or a request had
a wrong answer or none.
"""

import argparse
import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path

import conftest  # noqa: F401 (sets the environment for the store and for Ray)
import fsspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import under_load
from counted import counted
from helpers import ROOT, embed_here, flags_of, same_output, save_tiny_model, sentences, small_job, wait_for
from s3_proxy import FAULTS, Proxy, serving

from raycase.job.output import Output

PARTS = ("embed", "shards", "service")
LEAST_SECONDS = 20.0  # of a part under load
KINDS = ("actor", "task", "machine", "driver")
OF_ROUND_0 = ("actor", "machine", "driver")
ROUND_SECONDS = 900  # a loaded machine takes minutes to start a driver

COUNTED = str(ROOT / "tests" / "counted.py")  # embeds, and counts
ENCODERS, TASKS = "ray::MapWorker(MapBatches(Encode", "ray::MapBatches("  # titles of Ray's processes


class Disturbed:
    """A job by its flags on two machines, whose processes and driver are killed; the driver is started again."""

    def __init__(self, head, flags, output, folder, environment):
        self.head, self.output, self.folder = head, output, folder
        self.command = [sys.executable, COUNTED, *map(str, flags)]
        self.environment = head.environment | {"COUNTED": str(folder)} | environment
        while len(head.workers) < 2:
            head.add_node(cpus=2)
        wait_for(lambda: len(head.nodes()) == 2)
        self.start()

    def start(self):
        """Run the command, as a user does again after it was killed."""
        with open(self.folder / "driver.log", "a") as log:
            options = {"stdout": log, "stderr": log, "start_new_session": True}
            self.driver = subprocess.Popen(self.command, env=self.environment, **options)

    def said(self):
        """The end of what the drivers printed."""
        return (self.folder / "driver.log").read_text()[-3000:]

    def began(self):
        return len(set(counted(self.folder)))

    def kill(self, kind, chance):
        """Kill one, and give how many units were in flight then: begun by an encoder and not written, at most.

        None where the job was done before there was one to kill.
        """
        written = len(self.output.units.list())
        if kind == "machine":
            machine = self.head.workers.pop(chance.randrange(len(self.head.workers)))
            machine.kill()
            began = self.began()
            self.head.add_node(cpus=2)
        elif kind == "driver":
            self.driver.kill()
            self.driver.wait()
            began = self.began()
            self.start()
        else:
            title = ENCODERS if kind == "actor" else TASKS
            if (found := wait_for(lambda: self.head.titled(title) or self.driver.poll() is not None)) is True:
                return None
            with contextlib.suppress(psutil.NoSuchProcess):
                chance.choice(found).kill()
            began = self.began()
        return began - written


@contextlib.contextmanager
def failing_store(seed):
    """A proxy to an S3 server."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
    with serving() as url, Proxy(url, faults=FAULTS, seed=seed) as proxy:
        yield proxy


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
    actors = "1:2" if number else "2:2"
    flags = flags_of(replace(plain, input=f"s3://{place}/in", output=f"s3://{place}/out", actors=actors))
    run = Disturbed(head, flags, Output(f"s3://{place}/out"), folder, environment)

    def finished():
        """Whether the driver is done; one that gave up is started again."""
        if run.driver.poll() in (None, 0):
            return run.driver.poll() == 0
        assert number and run.driver.poll() == 1, run.said()  # in round 0 nothing makes it give up
        run.start()
        return False

    kinds = chance.choices(KINDS, k=chance.randint(1, 4)) if number else chance.sample(OF_ROUND_0, 3)
    again = 0  # units that may be computed again
    try:
        for kind, moment in zip(kinds, sorted(chance.randint(1, units - 2) for _ in kinds), strict=True):
            wait_for(lambda moment=moment: finished() or run.began() >= moment, ROUND_SECONDS)
            if not finished():
                in_flight = run.kill(kind, chance)
                again += 1 if kind == "actor" else in_flight or 0
        wait_for(finished, ROUND_SECONDS)
    finally:
        run.driver.kill()
    same_output(f"s3://{place}/out", plain.output)
    # A driver takes all that was in flight with it, a machine at most that; an actor only the unit that it is at, for
    # what it has done lies elsewhere. Of a task, and of a driver that gives up, nobody says how much is lost.
    began = counted(folder)
    assert len(set(began)) == units and (number or len(began) - units <= again), (len(began), units, again)
    return kinds


def embeds(home, head, environment, proxy, asked, until):
    """Rounds of `play`; gives the numbers of those that failed, and how many there were."""
    failed, number = [], asked.first
    while number <= max(asked.first, 1) or time.monotonic() < until:
        proxy.failing = 0.05 if number else 0.0
        proxy.failed.clear()
        try:
            said = f"killed {', '.join(play(number, asked.seed, head, environment, home))}"
            assert bool(proxy.failed) == bool(number), f"requests that failed: {proxy.failed}"
        except Exception:
            traceback.print_exc()
            failed.append(number)
            said = "FAILED"
        print(f"round {number}: {said}", file=sys.stderr, flush=True)
        number += 1
    return {"rounds": number - asked.first, "failed": failed}


def loaded(part, home, head, asked, seconds):
    """A part of `under_load`; gives what it counted."""
    home.mkdir()
    try:
        counted = getattr(under_load, part)(home, head, asked.seed, max(seconds, LEAST_SECONDS)).line()
    except Exception:
        traceback.print_exc()
        counted = {"wrong": [traceback.format_exc(limit=3)]}
    print(f"{part}: {json.dumps(counted, indent=1)}", file=sys.stderr, flush=True)
    return counted


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--parts", nargs="*", default=[*PARTS], choices=PARTS)
    arguments.add_argument("--minutes", type=float, default=10, help="of all parts; begin no round but two after its")
    arguments.add_argument("--first", type=int, default=0, help="number of the first round")
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    from clusters import Head

    found, seconds = {}, 60 * asked.minutes / len(asked.parts)
    with tempfile.TemporaryDirectory(prefix="chaos") as folder, failing_store(asked.seed) as proxy:
        home = Path(folder)
        save_tiny_model(home / "model")
        environment = {"AWS_ENDPOINT_URL": proxy.url, "RAYCASE_S3_TIMEOUT": "2"}  # of the cluster's machines
        with Head(environment=environment) as head:
            os.environ |= {name: value for name, value in head.environment.items() if name.startswith("RAY_")}
            for part in asked.parts:
                if part == "embed":
                    found[part] = embeds(home, head, environment, proxy, asked, time.monotonic() + seconds)
                else:
                    found[part] = loaded(part, home / part, head, asked, seconds)
    print(json.dumps(found | {"seed": asked.seed}))
    sys.exit(any(each.get("failed") or each.get("wrong") for each in found.values()))


if __name__ == "__main__":
    main()
