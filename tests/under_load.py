"""A service, and a search over shards, on a cluster of two machines, while clients ask and processes and machines are
killed at seeded moments; parts of `make chaos`.

Every answer is compared with one that this process computed without Ray: the same ranks, scores to 1e-6. Every request
ends with an answer or an error, and soon after the last kill all succeed.
"""

import contextlib
import json
import random
import socket
import struct
import sys
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import psutil
import requests
import storing
from clusters import free_ports
from helpers import ROOT, cosines, wait_for
from served import TOKEN

import raycase
from raycase.errors import WorkError
from raycase.index.index import Index

CONDITION = "number of people"
QUERIES = ("a woman in a red dress", "two people play with a dog", "bar a with two")
WHERE = (None, "year < 2007", "id = 3", "year IN (2001, 2003)")
DEPTHS = (1, 10, 200)
AWAY = 60.0  # seconds for which a shard is waited for
BOUND = 200.0  # seconds within which each request ends: three waits for a shard, and what a busy machine adds
BACK = 240.0  # seconds after the last kill within which all is as before
QUEUE = 8  # a few places that a client keeps would be missed


class Counts(Counter):
    """What happened, by name, from several threads; `wrong` has what must not happen."""

    def __init__(self):
        super().__init__()
        self.wrong, self.lock, self.worst, self.slowest = [], threading.Lock(), 0.0, 0.0

    def add(self, name):
        with self.lock:
            self[name] += 1

    def once(self, ask, chance):
        """Ask, and count that."""
        self.add("requests")
        return ask(chance)

    def compare(self, what, found, wanted):
        """Rows of (query, rank, id, score), best first; of rows that tie to 1e-6, any comes first."""
        score_of = {(query, id_): score for query, _, id_, score in wanted}
        last = {query: score for query, _, _, score in wanted}  # of rows that tie with it, others may be there
        same = [row[:2] for row in found] == [row[:2] for row in wanted]
        differences = [abs(a[3] - b[3]) for a, b in zip(found, wanted, strict=False)]
        differences += [abs(score - score_of.get((query, id_), last.get(query, 9))) for query, _, id_, score in found]
        with self.lock:
            self.worst = max([self.worst, *differences])
        if not same or max(differences, default=0.0) > 1.1e-6:
            self.wrong.append(f"{what}: got {found[:3]}, wanted {wanted[:3]}")

    def line(self):
        """For the last line of the round."""
        figures = {"worst_difference": self.worst, "slowest_seconds": round(self.slowest, 1)}
        return dict(sorted(self.items())) | figures | {"wrong": self.wrong[:9]}


@contextlib.contextmanager
def clients(ask, count, counts, seed):
    """Threads that ask all the time, each with chances of its own; they end with what they are at."""
    ended = threading.Event()

    def go(number):
        chance = random.Random(f"{seed}-{number}")
        while not ended.is_set():
            began = time.monotonic()
            try:
                counts.once(ask, chance)
            except Exception as error:
                counts.wrong.append(f"{type(error).__name__}: {error}"[:500])
            counts.slowest = max(counts.slowest, time.monotonic() - began)

    running = [threading.Thread(target=go, args=(number,), daemon=True) for number in range(count)]
    for thread in running:
        thread.start()
    yield
    ended.set()
    for thread in running:
        thread.join(BOUND)
    hanging = sum(thread.is_alive() for thread in running)
    if hanging or counts["requests"] != counts["answers"] + sum(v for k, v in counts.items() if k.startswith("error")):
        counts.wrong.append(f"{hanging} of {count} clients hang; {dict(counts)}")


def kill_one(head, titles, chance, counts):
    """Kill a machine, which another one replaces, or one or two processes with such titles."""
    if chance.random() < 1 / 6:
        head.workers.pop(chance.randrange(len(head.workers))).kill()
        head.add_node(cpus=2)
        counts.add("machines killed")
        return
    title = chance.choice(titles)
    found = head.titled(title)
    for process in chance.sample(found, min(len(found), chance.choice([1, 1, 2]))):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
            counts.add(f"{title} killed")


