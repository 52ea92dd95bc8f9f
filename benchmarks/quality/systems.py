"""Every system on its data (C-STS, INLI, STS-B): trained with each seed by `raycase train`, a table each.

    RAY_worker_niceness=0 python -m benchmarks.quality.systems --output runs/systems --seeds 3 csr tri-encoder

Systems that are there are not trained again, and a run that was stopped resumes from its last epoch, so the table can
be made in several sittings. Figures are of the epoch that did best on the validation rows. --pairs trains on part of
the data: so many rows, drawn once for all seeds; of C-STS pairs of sentences, each under both of its conditions.
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

from benchmarks.turns import DATA, RAYCASE, finish, parser_of
from raycase.io.rated_pairs import read_rated

CSR = ["csr", "--router", "query", "--asks", "cls", "--routed", "1"]  # the paper's; later flags win
WORDS = [*CSR, "--asks", "words"]  # what works for an encoder that is averaged
SETS = {  # data -> row -> flags of `raycase train`
    "csts": {
        "bi-encoder": ["bi-encoder"],
        "tri-encoder": ["tri-encoder"],
        "tri-encoder concat": ["tri-encoder", "--compose", "concat"],
        "cross-encoder": ["cross-encoder"],
        "lora": ["lora", "--prompt", "concat-cs:all"],
        "csr": CSR,
        "csr words": [*WORDS, "--routed", "3"],
        "csr words 1 layer": WORDS,
        "csr words 5 layers": [*WORDS, "--routed", "5"],
        "csr words hidden router": [*WORDS, "--routed", "3", "--router", "hidden"],
        "csr words hidden router 1 layer": [*WORDS, "--router", "hidden"],
        "csr words hidden router 5 layers": [*WORDS, "--routed", "5", "--router", "hidden"],
        "bi-encoder pearson": ["bi-encoder", "--loss", "pearson"],
        "tri-encoder pearson": ["tri-encoder", "--loss", "pearson"],
    },
    "inli": {"simcse": ["simcse"], "dualcse": ["dualcse"], "dualcse bi": ["dualcse", "--form", "bi"]},
    "stsb": {"mixsp": ["mixsp"], "sentence-encoder": ["sentence-encoder"]},
}
DATA_OF = {row: data for data, rows in SETS.items() for row in rows}


def training_data(name, pairs, output):
    """The training file of a data set, or one of some of its rows."""
    whole = DATA / name / "train.csv"
    if pairs is None:
        return whole
    with whole.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    groups = read_rated(str(whole), "--train").groups if name == "csts" else np.arange(len(rows))
    chosen = np.random.default_rng(7).permutation(np.unique(groups))[:pairs]
    part = output / (f"train-{pairs}.csv" if name == "csts" else f"train-{name}-{pairs}.csv")
    output.mkdir(parents=True, exist_ok=True)
    with part.open("w", encoding="utf-8", newline="") as kept:
        csv.writer(kept).writerows([header, *compress(rows, np.isin(groups, chosen))])
    return part


def train(row, seed, output, pairs, flags):
    """The metrics of a row with a seed; trains where they are not there."""
    name = DATA_OF[row]
    folder = output / f"{row.replace(' ', '-')}-{seed}"
    data = training_data(name, pairs, output)
    command = [sys.executable, *RAYCASE, "train", *SETS[name][row], *flags]
    command += ["--train", data, "--validation", DATA / name / "validation.csv"]
    command += ["--output", folder, "--seed", seed]
    done = subprocess.run(list(map(str, command)), stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def line(found):
    """One row of the table."""
    epochs = [h for m in found for h in m["history"]]
    figures = {}
    for name in found[0]["validation"]:
        scores = [m["validation"][name] for m in found]
        figures[name] = round(statistics.mean(scores), 2)
        figures[f"± {name}"] = round(statistics.stdev(scores), 2) if len(scores) > 1 else None
    return figures | {
        "seeds": len(found),
        "epochs": max(m["epochs"] for m in found),
        "parameters": found[0]["parameters"],
        "seconds an epoch": round(statistics.median(h["seconds"] for h in epochs)),
        "mib": max(h["mib"] for h in epochs),
    }


def main(rows, seeds, output, pairs, flags):
    table = {}
    for seed in range(seeds):  # every row once before any twice
        for row in rows:
            table.setdefault(row, []).append(train(row, seed, output, pairs, flags))
            print(row, line(table[row]), file=sys.stderr, flush=True)
    lines = {row: line(found) for row, found in table.items()}
    for name, own in SETS.items():
        some = {row: found for row, found in lines.items() if row in own}
        if some:
            header = list(next(iter(some.values())))
            print(f"\n| {name} | {' | '.join(header)} |\n|{'---|' * (len(header) + 1)}")
        for row, found in some.items():
            print(f"| {row} | {' | '.join(str(value) for value in found.values())} |")
    finish(rows=lines, pairs=pairs, flags=flags)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"default: all of {', '.join(DATA_OF)}")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--pairs", type=int, help="rows that are trained on, pairs of C-STS; default: all")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="last: more flags of `raycase train`")
    arguments = parser.parse_args()
    wrong = [row for row in arguments.rows if row not in DATA_OF]
    if wrong:
        parser.error(f"expected {', '.join(DATA_OF)}, got {wrong[0]}")
    rows = arguments.rows or list(DATA_OF)
    main(rows, arguments.seeds, arguments.output.absolute(), arguments.pairs, arguments.flags)
