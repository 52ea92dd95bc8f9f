"""Seconds of whole commands from the shell, in this process and on Ray.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/commands.py [--rounds 3] [--captions 20000]

embed of 10 and of 1,000 captions under a condition; search of the index of the 1,000; train case on C-STS whose
vectors are cached; and, last, embed of many captions, once each way. Medians of the rounds, in turns. Nothing may run
beside it.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from turns import CAPTIONS, DATA, finish

WAYS = {"here": "--no-ray", "Ray": "--ray"}


def seconds(*words):
    """Of a command as a process; ends where it fails."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "raycase", *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return time.perf_counter() - began


def embed(folder, captions, way, turn):
    """Embed so many captions."""
    file = folder / f"{captions}.parquet"
    if not file.exists():
        pq.write_table(pq.read_table(CAPTIONS).slice(0, captions), file)
    output = folder / f"{captions}-{way}-{turn}"
    flags = ["--input", file, "--conditions", "color of the clothes", "--keep-columns", "text", "--output", output]
    return seconds("embed", *flags, WAYS[way]), output


def main(rounds, captions):
    found = {}

    def note(name, value):
        found.setdefault(name, []).append(round(value, 2))
        print(name, found[name], file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        files = ["--train", DATA / "csts" / "train.csv", "--validation", DATA / "csts" / "validation.csv"]
        fit = ["train", "case", *files, "--cache", folder / "cache"]
        seconds(*fit, "--epochs", "1", "--output", folder / "first", "--no-ray")
        for turn in range(rounds):
            for way in WAYS:
                for count in (10, 1000):
                    took, output = embed(folder, count, way, turn)
                    note(f"embed {count} captions, {way}", took)
                note(f"train case, {way}", seconds(*fit, "--output", folder / f"case-{way}-{turn}", WAYS[way]))
            if not turn:
                seconds("index", "--embeddings", output, "--output", folder / "index.lance", "--no-ray")
            asked = ["--index", folder / "index.lance", "--query", "a red dress", "--condition", "color of the clothes"]
            note("search", seconds("search", *asked))
        for way in WAYS:
            note(f"embed {captions} captions, {way}", embed(folder, captions, way, 0)[0])
    medians = {name: statistics.median(values) for name, values in found.items()}
    pairs = ("embed 10 captions", "embed 1000 captions", "train case", f"embed {captions} captions")
    finish(
        {"ratios": {f"{name}, Ray over here": medians[f"{name}, Ray"] / medians[f"{name}, here"] for name in pairs}}
        | medians
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--captions", type=int, default=20_000)
    arguments = parser.parse_args()
    main(arguments.rounds, arguments.captions)
