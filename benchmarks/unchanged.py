"""Whether a change left every vector, weight, metric and count alone: python benchmarks/unchanged.py --before CHECKOUT

Runs the same job, fits, report, index and search with another checkout and with this one, each in a folder of its own,
and compares what they write. Both use this environment's packages. Exit status 1 where something differs.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from safetensors.numpy import load_file
from turns import DATA, ROOT

from raycase.io.json_values import finite

CONDITIONS = ("number of people", "color of the clothes")
PAIRS = ("--train", "train.csv", "--validation", "validation.csv", "--compute", "float32", "--cache", "cache")
STEPS = {
    "embed": (
        "--limit",
        "120",
        "--unit-rows",
        "40",
        "--compute",
        "float32",
        "--model",
        "minilm",
        "--output",
        "out",
        "--conditions",
        *CONDITIONS,
    ),
    "verify": ("out",),
    "index": ("--embeddings", "out", "--output", "index.lance"),
    "search": ("--index", "index.lance", "--queries", "queries.csv", "--output", "answers.parquet", "-k", "5"),
    "train": ("case", *PAIRS, "--epochs", "5", "--dim", "32", "--output", "case"),
    "train ": ("bi-encoder", *PAIRS, "--epochs", "1", "--batch-size", "32", "--output", "bi"),
    "evaluate": (
        *("--model", "case", "bi", "minilm", "--data", "validation.csv", "--compute", "float32"),
        *("--cache", "cache", "--resamples", "100", "--output", "report"),
    ),
}
TIMES = {
    "seconds",
    "embed_seconds",
    "startup_seconds",
    "mib",
    "provenance",
    "gflops",
    "rate",
}  # of a run, not its result


def run(checkout, folder):
    """Every step in a folder, by the checkout's jobs."""
    for name, rows in (("train", 256), ("validation", 128)):
        with (
            (DATA / "csts" / f"{name}.csv").open(newline="") as source,
            (folder / f"{name}.csv").open("w", newline="") as to,
        ):
            lines = csv.reader(source)
            csv.writer(to).writerows(line for line, _ in zip(lines, range(rows + 1), strict=False))
    (folder / "queries.csv").write_text(
        "text,condition\nTwo girls play soccer.,number of people\nA red dress.,color of the clothes\n"
    )
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    for step, flags in STEPS.items():
        command = [sys.executable, str(checkout / "jobs" / f"{step.strip()}.py"), *flags]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{checkout}: {step} {' '.join(flags)}: {done.stderr.strip()}")


def without_times(value):
    """A JSON value without what differs from run to run."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIMES}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def outputs(folder):
    """What is compared: name -> JSON value, table without vectors, or array."""
    table = ds.dataset(folder / "out" / "embeddings").to_table()
    job, manifest = (json.loads((folder / "out" / f"{name}.json").read_text()) for name in ("job", "manifest"))
    counts = (
        "fingerprint",
        "rows_in",
        "rows_out",
        "rows_rejected",
        "pairs",
        "distinct_pairs",
        "units",
        "bytes",
        "reasons",
    )
    report = (folder / "report" / "metrics.json").read_text()  # names the models' folders
    found = {
        "embed: rows": table.drop_columns("embedding").to_pylist(),
        "embed: vectors": np.stack(table["embedding"].to_numpy()),
        "embed: names of the units": sorted(f.name for f in (folder / "out" / "embeddings").iterdir()),
        "embed: counts": {name: manifest[name] for name in counts},
        # 0.1 and 0.2 did not name the model; small files that share units do so under a random name
        "embed: job.json": {k: v for k, v in job.items() if k not in ("model", "sharing")},
        "search: answers": pq.read_table(folder / "answers.parquet").to_pylist(),
        "evaluate: metrics.json": without_times(json.loads(report.replace(str(folder), ""))),
    }
    for model, weights in (("case", "projector.safetensors"), ("bi", "model.safetensors")):
        found[f"train {model}: raycase.json"] = json.loads((folder / model / "raycase.json").read_text())
        found[f"train {model}: metrics.json"] = without_times(json.loads((folder / model / "metrics.json").read_text()))
        found |= {f"train {model}: {name}": array for name, array in load_file(folder / model / weights).items()}
    return found


def main(before):
    with tempfile.TemporaryDirectory() as home:
        found = []
        for name, checkout in (("before", before.resolve()), ("after", ROOT)):
            folder = Path(home) / name
            folder.mkdir()
            run(checkout, folder)
            found.append(outputs(folder))
    first, second = found
    differ = sorted(first.keys() ^ second.keys())
    largest = 0.0
    for name in first.keys() & second.keys():
        a, b = first[name], second[name]
        if isinstance(a, np.ndarray):
            largest = max(largest, float(np.abs(a.astype(np.float64) - b).max()) if a.shape == b.shape else np.inf)
            same = np.array_equal(a, b)
        else:
            same = a == b
        if not same:
            differ.append(name)
    commits = [
        subprocess.run(
            ["git", "-C", c, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        for c in (before, ROOT)
    ]
    for name in differ:
        print(f"differs: {name}")
    result = {"commits": commits, "compared": len(first), "differ": differ, "largest_difference": largest}
    print(json.dumps(finite(result), allow_nan=False))
    return int(bool(differ))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the commit to compare with")
    sys.exit(main(parser.parse_args().before))
