"""What it costs to start a command, on two checkouts in turns: python benchmarks/starting.py --before CHECKOUT

Processor seconds of whole processes: `index` of 1,000 captions under one condition, `verify` of their output, `search`
of one sentence in their index, `embed` of ten; beside them imports, of which torch's is the floor of the last two.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from turns import ROOT, captions, finish, median

COMMANDS = {
    "index": "index --embeddings out --output {}.lance",
    "verify": "verify out --no-ray",
    "search": "search --index index.lance --query beach --condition place --no-ray",
    "embed": "embed --input ten.csv --conditions place --output {} --no-ray",
    "--help": "--help",
}
IMPORTS = ("raycase", "torch", "lance")


def seconds(words, checkout, folder):
    """User and system seconds of one process."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "HF_HUB_OFFLINE": "1", "RAYCASE_QUIET": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}: {done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(before, rounds):
    """Print the medians of both checkouts, and the last line."""
    checkouts = ({"before": before} if before else {}) | {"now": ROOT}
    found = {(name, which): [] for name in (*COMMANDS, *IMPORTS) for which in checkouts}
    with tempfile.TemporaryDirectory() as folder:
        for name, count in (("rows", 1000), ("ten", 10)):
            Path(folder, f"{name}.csv").write_text(
                "text\n" + "".join(f'"{text.replace(chr(34), "")}"\n' for text in captions(count))
            )
        for words in (
            "embed --input rows.csv --conditions place --output out --no-ray",
            "index --embeddings out --output index.lance",
        ):
            seconds(["-m", "raycase", *words.split()], ROOT, folder)
        for number in range(rounds):
            for name, which in found:
                words = ["-c", f"import {name}"] if name in IMPORTS else ["-m", "raycase"]
                words += COMMANDS.get(name, "").format(f"{which}{number}").split()
                found[name, which].append(seconds(words, checkouts[which], folder))
    medians = {name: {which: round(median(found[name, which]), 2) for which in checkouts} for name, _ in found}
    for name, taken in medians.items():
        print(f"{name:<10}{taken}", file=sys.stderr)
    ratios = {name: taken["before"] / taken["now"] for name, taken in medians.items() if before}
    finish({"ratios": ratios, "processor_seconds": medians, "rounds": rounds})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    main(arguments.before and arguments.before.resolve(), arguments.rounds)
