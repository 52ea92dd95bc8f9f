"""Rounds of kills and changes, some minutes each; what is answered is compared with what it should be.

    python tests/rounds.py documents shards service --minutes 10 --seed 0

documents: corpora in chunks, embedded by processes that are killed, indexed, replaced, deleted from by builds that die;
the index has exactly the chunks of its documents, and a search by document is that of all rows.
shards: an index in shards whose actors, one or two a shard, are killed under load.
service: `raycase serve` with two replicas, which are killed, whose index is replaced, and of whose clients some stop
reading, or leave in the middle.

Prints what it counted for each, in one JSON object. Exit status 1 where an answer was wrong or none came.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import conftest  # noqa: F401 (sets the environment for Ray)
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import requests
import small
import storing
from crashing import Killed, dying_before
from helpers import ROOT, embed_here
from indexed import alike

from raycase.commands.embed import EmbedFlags
from raycase.encoder.chunks import Chunking
from raycase.errors import WorkError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.job import steps
from raycase.job.verify import verify
from raycase.models.registry import resolve_embedder
from raycase.serve.schema import SearchRequest
from raycase.serve.service import Service
from raycase.serve.settings import ServeSettings, check_serve

WORDS = ["red dress", "a woman", "two people", "dog", "play with a dog", "number 0123", "a - . b", "number of people"]
ENDS = [". ", ".\n", ".\n\n", "! ", ".\u3000", "\r\n", ".\t", " 😀. ", "  "]
KINDS = {  # of outputs, and the conditions under which their rows are
    "conditions": ({"conditions": ("color", "number")}, ["color", "number"]),
    "plain": ({"unconditional": True}, [None]),
    "tokens": ({"any_condition": True, "token_bytes": storing.ENOUGH}, [None]),
}
WHERE = (None, "year < 2007", "id = 3", "year IN (2001, 2003)")
LATE = 2.5  # seconds after an index is published from which no answer is of the former one


# ----------------------------------------------------------------------------------------------------------- documents


class Documents:
    """A round: documents, their texts and years, and an index of their chunks. A text with "bar" has no finite vector,
    and one of nothing that can be seen has no chunk: such a document is rejected, and keeps its former chunks."""

    def __init__(self, home, model, seed, counts):
        self.chance, self.counts, self.model, self.folder = random.Random(seed), counts, model, home / str(seed)
        self.uri, self.there, self.names = str(self.folder / "i.lance"), {}, {}
        self.whole_ids = self.chance.random() < 0.4
        kinds = self.chance.choice(
            [["conditions"], ["plain"], ["tokens"], ["conditions", "plain"], ["tokens", "conditions"]]
        )
        self.kinds = {kind: KINDS[kind][0] for kind in kinds}
        self.under = [name for kind in kinds for name in KINDS[kind][1]]
        tokens, overlap, late = self.chance.choice([6, 9, 12, 20]), self.chance.choice([0, 3, 5]), self.chance.random()
        self.cut = {"chunk": tokens, "overlap": overlap, "late_chunking": late < 0.4}
        self.chunking = Chunking(tokens=tokens, overlap=overlap, late=late < 0.4)
        self.spec = resolve_embedder(model).encoder

    def id(self, number):
        """Of a document: a number, or a text of odd signs."""
        if self.whole_ids:
            return number
        odd = [f"d{number}", f"a#{number}", f"it's {number}", f"{number}#0", f'x/{number} "é']
        return self.names.setdefault(number, self.chance.choice(odd))

    def text(self):
        if self.chance.random() < 0.1:
            return "\u200b\u200b"
        words = [*WORDS, *["at the bar"] * (self.chance.random() < 0.1)]
        parts = range(self.chance.choice([1, 1, 2, 3, 5, 8, 20]))
        pick = self.chance.choice
        return "".join(" ".join(pick(words) for _ in range(self.chance.randint(1, 6))) + pick(ENDS) for _ in parts)

    def some(self, numbers):
        texts = {self.id(number): (self.text(), self.chance.randrange(6)) for number in numbers}
        return texts | {next(iter(texts)): ("a dog. two people.", 1)}  # stored tokens need one that can be embedded

    def embed(self, texts, name):
        """Outputs of some documents, by jobs that are killed and run again."""
        place, outputs = self.folder / name, []
        (place / "in").mkdir(parents=True)
        rows = [{"id": id_, "text": text, "year": year} for id_, (text, year) in texts.items()]
        for part in range(parts := self.chance.choice([1, 3])):
            if some := rows[part::parts]:
                groups = self.chance.choice([2, 5, 100])
                pq.write_table(pa.Table.from_pylist(some), place / "in" / f"{part}.parquet", row_group_size=groups)
        files = {"input": str(place / "in"), "model": self.model, "keep_columns": ("text", "year"), "max_rejected": 1.0}
        for kind, options in self.kinds.items():
            units = self.chance.choice([2, 5, 20])
            job = EmbedFlags(
                output=str(place / kind), unit_rows=units, compute="float32", **files, **options, **self.cut
            )
            for _ in range(self.chance.choice([0, 0, 1, 2])):
                self.killed(job)
            assert embed_here(job)["rows_in"] == verify(job["output"])["rows_in"] == len(rows)
            self.counts["embedded"] += 1
            outputs.append(job["output"])
        return tuple(outputs)

    def killed(self, job):
        """The job in a process that is killed at some moment."""
        if not (pid := os.fork()):
            with contextlib.suppress(BaseException):
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                embed_here(job)
            os._exit(0)
        time.sleep(0.6 * self.chance.random())
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.counts["jobs killed"] += 1

    def put(self, texts):
        for id_, (text, year) in texts.items():
            spans = list(self.chunking.cut(self.spec, text))
            if spans and "bar" not in text:
                self.there[id_] = text, year, spans
            else:
                self.counts["rejected"] += 1

    def check(self):
        """The index has what it should, and answers by document as all its rows do."""
        index = Index.open(self.uri)
        columns = ["id", "condition", "document", "chunk", "start", "end", "text", "year"]
        found = Counter(tuple(row.values()) for row in index.dataset.to_table(columns=columns).to_pylist())
        wanted = Counter(
            (f"{id_}#{chunk}", condition, id_, chunk, a, b, text[a:b], year)
            for id_, (text, year, spans) in self.there.items()
            for chunk, (a, b) in enumerate(spans)
            for condition in self.under
        )
        assert found == wanted, (list(found - wanted)[:2], list(wanted - found)[:2])
        one = self.chance.choice([*self.there])
        literal = str(one) if self.whole_ids else "'{}'".format(one.replace("'", "''"))
        asked = [*self.under, *["dog", {"dog": 1, "a woman": 2}] * bool(index.metadata.with_tokens)]
        for condition in asked:
            for where in (None, "year < 3", f"document = {literal}"):
                ask = {"conditions": condition, "where": where, "unconditional": condition is None}
                best = {}
                for row in index.search(["a woman with a dog"], k=100_000, **ask).to_pylist():
                    best.setdefault(row["document"], row)
                k = self.chance.choice([1, 3, 1000])
                answers = index.search(["a woman with a dog"], k=k, per="document", **ask).to_pylist()
                assert [(r["id"], r["score"]) for r in answers] == [(r["id"], r["score"]) for r in best.values()][:k]
                assert all(self.there[r["document"]][0][r["start"] : r["end"]] == r["text"] for r in answers)
                self.counts["answers"] += len(answers)

    def dying(self, job, new):
        """Builds that die: the index is the former one, or the new one, and the next build makes it that."""
        for step in sorted(self.chance.sample(range(14), 2)):
            with contextlib.suppress(Killed), dying_before(step):
                build(**job)
            self.counts["builds died"] += 1
            before = dict(self.there)
            try:
                self.check()
            except AssertionError:
                self.put(new)
                self.check()
                self.there = before

    def play(self):
        chance, first = self.chance, self.some(range(25))
        keep = ("animal",) if "tokens" in self.kinds and chance.random() < 0.6 else ()
        how = {"shards": chance.choice([None, 3]), "vector_index": chance.choice([None, "ivf-rq"])}
        build(embeddings=self.embed(first, "0"), output=self.uri, keep_condition=keep, **how)
        self.under += keep
        self.put(first)
        self.check()
        for step in range(1, 5):
            what = chance.choice(["replace", "replace", "replace, dying", "delete", "add"])
            if what == "delete":
                year = chance.randrange(6)
                gone = [id_ for id_, (_, of, _) in self.there.items() if of == year]
                if len(gone) < len(self.there):
                    build(output=self.uri, delete=f"year = {year}")
                    self.there = {id_: kept for id_, kept in self.there.items() if id_ not in gone}
            else:
                is_new = what == "add"
                numbers = (
                    range(100 * step, 100 * step + 5) if is_new else chance.sample(range(30), chance.randint(1, 8))
                )
                new = self.some(numbers)
                job = {"embeddings": self.embed(new, str(step)), "output": self.uri, "replace": not is_new}
                if what == "replace, dying":
                    self.dying(job, new)
                build(**job)
                self.put(new)
            self.counts[what] += 1
            self.check()
        shutil.rmtree(self.folder)


def documents(home, seed, end, counts, wrong):
    model = storing.model_folder(home)
    encoder = small.stock(home / "bert")
    bar = small.tokenizer(home / "bert").convert_tokens_to_ids("bar")
    encoder.embeddings.word_embeddings.weight.data[bar] = float("nan")
    encoder.save_pretrained(home / "bert")
    steps.PAIRS_OF_UNIT = 30
    while time.monotonic() < end:
        try:
            with open(home / "said", "w") as said, contextlib.redirect_stderr(said):
                Documents(home, model, seed, counts).play()
        except Exception:
            wrong.append(f"documents, seed {seed}: {traceback.format_exc(limit=3)}")
        counts["rounds"] += 1
        seed += 1


# ---------------------------------------------------------------------------------------------------------- under load


def children(parent, title):
    """The processes below one that have this title of Ray's."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith(title):
                found.append(process)
    return found


