"""Jobs under random failures, round after round, each compared with an undisturbed run: `make chaos`.

    python tests/chaos.py --minutes 10 --seed 0

A round is a small job from S3 to S3 on a cluster of two machines: `embed`, `embed --any-condition` or `materialize`.
Some requests fail, and at seeded moments (counted in units that are begun or written) something is killed: an encoder's
process, the process of a task, a machine, the driver, or the store, which is gone for two seconds. A driver that is
killed, or that gives up because the store failed, is started again with the same command. At the end the output must be
that of an undisturbed run, and pass `verify`.

Prints a line a round, a table, and one JSON object. Exit status 1 where a round lost a row or had one twice.
"""

import argparse
import json
import logging
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import conftest  # noqa: F401 (sets the environment for the store and for Ray)
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import storing
from counted import counted
from disturbed import COUNTED, Disturbed
from helpers import cosines, embed_here, flags_of, read_output, save_tiny_model, sentences, small_job, vectors, wait_for

from raycase.corpus.materialize import MaterializeJob
from raycase.corpus.output import output_at
from raycase.corpus.verify import verify
from raycase.data.stored_words import WORD_COLUMNS

CONDITIONS = ("color", "number of people")
KINDS = ("actor", "task", "machine", "driver", "store")
FAULTS = ((500, "InternalError"), (503, "SlowDown"), "reset", "cut", "stall")
DOWN, ROUND_SECONDS = 2.0, 900  # seconds; a loaded machine takes minutes to start a driver


class Store:
    """An S3 server that can be restarted, behind a proxy that fails some requests."""

    def __init__(self, failing, seed):
        import boto3
        from moto.server import ThreadedMotoServer
        from s3_proxy import Proxy

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else a line for each request
        self.kind = ThreadedMotoServer
        self.server = self.kind(ip_address="127.0.0.1", port=0)
        self.server.start()
        self.host, self.port = self.server.get_host_and_port()
        self.url = f"http://{self.host}:{self.port}"
        os.environ["AWS_ENDPOINT_URL"] = self.url
        boto3.client("s3").create_bucket(Bucket="corpus")
        self.proxy = Proxy(self.url, failing=failing, faults=FAULTS, seed=seed)
        self.proxy.__enter__()

    def restart(self):
        """Gone for a while, then back with the same buckets."""
        self.server.stop()
        time.sleep(DOWN)  # is the fault itself
        self.server = self.kind(ip_address=self.host, port=self.port)
        self.server.start()

    def stop(self):
        self.proxy.__exit__()
        self.server.stop()


def embed_round(chance, seed, home, folder, place):
    """`embed`, whose encoders count what they begin."""
    plain = replace(small_job(folder, home / "model"), unit_rows=chance.choice([20, 50, 100]))
    units = chance.randint(20, 40)
    plain = put_rows(plain, units, chance, seed, folder, place)
    flags = flags_of(replace(plain, input=f"s3://{place}/in", output=f"s3://{place}/out", actors="1:2"))
    embed_here(plain)
    return Round(flags=flags, units=units, wanted=plain.output, kinds=KINDS)


def words_round(chance, seed, home, folder, place):
    """`embed --any-condition`."""
    units = chance.randint(20, 40)
    plain = put_rows(words_job(folder, home, chance.choice([20, 50, 100])), units, chance, seed, folder, place)
    flags = ["--input", f"s3://{place}/in", "--output", f"s3://{place}/out", "--any-condition"]
    flags += ["--model", plain.model, "--compute", "float32", "--dtype", "float32", "--word-bytes", plain.word_bytes]
    flags += ["--unit-rows", plain.unit_rows, "--actors", "1:2"]
    embed_here(plain)
    return Round(flags=flags, units=units, wanted=plain.output, kinds=KINDS, program=("-m", "raycase", "embed"))


def materialize_round(chance, seed, home, folder, place):
    """`materialize`, whose tasks take milliseconds: of many units."""
    units = chance.randint(80, 160)
    plain = put_rows(words_job(folder, home, 10), units, chance, seed, folder, place)
    embed_here(plain)
    fsspec.filesystem("s3").put(plain.output, f"{place}/words", recursive=True)
    flags = ["--words", f"s3://{place}/words", "--output", f"s3://{place}/out", "--conditions", *CONDITIONS]
    wanted = str(folder / "wanted")
    storing.materialized_here(MaterializeJob(words=plain.output, conditions=CONDITIONS, output=wanted))
    kinds = tuple(kind for kind in KINDS if kind != "actor")
    return Round(flags=flags, units=units, wanted=wanted, kinds=kinds, program=("-m", "raycase", "materialize"))


JOBS = {"embed": embed_round, "words": words_round, "materialize": materialize_round}


@dataclass(frozen=True, kw_only=True)
class Round:
    """A job from S3 to S3, and the output of the same here, undisturbed."""

    flags: list
    units: int
    wanted: str
    kinds: tuple  # of what can be killed
    program: tuple = COUNTED


def words_job(folder, home, unit_rows):
    """`embed --any-condition`, to be done here."""
    words = {"any_condition": True, "conditions": (), "word_bytes": storing.ENOUGH, "prompt": None, "pooling": None}
    return replace(small_job(folder, storing_model(home)), unit_rows=unit_rows, **words)


@cache
def storing_model(home):
    """A model folder with a random head."""
    (home / "head").mkdir()
    return storing.model_folder(home / "head")


