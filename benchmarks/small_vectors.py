"""Neighbours that small vectors keep, and Lance's IVF_RQ beside the HNSW_SQ of our indexes, on 20,000 captions.

    .venv/bin/python -m raycase embed --input captions.parquet --limit 20000 --conditions "color of the clothes" \
        --dtype float32 --output runs/captions32
    .venv/bin/python benchmarks/small_vectors.py --embeddings runs/captions32

Queries: sentences of C-STS validation under the same condition, by the same model. Recall at 10 is against exact search
in float32, by score, for equal texts have equal vectors. Indices are of unit vectors in float16, as `raycase index`
writes them; they take turns, a turn is all queries one by one. Bytes a vector are those of an index beside the column.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from turns import DATA, finish, median

import raycase
from raycase.corpus.job_record import read_job
from raycase.corpus.output import output_at
from raycase.corpus.written import open_written
from raycase.data.lance_dataset import import_lance
from raycase.data.rated import read_rated
from raycase.data.schema import EMBEDDING, embedding_array, embedding_numbers
from raycase.data.vectors import int8_numbers, l2_normalize, sign_bits

K, QUERIES, TURNS = 10, 200, 5
EF = 100  # of HNSW, as ours
RESCORED = 100  # of binary: candidates that are scored by their vectors
INDICES = {  # name -> what Lance builds, and how many candidates it takes from all partitions before exact scores
    "HNSW_SQ": ({"index_type": "IVF_HNSW_SQ", "num_partitions": 1}, {"ef": EF}),
    "IVF_RQ": ({"index_type": "IVF_RQ", "num_partitions": 5, "num_bits": 1}, {"nprobes": 5}),
}
REFINE = (None, 1, 3, 10)  # None: bare, without exact scores


def read(folder):
    """Unit vectors, (N, D), and those of the queries, (Q, D), float32."""
    written = open_written(folder, "--embeddings")
    vectors = np.concatenate([embedding_numbers(table[EMBEDDING]) for table in written.tables()])
    job = read_job(output_at(folder))
    rated = read_rated(str(DATA / "csts" / "validation.csv"), "--data")
    sentences = list(dict.fromkeys(rated.sentences1))[:QUERIES]
    queries = raycase.load(job.model).embed(sentences, job.config["conditions"][0])
    return l2_normalize(vectors), l2_normalize(queries)


def formats(vectors, queries):
    """Name -> the K best of each query by vectors of this format: (Q, K)."""
    best = lambda scores, k=K: np.argsort(-scores, axis=1, kind="stable")[:, :k]  # noqa: E731
    small, asked = (l2_normalize(int8_numbers(v)) for v in (vectors, queries))
    signs, signs_asked = (2.0 * np.unpackbits(sign_bits(v), axis=1) - 1 for v in (vectors, queries))
    hamming = (signs_asked @ signs.T).astype(np.float32)
    candidates = best(hamming, RESCORED)
    exact = np.einsum("qd,qcd->qc", queries, vectors[candidates])
    return {
        "float16": best(queries @ l2_normalize(vectors.astype(np.float16)).T),
        "int8, both": best(asked @ small.T),
        "int8, queries in float32": best(queries @ small.T),
        "binary": best(hamming),
        f"binary, best {RESCORED} rescored": np.take_along_axis(candidates, best(exact), 1),
    }


def indexed(name, vectors, folder):
    """A dataset with the index, seconds of its build, and bytes a vector."""
    column = embedding_array(vectors.astype(np.float16))
    rows = pa.table({"row": np.arange(len(vectors)), "vector": column})
    lance = import_lance()
    dataset = lance.write_dataset(rows, f"{folder}/{name}.lance")
    began = time.perf_counter()
    dataset = dataset.create_index("vector", metric="dot", **INDICES[name][0])
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in Path(f"{folder}/{name}.lance/_indices").rglob("*") if file.is_file())
    return dataset, seconds, size / len(vectors)


def search(dataset, query, refine, options):
    nearest = {"column": "vector", "q": query, "k": K, "metric": "dot", "refine_factor": refine, **options}
    return dataset.to_table(columns=["row"], nearest=nearest)["row"].to_numpy()


def main(folder):
    vectors, queries = read(folder)
    scores = queries @ vectors.T
    least = np.sort(scores, axis=1)[:, -K, None] - 1e-5
    recall = lambda found: 100 * float((np.take_along_axis(scores, found, 1) >= least).mean())  # noqa: E731
    kept = {name: recall(found) for name, found in formats(vectors, queries).items()}
    for name, value in kept.items():
        print(f"{name:>28}  {value:6.2f} %")
    with tempfile.TemporaryDirectory() as scratch:
        built = {name: indexed(name, vectors, scratch) for name in INDICES}
        found, took = {}, {}
        for _ in range(TURNS):
            for name, (dataset, _, _) in built.items():
                for refine in REFINE:
                    began = time.perf_counter()
                    rows = [search(dataset, query, refine, INDICES[name][1]) for query in queries]
                    took.setdefault((name, refine), []).append(1000 * (time.perf_counter() - began) / len(queries))
                    found[name, refine] = np.stack(rows)
    indices = []
    for (name, refine), rows in found.items():
        _, seconds, size = built[name]
        indices.append({"index": name, "refine": refine, "recall": recall(rows), "ms": median(took[name, refine])})
        print(f"{name:>10}, refine {refine!s:>4}: {recall(rows):6.2f} %, {indices[-1]['ms']:.2f} ms a query, ", end="")
        print(f"{size:.0f} bytes a vector, built in {seconds:.1f} s")
    sizes = {name: {"build_seconds": seconds, "bytes": size} for name, (_, seconds, size) in built.items()}
    ratios = {"bytes, HNSW_SQ over IVF_RQ": built["HNSW_SQ"][2] / built["IVF_RQ"][2]}
    result = {"rows": len(vectors), "dim": vectors.shape[1], "formats": kept, "indices": indices, "built": sizes}
    finish(result | {"ratios": ratios})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", required=True)
    main(parser.parse_args().embeddings)