@contextlib.contextmanager
def loaded(ask, threads, seed):
    """Threads that ask all the time, each with random numbers of its own; they end with what they are at."""
    ended = threading.Event()

    def go(number):
        chance = random.Random(f"{seed}-{number}")
        while not ended.is_set():
            ask(chance)

    running = [threading.Thread(target=go, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    yield
    ended.set()
    for thread in running:
        thread.join(200)
    assert not any(thread.is_alive() for thread in running), "a request hangs"


def shards(home, seed, end, counts, wrong):
    import ray

    from raycase.ray.shards import open_sharded

    storing.words_later_and_out(home, "number of people")
    uri = storing.indexed(home / "i.lance", home / "words", home / "out", shards=2)
    queries, one = ["a woman in a red dress", "two people play with a dog", "bar a with two"], Index.open(uri)
    conditions = ["number of people", "what they wear", None, {"dog": 2, "number of people": -1}]
    asked = [(q, c, k, w) for q in queries for c in conditions for k in (1, 10, 400) for w in WHERE]
    wanted = {each: one.search([asked[each][0]], *asked[each][1:]) for each in range(len(asked))}
    place = tempfile.mkdtemp(prefix="rc", dir="/tmp")  # short: sockets
    ray.init(num_cpus=4, include_dashboard=False, _temp_dir=place, log_to_driver=False, logging_level="ERROR")
    try:
        for replicas in (1, 2):
            index = open_sharded(uri, replicas=replicas, wait=60)

            def ask(chance, index=index):
                number = chance.randrange(len(asked))
                try:
                    found = index.search([asked[number][0]], *asked[number][1:])
                except WorkError as error:
                    assert "got none of shard" in str(error), error
                    counts["errors"] += 1
                    return
                counts["answers"] += 1
                try:
                    alike(found, wanted[number])
                except AssertionError:
                    wrong.append(f"shards: {asked[number]}")

            chance, until = random.Random(seed), end if replicas == 2 else (time.monotonic() + end) / 2
            with loaded(ask, 4, seed):
                while time.monotonic() < until:
                    time.sleep(chance.uniform(0.05, 3))
                    actors = children(os.getpid(), "ray::ShardActor")
                    for process in chance.sample(actors, min(len(actors), chance.choice([1, 1, 1, 2, 4]))):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            process.kill()
                            counts["kills"] += 1
            if any(sum(shard.under_way.values()) for shard in index.actors.shards):
                wrong.append("shards: requests under way when all are answered")
            for actor in [actor for shard in index.actors.shards for actor in shard.actors]:
                ray.kill(actor)
    finally:
        ray.shutdown()
        shutil.rmtree(place, ignore_errors=True)


class Answers:
    """What a service should answer: by each version of its index, and when it was published."""

    def __init__(self, uri):
        under = [(q, c) for q in ("a red dress", "two people", "bar") for c in ("color", "number of people", None)]
        self.asked = [
            {"queries": q, "condition": c, "unconditional": c is None, "k": k, "where": w}
            for q, c in under
            for w in WHERE
            for k in (1, 10, 50, 1000)  # the last of four: all rows
        ]
        self.uri, self.versions, self.published = uri, [], []
        self.add()

    def add(self):
        """The version that is there now."""
        service = Service.load(check_serve(ServeSettings(index=self.uri)))
        self.versions.append([self.scores(service.search(SearchRequest(**asked))) for asked in self.asked])
        self.published.append(time.monotonic())

    @staticmethod
    def scores(found):
        """Row -> score, in the order of the answers."""
        return {json.dumps(each["row"], sort_keys=True): each["score"] for each in found["answers"][0]}

    def fitting(self, number, found):
        """The newest version of which this is the answer; None: it is wrong. Replicas may compute in other batches, so
        scores are near, and rows of about one score in any order."""
        scores, near = self.scores(found), lambda a, b: abs(a - b) < 5e-3
        for version in reversed(range(len(self.versions))):
            best, every = self.versions[version][number], self.versions[version][number | 3]
            same = len(scores) == len(best) and all(map(near, scores.values(), best.values()))
            if same and all(row in every and near(every[row], score) for row, score in scores.items()):
                return version
        return None


def service(home, seed, end, counts, wrong):
    sys.path.append(str(ROOT / "tests" / "ray"))
    from test_serve import BEARER, TOKEN, Server, head

    model = storing.model_folder(home)
    storing.stored(home / "a", model, storing.texts(400), output=str(home / "words"))
    answers = Answers(storing.indexed(home / "i.lance", home / "words"))
    (home / "token").write_text(f"{TOKEN}\n")
    flags = ("--index", home / "i.lance", "--token-file", home / "token", "--port", 0, "--replicas", 2, "--queue", 32)
    server, chance, leaving, doubtful = Server(home, *flags), random.Random(seed), [], []

    def ask(chance):
        number, began = chance.randrange(len(answers.asked)), time.monotonic()
        try:
            found = requests.post(f"{server.url}/search", json=answers.asked[number], headers=BEARER, timeout=150)
        except requests.ConnectionError:
            counts["connections lost"] += 1
            return
        counts[str(found.status_code)] += 1
        if found.status_code != 200:
            if found.status_code not in (500, 503):
                wrong.append(f"service: {found.status_code} {found.text[:200]}")
            return
        if not judge(number, began, found.json()):
            doubtful.append((number, began, found.json()))  # perhaps of a version that is published just now

    def judge(number, began, found):
        version = answers.fitting(number, found)
        return version is not None and version >= sum(each + LATE < began for each in answers.published) - 1

    def come_and_leave():
        """A client that does not read, sends half of a request, or goes in the middle of its answer."""
        client = socket.create_connection(server.address, timeout=10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"queries": ["dog"] * 25, "condition": "color", "k": 400}).encode()
        request = head(length=len(body)).replace(b"/v1/embeddings", b"/search") + body
        way = chance.choice(["reads nothing", "half a head", "half a body", "leaves"])
        client.sendall({"half a head": request[:60], "half a body": request[:-5]}.get(way, request))
        counts[way] += 1
        if way == "leaves":
            client.recv(2000)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        else:
            leaving.append(client)

    try:
        with loaded(ask, 3, seed):
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.3, 3))
                what = chance.choice(["kill", "kill", "replace", "clients", "clients", "clients"])
                if what == "kill" and (replicas := children(server.process.pid, "ray::ServeReplica")):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        chance.choice(replicas).kill()
                        counts["kills"] += 1
                elif what == "replace":
                    number = len(answers.versions)
                    rows = [row | {"year": 3000 + number} for row in storing.texts(200)]
                    output = storing.stored(home / f"rows{number}", model, rows)
                    build(embeddings=(output,), output=answers.uri, replace=True)
                    answers.add()
                    counts["indexes replaced"] += 1
                elif what == "clients":
                    for _ in range(chance.randint(1, 6)):
                        with contextlib.suppress(OSError):
                            come_and_leave()
                    while len(leaving) > 60:
                        leaving.pop(0).close()
        for client in leaving:
            client.close()
        wrong += [f"service: {answers.asked[one[0]]}: {str(one[2])[:300]}" for one in doubtful if not judge(*one)]
        time.sleep(5)
        statuses = Counter(server.post("/search", answers.asked[0]).status_code for _ in range(64))
        if statuses != {200: 64}:
            wrong.append(f"service: {statuses} when all clients are gone")
        processes = children(server.process.pid, "ray::ServeReplica") + children(server.process.pid, "ray::Proxy")
        counts["MiB"] = max(process.memory_info().rss for process in processes) >> 20
        counts["connections"] = max(len(process.net_connections()) for process in processes)
        counts["status"] = server.end()[0]
    finally:
        server.kill()


ROUNDS = {"documents": documents, "shards": shards, "service": service}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", default=[*ROUNDS], choices=ROUNDS)
    arguments.add_argument("--minutes", type=float, default=10, help="for each")
    arguments.add_argument("--seed", type=int, default=0)
    asked = arguments.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])  # of Ray's processes
    found, wrong = {}, []
    for name in asked.names:
        counts = found[name] = Counter()
        with tempfile.TemporaryDirectory(prefix="rounds") as home:
            try:
                ROUNDS[name](Path(home), asked.seed, time.monotonic() + 60 * asked.minutes, counts, wrong)
            except Exception:
                wrong.append(f"{name}: {traceback.format_exc()}")
    print(json.dumps({**found, "wrong": wrong[:9], "seed": asked.seed}))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
