"""A training command on all but a share of the C-STS training pairs, and the figures on these, which chose nothing.

    .venv/bin/python benchmarks/held_back.py --output runs/held-back condition-pooling --teachers 4

Pairs of sentences are held back under both of their conditions, the same ones for every command. The validation data
choose the epoch as in any training.
"""

import argparse
import csv
import json
import subprocess
import sys
from itertools import compress
from pathlib import Path

import numpy as np
from turns import DATA, ROOT, finish

from raycase.data.rated import read_rated

SHARE, SEED = 0.1, 7


def divide(output):
    """Write the pairs that are trained on and those that are held back; returns the two files."""
    whole = DATA / "csts" / "train.csv"
    with whole.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    groups = read_rated(str(whole), "--train").groups
    names = np.random.default_rng(SEED).permutation(np.unique(groups))
    held_back = np.isin(groups, names[: round(SHARE * len(names))])
    output.mkdir(parents=True, exist_ok=True)
    files = output / "trained-on.csv", output / "held-back.csv"
    for file, chosen in zip(files, (~held_back, held_back), strict=True):
        with file.open("w", encoding="utf-8", newline="") as part:
            csv.writer(part).writerows([header, *compress(rows, chosen)])
    return files


def run(job, *flags):
    """The result of a command of `jobs/`."""
    command = [sys.executable, str(ROOT / "jobs" / f"{job}.py"), *map(str, flags)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def main(output, flags):
    trained_on, held_back = divide(output)
    validation = DATA / "csts" / "validation.csv"
    model = output / "model"
    run("train", *flags, "--train", trained_on, "--validation", validation, "--output", model)
    found = {}
    for name, data in ("validation", validation), ("held back", held_back):
        report = run(
            "evaluate", "--model", model, "--data", data, "--output", output / "report", "--cache", output / "cache"
        )
        found[name] = next(iter(report["models"].values()))
        print(name, found[name], file=sys.stderr, flush=True)
    finish({"ratios": {}, "figures": found, "flags": flags})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("flags", nargs=argparse.REMAINDER, help="a system and flags of `raycase train`")
    arguments = parser.parse_args()
    main(arguments.output.absolute(), arguments.flags)
