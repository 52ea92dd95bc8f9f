"""INLI: which entailments a premise finds by its explicit and by its implicit vector, through the jobs.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/implied.py runs/inli/dualcse-0 runs/inli/simcse-0

The corpus is the explicit and the implied entailments of all validation premises, each embedded under every condition
that the model knows; the queries are the premises: implicit vectors against explicit ones, as DualCSE's loss has them,
and each condition against itself.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from turns import DATA, ROOT, finish

from raycase.data.inferences import read_inferences
from raycase.systems.registry import resolve

DEPTH = 10
FIRST = "explicit -> explicit"
KINDS = {"explicit": "explicit_entailment", "implied": "implied_entailment"}


def job(name, *arguments):
    done = subprocess.run([sys.executable, ROOT / "jobs" / f"{name}.py", *map(str, arguments)], stdout=sys.stderr)
    if done.returncode:
        raise SystemExit(done.returncode)


def answers(model, columns, folder):
    """The first answers to every premise, as {premise, conditions of query and corpus: ids, nearest first}."""
    conditions = resolve(model).known_conditions
    ids = [f"{kind} {i}" for kind in KINDS for i in range(len(columns["premise"]))]
    texts = [text for column in KINDS.values() for text in columns[column]]
    pq.write_table(pa.table({"id": ids, "text": texts}), folder / "corpus.parquet")
    pq.write_table(pa.table({"text": columns["premise"]}), folder / "queries.parquet")
    under = ["--conditions", *conditions] if conditions else ["--unconditional"]
    job("embed", "--model", model, "--input", folder / "corpus.parquet", "--output", folder / "vectors", *under)
    job("index", "--embeddings", folder / "vectors", "--output", folder / "index.lance")
    found = {}
    asked = [("implicit", "explicit"), *((c, c) for c in conditions)] if conditions else [("plain", "plain")]
    for own, searched in asked:
        under = ["--query-condition", own, "--condition", searched] if conditions else ["--unconditional"]
        where = ["--queries", folder / "queries.parquet", "--output", folder / "answers.parquet"]
        job("search", "--index", folder / "index.lance", *where, "-k", DEPTH, *under)
        table = pq.read_table(folder / "answers.parquet")
        for row in table.sort_by([("query", "ascending"), ("rank", "ascending")]).to_pylist():
            found.setdefault((row["query"], f"{own} -> {searched}"), []).append(row["id"])
    return found


def measured(found):
    """By conditions: % of premises whose own entailment of each kind is the first answer, and among the first ten."""
    by_condition = {}
    for condition in dict.fromkeys(condition for _, condition in found):
        own = [(premise, ids) for (premise, c), ids in found.items() if c == condition]
        by_condition[condition] = {
            f"{kind} within {depth}": 100 * sum(f"{kind} {premise}" in ids[:depth] for premise, ids in own) / len(own)
            for kind in KINDS
            for depth in (1, DEPTH)
        }
    return by_condition


def main(models):
    columns = read_inferences(str(DATA / "inli" / "validation.csv"), "--data").columns
    lines, ratios = {}, {}
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            lines[model] = measured(answers(model, columns, Path(folder)))
        for condition, figures in lines[model].items():
            print(model, condition, " | ".join(f"{name} {value:.1f}" for name, value in figures.items()), flush=True)
    for line in lines.values():
        for asked in line.keys() - {FIRST} if FIRST in line else ():
            ratios |= {f"{asked} / {FIRST}: {name}": line[asked][name] / line[FIRST][name] for name in line[FIRST]}
    finish({"ratios": ratios, "lines": lines})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders or names of models that embed")
    main(parser.parse_args().models)
