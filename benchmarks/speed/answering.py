"""How long answers under any condition take: first ones, next ones, of eight threads, with a filter, and their recall.

    python -m benchmarks.speed.answering --index any.lance [--where "id LIKE '%77#_'"] [--before CHECKOUT]
    python -m benchmarks.speed.answering --index any.lance --service

Queries are texts of the index (--seed), each asked alone under each condition; the first pools what no earlier one
did. Recall: the share of the ten best scores of a search that pools all rows. With --before, a process of each
checkout asks the same, in turns. With --service, the same questions go to `raycase serve`, one after the other and by
eight clients at once, each over one connection; `GET /health` is a request that needs no model.
"""

import argparse
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.turns import ROOT, finish, median, of_checkout, parser_of, run

CONDITIONS = ["color of the clothes", "number of people", "place", "type of sport", "animal", "weather"]
K, THREADS = 10, 8


def quantile(values, share):
    return float(np.quantile(values, share))


def ask(index_uri, where, queries, exact, seed):
    """The figures of one process."""
    from raycase.index.index import Index
    from raycase.index.options import EFFORTS

    index = Index.open(index_uri)
    rows = random.Random(seed).sample(range(index.dataset.count_rows()), queries)
    texts = index.dataset.take(rows, columns=["text"])["text"].to_pylist()
    firsts, nexts, filtered, embedding, recall = [], [], [], [], []

    def timed(into, text, condition, **options):
        began = time.perf_counter()
        answers = index.search(text, condition, K, **options)
        into.append(time.perf_counter() - began)
        return np.array(answers["score"])

    opening = []
    timed(opening, texts[0], "mood")
    for condition in CONDITIONS:
        found = [timed(nexts if number else firsts, text, condition) for number, text in enumerate(texts)]
        for text in texts:
            began = time.perf_counter()
            index.embed([text], condition)
            embedding.append(time.perf_counter() - began)
        if condition in CONDITIONS[:exact]:
            all_rows = Index.open(index_uri)
            for text, scores in zip(texts, found, strict=True):
                wanted = all_rows.search(text, condition, K, **EFFORTS["exact"])["score"].to_numpy()
                recall.append(float((scores >= wanted[-1] - 1e-5).sum()) / K)
            del all_rows
    if where:
        index = Index.open(index_uri)
        index.search(texts[0], "mood", K)
        for condition in CONDITIONS:
            timed(filtered, texts[0], condition, where=where)
    at_once: list[float] = []
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(partial(timed, at_once), texts, [CONDITIONS[-1]] * len(texts)))
    milliseconds = {"first": firsts, "next": nexts, "embedding": embedding, "first_with_filter": filtered}
    milliseconds |= {f"next_of_{THREADS}_threads": at_once}
    result = {f"{name}_ms": round(1000 * median(values), 1) for name, values in milliseconds.items() if values}
    for name in ("next", f"next_of_{THREADS}_threads"):
        result[f"{name}_p99_ms"] = round(1000 * quantile(milliseconds[name], 0.99), 1)
    result |= {"opening_and_first_ms": round(1000 * opening[0])}
    return result | ({"recall": round(sum(recall) / len(recall), 4)} if recall else {})


def ask_service(index_uri, queries, seed):
    """The figures of requests to a service, whose index and conditions are warm."""
    from raycase.index.index import Index

    dataset = Index.open(index_uri).dataset
    texts = dataset.take(random.Random(seed).sample(range(dataset.count_rows()), queries), columns=["text"])
    asked = [
        {"queries": [text], "condition": name, "k": K} for text in texts["text"].to_pylist() for name in CONDITIONS
    ]
    words = [sys.executable, "-m", "raycase", "serve", "--index", index_uri, "--port", "0"]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=os.environ | {"RAYCASE_QUIET": "1"})
    host = json.loads(server.stdout.readline())["url"].removeprefix("http://")
    own = threading.local()

    def request(body=None):
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(host)
        began = time.perf_counter()
        route = ("POST", "/search") if body else ("GET", "/health")
        own.connection.request(*route, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = own.connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise SystemExit(f"{route}: status {answer.status}")
        return time.perf_counter() - began

    try:
        firsts = [request(body) for body in asked][: len(CONDITIONS)]
        found = {"health": [request() for _ in asked], "request": [request(body) for body in asked]}
        with ThreadPoolExecutor(THREADS) as threads:
            found[f"request_of_{THREADS}_clients"] = [*threads.map(request, asked)]
    finally:
        server.terminate()
        server.wait()
    return {"first_ms": round(1000 * median(firsts), 1)} | {
        f"{name}_{which}_ms": round(1000 * quantile(seconds, share), 1)
        for name, seconds in found.items()
        for which, share in (("median", 0.5), ("p99", 0.99))
    }


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--index", required=True)
    parser.add_argument("--where", help="a filter, of which first answers are timed, too")
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--exact", type=int, default=2, help="conditions under which recall is measured")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--service", action="store_true", help="ask a service instead")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.process:
        print(json.dumps(ask(flags.index, flags.where, flags.queries, flags.exact, flags.seed)))
        return
    if flags.service:
        finish({}, service=ask_service(flags.index, flags.queries, flags.seed), queries=flags.queries, seed=flags.seed)
        return
    checkouts = ({"before": flags.before.resolve()} if flags.before else {}) | {"now": ROOT}
    found = {which: [] for which in checkouts}
    for _ in range(flags.rounds):
        for which, checkout in checkouts.items():
            found[which].append(run("-P", *sys.argv, "--process", env=of_checkout(checkout)).line)
            print(which, found[which][-1], file=sys.stderr)
    medians = {which: {name: median(each[name] for each in of) for name in of[0]} for which, of in found.items()}
    ratios = {name: medians["before"][name] / medians["now"][name] for name in medians["now"]} if flags.before else {}
    finish(ratios, **medians, rounds=flags.rounds, queries=flags.queries, seed=flags.seed)


if __name__ == "__main__":
    main()
