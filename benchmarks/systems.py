"""Every system on C-STS: trained with each seed by `jobs/train.py`, the figures of one table.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/systems.py --output runs/systems --seeds 3 csr tri-encoder

Systems that are there are not trained again, and a run that was stopped goes on from its last epoch, so the table can
be made in several sittings. Figures are of the epoch that did best on the validation rows. --pairs trains on part of
the data: so many pairs of sentences, drawn once for all seeds, each under both of its conditions.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys
from itertools import compress
from pathlib import Path

import numpy as np
from turns import DATA, ROOT, finish

from raycase.rated import read_rated

WORDS = ["csr", "--asks", "words", "--weight", "Tw"]  # what works for an encoder that is averaged
ROWS = {
    "bi-encoder": ["bi-encoder"],
    "tri-encoder": ["tri-encoder"],
    "tri-encoder concat": ["tri-encoder", "--compose", "concat"],
    "cross-encoder": ["cross-encoder"],
    "lora": ["lora", "--prompt", "concat-cs:all"],
    "csr": ["csr"],
    "csr words": [*WORDS, "--routed", "3"],
    "csr words 1 layer": WORDS,
    "csr words 5 layers": [*WORDS, "--routed", "5"],
    "csr words hidden router": [*WORDS, "--routed", "3", "--router", "hidden"],
    "csr words hidden router 1 layer": [*WORDS, "--router", "hidden"],
    "csr words hidden router 5 layers": [*WORDS, "--routed", "5", "--router", "hidden"],
    "csr words heavy router": [*WORDS, "--routed", "3", "--router", "heavy"],
    "csr words random weight": [*WORDS, "--routed", "3", "--router", "random"],
    "csr words added": ["csr", "--asks", "words", "--routed", "3"],
    "csr words only weight": ["csr", "--asks", "words", "--routed", "3", "--weight", "w"],
    "csr words hadamard": [*WORDS, "--routed", "3", "--compose", "hadamard"],
    "csr bi": ["csr", "--form", "bi"],
    "bi-encoder pearson": ["bi-encoder", "--loss", "pearson"],
    "tri-encoder pearson": ["tri-encoder", "--loss", "pearson"],
}


def training_data(pairs, output):
    """C-STS's training file, or one of some of its rows."""
    whole = DATA / "csts" / "train.csv"
    if pairs is None:
        return whole
    groups = read_rated(str(whole), "--train").groups
    chosen = np.random.default_rng(7).permutation(np.unique(groups))[:pairs]
    part = output / f"train-{pairs}.csv"
    output.mkdir(parents=True, exist_ok=True)
    with whole.open(encoding="utf-8", newline="") as rows, part.open("w", encoding="utf-8", newline="") as kept:
        csv.writer(kept).writerows(compress(csv.reader(rows), [True, *np.isin(groups, chosen)]))
    return part


def train(row, seed, output, data, flags):
    """The metrics of a row with a seed; trains where they are not there."""
    folder = output / f"{row.replace(' ', '-')}-{seed}"
    command = [sys.executable, str(ROOT / "jobs" / "train.py"), *ROWS[row], *flags]
    command += ["--train", data, "--validation", DATA / "csts" / "validation.csv"]
    command += ["--output", folder, "--seed", seed]
    done = subprocess.run(list(map(str, command)), stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def line(found):
    """One row of the table."""
    scores = [m["validation"]["spearman"] for m in found]
    rated = [m["validation"]["spearman_rated"] for m in found]
    epochs = [h for m in found for h in m["history"]]
    return {
        "spearman": round(statistics.mean(scores), 2),
        "std": round(statistics.stdev(scores), 2) if len(scores) > 1 else None,
        "without -1": round(statistics.mean(rated), 2),
        "seeds": len(scores),
        "epochs": max(m["epochs"] for m in found),
        "parameters": found[0]["parameters"],
        "seconds an epoch": round(statistics.median(h["seconds"] for h in epochs)),
        "mib": max(h["mib"] for h in epochs),
    }


def main(rows, seeds, output, pairs, flags):
    table = {}
    data = training_data(pairs, output)
    for seed in range(seeds):  # every row once before any twice
        for row in rows:
            table.setdefault(row, []).append(train(row, seed, output, data, flags))
            print(row, line(table[row]), file=sys.stderr, flush=True)
    lines = {row: line(found) for row, found in table.items()}
    header = list(next(iter(lines.values())))
    print(f"| | {' | '.join(header)} |\n|{'---|' * (len(header) + 1)}")
    for row, found in lines.items():
        print(f"| {row} | {' | '.join(str(value) for value in found.values())} |")
    finish({"ratios": {}, "rows": lines, "pairs": pairs, "flags": flags})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(ROWS)}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pairs", type=int, help="pairs of sentences that are trained on; default: all")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="last: more flags of jobs/train.py")
    arguments = parser.parse_args()
    wrong = [row for row in arguments.rows if row not in ROWS]
    if wrong:
        parser.error(f"wanted {', '.join(ROWS)}, found {wrong[0]}")
    main(arguments.rows or list(ROWS), arguments.seeds, arguments.output.absolute(), arguments.pairs, arguments.flags)
