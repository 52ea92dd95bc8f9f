"""An index in shards: searched whole in this process, and by 1, 2, 4 actors of Ray.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/shards.py --index captions.lance [--shards 1 2 4]

The index is one of `raycase embed --any-condition` and `raycase index --shards N`, with the most shards that are
measured. For each number of shards:

(equal)    the ten best of --queries captions, all rows compared, under new conditions and those of the index: rows and
           scores must be those of the whole index, bit by bit.
(recall)   at 10, a query at a time, in two stages where the index has enough rows, against all rows compared; equal
           scores count as found.
(seconds)  to start the actors; of the first answer under a condition that nobody asked before, and of the next ones:
           medians. Embedding the query is apart.
(way)      what it takes to ask all actors and hear them, without a search: the median of a request and answers of the
           usual size; and the bytes of both.
(killed)   four clients ask for --seconds, and a shard's process is killed in the middle: queries asked, answered, wrong
           (other rows than before), errors, and the longest that one waited.
"""

import argparse
import resource
import threading
import time

import numpy as np
from any_condition import NEW
from turns import captions, finish, median

from raycase.search.approximate import Options
from raycase.search.index import Index

K, CLIENTS = 10, 4
EVERY = Options(exact=True)


def answers(index, vectors, conditions):
    """Seconds of the first and the next answers, and the scores found, by condition; one more goes before."""
    first, following, found = [], [], {}
    for condition in (NEW[0], *conditions):
        scores = []
        for query in vectors[condition]:
            began = time.perf_counter()
            scores.append(index.nearest(query[None], condition, K)[0][0])
            following.append(time.perf_counter() - began)
        first.append(following.pop(-len(scores)))
        found[condition] = np.stack(scores)
    count = len(conditions)
    return median(first[1:]), median(following[-count * (len(scores) - 1) :]), {c: found[c] for c in conditions}


def compared(index, vectors, conditions):
    """The best of all rows, by condition, of those of the index, too."""
    return {
        condition: index.nearest(vectors.get(condition, vectors[NEW[0]]), condition, K, options=EVERY)
        for condition in (*conditions, *index.metadata.conditions)
    }


def recall(found, wanted):
    return float(np.mean([(found[c] >= wanted[c][0][:, -1:] - 1e-6).mean() for c in found]))


def way(index, vector):
    """Seconds of a request to all actors and back without a search, and the bytes of request and answers."""
    import ray
    from ray import cloudpickle

    questions, temperatures = index.asked(NEW[0])
    request = index._request(
        vector[None], NEW[0], K, None, candidates=5000, asked=(questions.cpu(), temperatures.cpu())
    )
    answer = np.zeros((1, K), np.float32), np.zeros((1, K), np.int64)
    actors = [replicas[0].actor for replicas in index.actors.replicas]
    seconds = []
    for _ in range(50):
        began = time.perf_counter()
        ray.get([actor.__ray_call__.remote(lambda _, request, answer=answer: answer, request) for actor in actors])
        seconds.append(time.perf_counter() - began)
    return median(seconds), len(actors) * len(cloudpickle.dumps(request)), len(actors) * len(cloudpickle.dumps(answer))


def killed(index, vectors, seconds):
    """What clients saw of a shard that died in the middle, and was back."""
    import ray

    condition = NEW[-1]  # of which no actor has all vectors
    wanted = [index.nearest(vector[None], condition, K) for vector in vectors]
    counts, waits, end = {"answered": 0, "wrong": 0, "errors": 0}, [], time.perf_counter() + seconds
    lock = threading.Lock()

    def client(number):
        query = number
        while time.perf_counter() < end:
            query = (query + 1) % len(vectors)
            began = time.perf_counter()
            try:
                found = index.nearest(vectors[query][None], condition, K)
                said = "answered" if all(map(np.array_equal, found, wanted[query])) else "wrong"
            except Exception as error:  # whatever it is, it is counted
                print(f"error: {error}", flush=True)
                said = "errors"
            with lock:
                counts[said] += 1
                waits.append(time.perf_counter() - began)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    time.sleep(seconds / 3)
    ray.kill(index.actors.replicas[-1][0].actor, no_restart=False)
    for each in clients:
        each.join()
    return (
        {"asked": sum(counts.values())}
        | counts
        | {
            "median wait, s": round(median(waits), 3),
            "longest wait, s": round(max(waits), 2),
        }
    )


def largest(index):
    """MiB of the largest process of a shard, at most."""
    import ray

    def peak(_):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    return max(ray.get([replicas[0].actor.__ray_call__.remote(peak) for replicas in index.actors.replicas]))


def main(args):
    from raycase.distributed.cluster import start_ray
    from raycase.distributed.shards import open_sharded

    queries, conditions = captions(args.queries), NEW[1 : 1 + args.conditions]
    began = time.perf_counter()
    whole = Index.open(args.index)
    opened = time.perf_counter() - began
    vectors = {condition: whole.embed(queries, condition) for condition in NEW}
    first, following, found = answers(whole, vectors, conditions)
    wanted = compared(whole, vectors, conditions)
    rows = [
        {
            "shards": "whole",
            "rows": whole.metadata.rows,
            "started, s": round(opened, 1),
            "first answer, s": round(first, 3),
            "next answer, s": round(following, 3),
            "recall": round(recall(found, wanted), 4),
        }
    ]
    print(rows[0], flush=True)
    del whole  # its memory
    start_ray()
    ratios = {}
    for shards in args.shards:
        began = time.perf_counter()
        index = open_sharded(args.index, shards=shards, wait=args.wait)
        started = time.perf_counter() - began
        shard_first, shard_next, found = answers(index, vectors, conditions)
        best = compared(index, vectors, conditions)
        seconds, asked, answered = way(index, vectors[NEW[0]][0])
        row = {
            "shards": shards,
            "equal": all(all(map(np.array_equal, best[name], wanted[name])) for name in wanted),
            "started, s": round(started, 1),
            "first answer, s": round(shard_first, 3),
            "next answer, s": round(shard_next, 3),
            "recall": round(recall(found, wanted), 4),
            "way, ms": round(1e3 * seconds, 2),
            "bytes asked and answered": [asked, answered],
            "largest process, MiB": largest(index),
            "killed": killed(index, vectors[NEW[-1]], args.seconds),
        }
        rows.append(row)
        print(row, flush=True)
        ratios[f"whole / {shards} shards, first answer"] = first / shard_first
        ratios[f"whole / {shards} shards, next answer"] = following / shard_next
        del index  # its actors end
    print_table(rows)
    finish({"index": args.index, "table": rows, "ratios": ratios})


def print_table(rows):
    names = ["shards", "equal", "started, s", "first answer, s", "next answer, s", "recall", "way, ms"]
    print("| " + " | ".join([*names, "killed: asked, answered, wrong, errors, longest wait"]) + " |")
    print("|" + "---|" * (len(names) + 1))
    for row in rows:
        lost = row.get("killed", {})
        said = [str(lost[n]) for n in ("asked", "answered", "wrong", "errors", "longest wait, s") if n in lost]
        print("| " + " | ".join([*(str(row.get(name, "")) for name in names), ", ".join(said)]) + " |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", required=True)
    parser.add_argument("--shards", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--queries", type=int, default=24)
    parser.add_argument("--conditions", type=int, default=3, choices=range(1, len(NEW) - 1))
    parser.add_argument("--seconds", type=float, default=60, help="of (killed)")
    parser.add_argument("--wait", type=float, default=60, help="seconds for which a shard that died is waited for")
    main(parser.parse_args())
