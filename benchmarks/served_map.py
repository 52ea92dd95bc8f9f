"""How long the page of `raycase serve` waits for a map, and what a search waits meanwhile.

    raycase serve --index captions.lance --most-rows 5000
    python benchmarks/served_map.py --url http://127.0.0.1:8000 --conditions "the animal" "the activity" "the place"

One client sends a caption as a query under a condition that is pooled, waits, and sends the next: alone, and while the
first map is made, whose process starts then, and one under each condition. Seconds are those of the clock.
"""

import argparse
import json
import threading
import time
from itertools import cycle
from urllib.request import Request, urlopen

import numpy as np
from turns import captions, finish

ALONE = 10.0  # seconds of searches before the first map


def post(url, **asked):
    request = Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=600) as answer:
        return json.load(answer)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--conditions", nargs="+", required=True)
    args = parser.parse_args()
    queries, done, took = captions(2000), threading.Event(), []

    def search():
        for query in cycle(queries):
            if done.is_set():
                return
            began = time.perf_counter()
            post(f"{args.url}/search", queries=query, condition="color of the clothes")
            took.append((began, time.perf_counter() - began))
            time.sleep(0.05)

    post(f"{args.url}/search", queries="a dog", condition="color of the clothes")  # pools all rows
    thread = threading.Thread(target=search)
    thread.start()
    time.sleep(ALONE)
    maps, spans = {}, {"alone": (0.0, time.perf_counter())}
    rows = post(f"{args.url}/explore/rows")
    for condition in (None, *args.conditions):
        began = time.perf_counter()
        post(f"{args.url}/explore/map", version=rows["version"], condition=condition)
        spans[condition] = began, time.perf_counter()
        maps[str(condition)] = round(time.perf_counter() - began, 1)
    done.set()
    thread.join()
    print(f"{rows['summary']}\n\n| a map under | seconds | searches meanwhile | median ms | the slowest |")
    print("|---|---|---|---|---|")
    medians = {}
    for name, (first, last) in spans.items():
        waited = [1000 * seconds for began, seconds in took if first <= began < last]
        medians[str(name)] = round(float(np.median(waited)), 1)
        shown = maps.get(str(name), "")
        print(f"| {name or 'no condition'} | {shown} | {len(waited)} | {medians[str(name)]} | {max(waited):.0f} |")
    ratios = {name: median / medians["alone"] for name, median in medians.items() if name != "alone"}
    finish({"rows": len(rows["texts"]), "seconds": maps, "search_ms": medians, "ratios": ratios})


if __name__ == "__main__":
    main()