def two_machines(head):
    while len(head.workers) < 2:
        head.add_node(cpus=2)
    wait_for(lambda: len(head.nodes()) == 2)


# ----------------------------------------------------------------------------------------------------------- the shards


def rows_of(table):
    return [(row["query"], row["rank"], row["id"], row["score"]) for row in table.to_pylist()]


def shards(home, head, seed, seconds):
    """A search over shards, with one process a shard and with two. This process joins the cluster."""
    import ray

    from raycase.ray.shards import open_sharded

    storing.words_later_and_out(home, CONDITION)
    uri = storing.indexed(home / "i.lance", home / "words", home / "out", shards=2)
    conditions = (CONDITION, "what they wear", None, {"dog": 2, CONDITION: -1})
    asked = [(q, c, k, w) for q in QUERIES for c in conditions for k in DEPTHS for w in WHERE]
    alone, counts = Index.open(uri), Counts()
    wanted = [rows_of(alone.search([q], *how)) for q, *how in asked]
    two_machines(head)
    try:
        for replicas in (1, 2):
            index, end = open_sharded(uri, replicas=replicas, wait=AWAY), time.monotonic() + seconds / 2

            def ask(chance, index=index, clear=True):
                number = chance.randrange(len(asked))
                query, *how = asked[number]
                try:
                    found = rows_of(index.search([query], *how))
                except WorkError as error:
                    assert clear and "got none of shard" in str(error), error
                    counts.add("errors: a shard is away")
                    return
                counts.compare(asked[number], found, wanted[number])
                counts.add("answers")

            chance = random.Random(f"{seed}-{replicas}")
            with clients(ask, 4, counts, f"{seed}-{replicas}"):
                while time.monotonic() < end:
                    time.sleep(chance.uniform(0.1, 8))
                    kill_one(head, ["ray::ShardActor"], chance, counts)
            began = time.monotonic()
            for number in range(64):
                counts.once(partial(ask, clear=False), chance)
                if number == 0:
                    counts[f"seconds until all is back, {replicas} a shard"] = round(time.monotonic() - began)
            actors = index.compare.args[0]
            if any(sum(shard.under_way.values()) for shard in actors):
                counts.wrong.append("requests under way when all are answered")
            for actor in [actor for shard in actors for actor in shard.actors]:
                ray.kill(actor)
    finally:
        ray.shutdown()
    return counts


# ---------------------------------------------------------------------------------------------------------- the service


def served_rows(found):
    return [(0, each["rank"], each["row"]["id"], each["score"]) for each in found["answers"][0]]


class Asked:
    """Requests of the service with their answers, by the model and the index in this process."""

    def __init__(self, uri, model):
        index, self.texts, self.model = Index.open(uri), [row["text"] for row in storing.texts(40)], model
        under = [(q, c, k, w) for q in QUERIES for c in (CONDITION, "color") for k in DEPTHS for w in WHERE]
        names = ("queries", "condition", "k", "where")
        self.searches = [dict(zip(names, each, strict=True)) for each in under]
        self.answers = [rows_of(index.search([q], c, k, w)) for q, c, k, w in under]
        self.vectors = {condition: raycase.load(model).encode(self.texts, condition) for condition in (None, "color")}


