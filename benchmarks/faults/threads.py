"""Eight threads share a model, an index and a service for some minutes: is any answer another than one thread's?

python -m benchmarks.faults.threads [--minutes 10]
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial

import numpy as np
import requests

import raycase
from benchmarks.turns import finish, parser_of
from raycase.commands.embed import SAMPLE
from raycase.index.build import build
from raycase.io.vectors import cosines

THREADS = 8
CONDITIONS = ("color of the clothes", "number of people", "place", "the animal", "weather", "what they hold")
FILTERS = (None, "length(text) > 60", "text LIKE '%man%'")


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as folder:
        words, index = f"{folder}/words", f"{folder}/i.lance"
        raycase.embed(SAMPLE, words, any_condition=True, ray=False)
        build(index, [words])
        command = [sys.executable, "-m", "raycase", "serve", "--index", index, "--port", "0", "--queue", "64"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
            try:
                url = json.loads(server.stdout.readline())["url"]
                measure(index, url, minutes)
            finally:
                server.terminate()


def measure(path, url, minutes):
    calls = {name: call(path, url) for name, call in CALLS.items()}
    texts = [row["text"] for row in raycase.Index.open(path).dataset.to_table(columns=["text"]).to_pylist()][:60]
    asks = [
        (n, t, c, w) for n in calls for t in texts[:6] for c in CONDITIONS for w in FILTERS[: 3 if "search" in n else 1]
    ]
    wanted = {ask: calls[ask[0]](*ask[1:]) for ask in asks}  # by this thread alone
    calls = {name: call(path, url) for name, call in CALLS.items()}  # nothing is remembered
    found, wrong, until = Counter(), [], time.monotonic() + 60 * minutes

    def work(seed):
        chance = random.Random(seed)
        while time.monotonic() < until:
            ask = chance.choice(asks)
            try:
                same = equal(calls[ask[0]](*ask[1:]), wanted[ask])
            except Exception as error:
                same = False
                wrong.append((ask, repr(error)[:300]))
            found[ask[0], same] += 1

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result = {f"{name} {'right' if same else 'WRONG'}": count for (name, same), count in sorted(found.items())}
    finish(minutes=minutes, threads=THREADS, seeds=[0, THREADS - 1], answers=result, errors=wrong[:5])


def equal(found, wanted):
    """Vectors whose cosines are above 0.999, as bf16 allows; of answers the ids in their order, scores within 1e-5."""
    if isinstance(wanted, np.ndarray):
        return bool((cosines(found.reshape(-1, found.shape[-1]), wanted.reshape(-1, found.shape[-1])) > 0.999).all())
    (ids, scores), (wanted_ids, wanted_scores) = found, wanted
    return ids == wanted_ids and np.allclose(scores, wanted_scores, atol=1e-5)


def encode(path, url):
    model = raycase.load()
    return lambda text, condition, where: model.encode([text, text[::-1]], condition)


def grid(path, url):
    model = raycase.load()
    return lambda text, condition, where: model.encode_grid(text, [condition, "place"])


def search(path, url):
    index = raycase.Index.open(path)

    def ask(text, condition, where):
        found = index.search([text], condition, 5, where)
        return found["id"].to_pylist(), found["score"].to_pylist()

    return ask


def post(url, route, asked):
    answer = requests.post(url + route, json=asked, timeout=120)
    answer.raise_for_status()
    return answer.json()


def service_encode(url, text, condition, where):
    found = post(url, "/v1/embeddings", {"input": [text, text[::-1]], "condition": condition})
    return np.array([each["embedding"] for each in found["data"]], np.float32)


def service_search(url, text, condition, where):
    asked = {"queries": text, "condition": condition, "k": 5, **({"where": where} if where else {})}
    [found] = post(url, "/search", asked)["answers"]
    return [each["row"]["id"] for each in found], [each["score"] for each in found]


CALLS = {
    "encode": encode,
    "encode_grid": grid,
    "Index.search": search,
    "service embeddings": lambda path, url: partial(service_encode, url),
    "service search": lambda path, url: partial(service_search, url),
}

if __name__ == "__main__":
    main()