def put_rows(plain, units, chance, seed, folder, place):
    """The job over so many units of new rows, in some files, which are on S3, too."""
    count, files = units * plain.unit_rows, chance.randint(1, 4)
    source = folder / "in"
    source.mkdir()
    texts = sentences(count, f"{seed}-{folder.name}")
    for i in range(files):
        part = texts[i * count // files : (i + 1) * count // files]
        pq.write_table(pa.table({"text": part}), source / f"{i}.parquet", row_group_size=5 * plain.unit_rows)
    fsspec.filesystem("s3").put(str(source), f"{place}/in", recursive=True)
    return replace(plain, input=str(source))


def play(number, seed, name, head, store, home):
    """One round; gives what was killed, how often the driver was started, and how many units were encoded again."""
    chance = random.Random(f"{seed}-{number}")
    folder, place = home / str(number), f"corpus/chaos-{seed}-{number}"
    folder.mkdir()
    planned = JOBS[name](chance, seed, home, folder, place)
    kinds = chance.choices(planned.kinds, k=chance.randint(1, 4))
    moments = sorted(chance.randint(1, planned.units - 2) for _ in kinds)
    environment = {"AWS_ENDPOINT_URL": store.proxy.url, "RAYCASE_S3_TIMEOUT": "2"}
    run = Disturbed(head, planned.flags, output_at(f"s3://{place}/out"), folder, environment, program=planned.program)
    reached = run.began if planned.program == COUNTED else run.written
    end = time.monotonic() + ROUND_SECONDS

    def finished():
        """Whether the driver is done; one that gave up is started again."""
        assert time.monotonic() < end, f"not done after {ROUND_SECONDS} s: {run.said()}"
        if run.driver.poll() in (None, 0):
            return run.driver.poll() == 0
        assert run.driver.poll() == 1, run.said()
        run.start()
        return False

    killed = []
    try:
        for kind, moment in zip(kinds, moments, strict=True):
            wait_for(lambda moment=moment: finished() or reached() >= moment, ROUND_SECONDS)
            if finished():
                break
            if kind == "store":
                store.restart()
            elif run.kill(kind, chance) is None:
                continue
            killed.append(kind)
        wait_for(finished, ROUND_SECONDS)
    finally:
        run.driver.kill()
    compare(f"s3://{place}/out", planned.wanted, folder)
    again = len(counted(folder)) - len(set(counted(folder)))
    return {"units": planned.units, "killed": killed, "starts": run.starts, "again": again}


def compare(uri, wanted_uri, folder):
    """Rows, vectors and what is pooled from stored words must be those of the undisturbed output."""
    found, wanted = read_output(uri), read_output(wanted_uri)
    vectors_only = ["embedding", *(name for name in WORD_COLUMNS if name in wanted.column_names)]
    assert found.drop_columns(vectors_only).equals(wanted.drop_columns(vectors_only)), "rows missing or twice"
    assert cosines(vectors(found), vectors(wanted)).min() > 0.9999
    assert verify(uri)["rows_out"] == verify(wanted_uri)["rows_out"]
    if len(vectors_only) > 1:
        pooled = [str(folder / name) for name in ("pooled", "pooled-wanted")]
        for words, output in zip((uri, wanted_uri), pooled, strict=True):
            storing.materialized_here(MaterializeJob(words=words, conditions=CONDITIONS, output=output))
        compare(*pooled, folder)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--minutes", type=float, default=10, help="begin no further round after so long")
    arguments.add_argument("--rounds", type=int, default=10**9, help="at most so many rounds")
    arguments.add_argument("--first", type=int, default=0, help="number of the first round")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--failing", type=float, default=0.05, help="share of the requests to the store that fail")
    arguments.add_argument("--job", choices=JOBS, help="default: each in turn")
    asked = arguments.parse_args()
    from clusters import Head

    began, rounds, failed = time.monotonic(), [], []
    with tempfile.TemporaryDirectory(prefix="chaos") as home:
        save_tiny_model(Path(home) / "model")
        store = Store(asked.failing, asked.seed)
        os.environ["AWS_ENDPOINT_URL"] = store.url  # of this process; the cluster's machines have the proxy's
        try:
            with Head(environment={"AWS_ENDPOINT_URL": store.proxy.url, "RAYCASE_S3_TIMEOUT": "2"}) as head:
                number = asked.first
                while not rounds or (len(rounds) < asked.rounds and time.monotonic() - began < 60 * asked.minutes):
                    start = time.monotonic()
                    name = asked.job or list(JOBS)[number % len(JOBS)]
                    try:
                        done = play(number, asked.seed, name, head, store, Path(home))
                    except Exception:
                        traceback.print_exc()
                        failed.append(number)
                        done = {"units": 0, "killed": [], "starts": 0, "again": 0}
                    rounds.append(done)
                    print(
                        f"round {number}: {name}, {time.monotonic() - start:.0f} s, {done['units']} units, killed "
                        f"{', '.join(done['killed']) or 'nothing'}, {done['starts']} starts, {done['again']} again"
                        f"{'; FAILED' if number in failed else ''}",
                        file=sys.stderr,
                        flush=True,
                    )
                    number += 1
        finally:
            store.stop()
    killed = Counter(kind for done in rounds for kind in done["killed"])
    met = {str(fault): count for fault, count in sorted(store.proxy.failed.items(), key=str)}
    print(f"| seed {asked.seed}, rounds {asked.first} to {asked.first + len(rounds) - 1} | killed | faults met |")
    print("|---|---|---|")
    print(
        f"| {len(rounds)} rounds, {sum(d['units'] for d in rounds)} units, {sum(d['again'] for d in rounds)} encoded "
        f"again, {sum(d['starts'] for d in rounds)} starts of drivers | {dict(killed)} | {met} of "
        f"{store.proxy.asked.total()} requests |"
    )
    result = {"rounds": len(rounds), "failed": failed, "seed": asked.seed, "seconds": time.monotonic() - began}
    print(json.dumps(result))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