def service(home, head, seed, seconds):
    """`raycase serve` with two replicas, whose index is in shards. Of the clients some stop reading, or leave in the
    middle of an answer."""
    sys.path.append(str(ROOT / "tests" / "ray"))
    from test_serve import BEARER, Server
    from test_serve import head as head_of

    model = storing.model_folder(home)
    storing.stored(home / "a", model, storing.texts(400), output=str(home / "words"))
    uri = storing.indexed(home / "i.lance", home / "words", shards=2)
    known, counts, leaving, chance = Asked(uri, model), Counts(), [], random.Random(f"{seed}-service")
    (home / "token").write_text(f"{TOKEN}\n")
    two_machines(head)
    [port] = free_ports(1)
    flags = ("--index", uri, "--token-file", home / "token", "--port", port, "--replicas", 2, "--queue", QUEUE)
    server = Server(home, *flags, **{name: v for name, v in head.environment.items() if name.startswith("RAY_")})

    def post(route, body):
        """The answer; None where it is an error that is counted."""
        try:
            found = requests.post(server.url + route, json=body, headers=BEARER, timeout=BOUND)
        except requests.ConnectionError:  # a proxy died, alone or with its machine
            counts.add("errors: connection lost")
            return None
        if found.status_code != 200:
            counts.add(f"errors: {found.status_code}")
            if found.status_code not in (429, 500, 503):
                counts.wrong.append(f"{found.status_code} {found.text[:300]}")
            if found.status_code != 500 or found.text != "Internal Server Error":
                counts.add(f"of these {found.text[:120]}")
            return None
        counts.add("answers")
        return found.json()

    def ask(chance):
        if chance.random() < 0.3:
            picked, condition = chance.sample(range(40), chance.randint(1, 8)), chance.choice([None, "color"])
            body = {"input": [known.texts[i] for i in picked]} | ({"condition": condition} if condition else {})
            if (found := post("/v1/embeddings", body)) is not None:
                vectors = np.array([each["embedding"] for each in found["data"]])
                if cosines(vectors, known.vectors[condition][picked]).min() < 0.999:
                    counts.wrong.append(f"vectors of {body}")
            return found
        number = chance.randrange(len(known.searches))
        if (found := post("/search", known.searches[number])) is not None:
            counts.compare(known.searches[number], served_rows(found), known.answers[number])
        return found

    def come_and_leave():
        """A client that sends half of a request, does not read, or goes in the middle of its answer or before it."""
        way = chance.choice(["half a head", "half a body", "reads nothing", "left before its answer", "left in it"])
        client = socket.create_connection(server.address, timeout=10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"queries": ["dog"] * 25, "condition": "color", "k": 400}).encode()
        request = head_of(length=len(body)).replace(b"/v1/embeddings", b"/search") + body
        client.sendall({"half a head": request[:60], "half a body": request[:-5]}.get(way, request))
        counts.add(f"clients: {way}")
        leaving.append(client)
        if way.startswith("left"):
            time.sleep(0.05)
            if way == "left in it":
                client.recv(2000)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no orderly end
            leaving.pop().close()

    titles = ["ray::ServeReplica", "ray::ServeReplica", "ray::ShardActor", "ray::ProxyActor"]
    try:
        with clients(ask, 3, counts, f"{seed}-service"):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(chance.uniform(0.3, 4))
                if chance.random() < 0.3:
                    kill_one(head, titles, chance, counts)
                for _ in range(chance.randint(0, 3)):
                    with contextlib.suppress(OSError):
                        come_and_leave()
                while len(leaving) > 60:
                    leaving.pop(0).close()
        for client in leaving:
            client.close()
        began = time.monotonic()
        wait_for(lambda: len(head.titled("ray::ServeReplica")) == 2, BACK)
        wait_for(lambda: all(counts.once(ask, chance) is not None for _ in range(20)), BACK)
        counts["seconds until all is back"] = round(time.monotonic() - began)
        before = dict(counts)
        with clients(ask, QUEUE, counts, f"{seed}-after"):  # as many as one replica has places for
            wait_for(lambda: counts["answers"] > before["answers"] + 200, BACK)
        counts["requests after the kills"] = counts["requests"] - before["requests"]
        if late := {name: n - before.get(name, 0) for name, n in counts.items() if name.startswith("errors")}:
            counts.wrong += [f"{late} after the kills"] * any(late.values())
        processes = [*head.titled("ray::ServeReplica"), *head.titled("ray::ProxyActor")]
        counts["MiB of the largest process"] = max(process.memory_info().rss for process in processes) >> 20
        counts["most connections of a process"] = max(len(process.net_connections()) for process in processes)
        status, _, errors = server.end()
        if status != 143 or "Traceback" in errors:
            counts.wrong.append(f"status {status}: {errors[-1000:]}")
    finally:
        server.kill()
    return counts
