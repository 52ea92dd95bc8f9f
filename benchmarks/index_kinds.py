"""The kinds of approximate indices on the same unit vectors: recall, bytes, seconds to build, milliseconds a query.

    .venv/bin/python benchmarks/index_kinds.py --embeddings runs/captions --rows 20000
    .venv/bin/python benchmarks/index_kinds.py --embeddings runs/one runs/two runs/three

Outputs of `raycase embed` or `raycase materialize` in float16 or float32, one after the other. Some of their rows,
drawn by a seed, are the queries and not in the indices. Recall at 10 is against exact search over the same
float16 numbers, by score, for equal texts have equal vectors. All kinds are Lance's over one column of vectors, with
the partitions and options of `raycase index` and `raycase search`; IVF_SQ is not among those that raycase builds. They
take turns: a turn asks every query of every index one by one. Bytes a vector are those of an index beside the column,
which all have.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from turns import finish, median

from raycase.corpus.written import open_written
from raycase.data.lance_dataset import import_lance
from raycase.data.schema import EMBEDDING, embedding_array, embedding_numbers
from raycase.data.vectors import l2_normalize
from raycase.search.approximate import EFFORTS, REFINE
from raycase.search.column_indices import ROWS_A_PARTITION, TYPES, IndexSpec, create_index

K, QUERIES, TURNS, WARM = 10, 100, 3, 10
CHUNK = 2**16  # rows in memory as float32
KINDS = {  # name -> kind, as `raycase index` calls it or nearest to it, and its codes
    "HNSW_SQ": ("hnsw", {}),
    "IVF_PQ": ("ivf-pq", {"sub_vectors": 4}),  # dimensions of each
    "IVF_SQ": ("ivf-rq", {"type": "IVF_SQ"}),
    "IVF_RQ, 1 bit": ("ivf-rq", {"bits": 1}),
    "IVF_RQ, 5 bits": ("ivf-rq", {"bits": 5}),
}


def read(arguments):
    """Unit vectors, (N, D) float16."""
    outputs = [open_written(output, "--embeddings") for output in arguments.embeddings]
    parts = (embedding_numbers(table[EMBEDDING]) for output in outputs for table in output.tables())
    units = [l2_normalize(np.asarray(part, np.float32)).astype(np.float16) for part in parts]
    return np.concatenate(units)[: arguments.rows]


def held_out(vectors, seed=0):
    """The vectors without the queries, and these in float32: (N, D), (Q, D)."""
    chosen = np.random.default_rng(seed).choice(len(vectors), QUERIES, replace=False)
    return np.delete(vectors, chosen, axis=0), l2_normalize(vectors[chosen].astype(np.float32))


def exact(vectors, queries):
    """The score of the K-th best row of each query: (Q,)."""
    best = np.full((len(queries), K), -np.inf, np.float32)
    for start in range(0, len(vectors), CHUNK):
        scores = queries @ vectors[start : start + CHUNK].astype(np.float32).T
        best = np.sort(np.concatenate([best, scores], axis=1), axis=1)[:, -K:]
    return best[:, 0]


def indexed(name, column, rows, dim, folder):
    """A dataset with the index, over the files of `column`; seconds of its build, and bytes a vector."""
    kind, codes = KINDS[name]
    place = Path(folder) / f"{len(os.listdir(folder))}.lance"
    shutil.copytree(column, place, copy_function=os.link)  # Lance changes no file
    sub_vectors = dim // codes["sub_vectors"] if "sub_vectors" in codes else None
    spec = IndexSpec(
        column="vector",
        type=codes.get("type", TYPES[kind]),
        rows=rows,
        partitions=max(1, rows // ROWS_A_PARTITION[kind]),
        sub_vectors=sub_vectors,
        bits=codes.get("bits"),
    )
    began = time.perf_counter()
    create_index(import_lance().dataset(str(place)), spec)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in (place / "_indices").rglob("*") if file.is_file())
    return import_lance().dataset(str(place)), seconds, size / rows


def search(dataset, kind, query, effort, refine):
    """The rows that an index finds, as `raycase search` asks it; refine: by the vectors themselves, or not."""
    options = EFFORTS[effort]
    times = -(-options.candidates(K, REFINE[kind]) // K) if refine else None
    nearest = {
        "column": "vector",
        "q": query,
        "k": K,
        "metric": "dot",
        "refine_factor": times,
        "nprobes": options.nprobes,
    }
    if kind == "hnsw":
        nearest["ef"] = max(options.ef, K * (times or 1))
    return dataset.to_table(columns=["row", "_distance"], nearest=nearest)["row"].to_numpy()


def main(arguments):
    vectors, queries = held_out(read(arguments))
    rows, dim = vectors.shape
    least = exact(vectors, queries) - 1e-5
    settings = [(effort, refine) for effort in ("usual", "high") for refine in (False, True)]
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        column = f"{folder}/column"
        schema = pa.schema([("row", pa.int64()), ("vector", embedding_array(vectors[:1]).type)])
        tables = (
            pa.record_batch(
                [np.arange(start, min(start + CHUNK, rows)), embedding_array(vectors[start : start + CHUNK])], schema
            )
            for start in range(0, rows, CHUNK)
        )
        import_lance().write_dataset(pa.RecordBatchReader.from_batches(schema, tables), column)
        built = {name: indexed(name, column, rows, dim, folder) for name in KINDS}
        found, took = {}, {}
        for turn in range(TURNS + 1):  # in the first one indices are read
            for name, (dataset, _, _) in built.items():
                for setting in settings:
                    for number, query in enumerate(queries[: QUERIES if turn else WARM]):
                        began = time.perf_counter()
                        answer = search(dataset, KINDS[name][0], query, *setting)
                        if turn:
                            took.setdefault((name, *setting), []).append(1000 * (time.perf_counter() - began))
                            found[name, *setting, number] = answer
    kinds = []
    print(f"{rows:,} vectors of {dim} dimensions, {QUERIES} queries one at a time")
    for name, (_, seconds, size) in built.items():
        print(f"{name}: {size:.0f} bytes a vector, built in {seconds:.1f} s")
        for effort, refine in settings:
            answers = [found[name, effort, refine, number] for number in range(QUERIES)]
            hits = [
                int((vectors[answer].astype(np.float32) @ query >= low).sum())
                for answer, query, low in zip(answers, queries, least, strict=True)
            ]
            line = {
                "index": name,
                "effort": effort,
                "refined": refine,
                "recall": 100 * sum(hits) / (K * QUERIES),
                "ms": median(took[name, effort, refine]),
            }
            kinds.append(line)
            how = "refined" if refine else "bare"
            print(f"  {effort:>5}, {how:>7}: {line['recall']:6.2f} %, {line['ms']:6.2f} ms a query")
    sizes = {name: {"build_seconds": seconds, "bytes": size} for name, (_, seconds, size) in built.items()}
    graph = sizes["HNSW_SQ"]
    ratios = {
        f"{what}, HNSW_SQ over {name}": graph[what] / values[what]
        for name, values in sizes.items()
        for what in ("build_seconds", "bytes")
        if values is not graph
    }
    finish({"rows": rows, "dim": dim, "queries": QUERIES, "kinds": kinds, "built": sizes, "ratios": ratios})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", nargs="+", required=True, help="outputs of raycase embed or materialize")
    parser.add_argument("--rows", type=int, help="this many, the first ones")
    parser.add_argument("--scratch", help="folder for the indices, on a disk with room for the vectors twice")
    main(parser.parse_args())
