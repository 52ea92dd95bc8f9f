"""Search among the 155,070 captions under one condition: our index against FAISS and LanceDB.

    RAY_worker_niceness=0 .venv/bin/python -m benchmarks.speed.search --embeddings runs/captions

Vectors of MiniLM (384 dimensions, unit length, fp16), embedded by the main job if the folder has none yet. Queries are
sentences of C-STS validation under the same condition. Contenders take turns, each in a process of its own with all
cores; a turn is 100 single queries and 5 batches of 64, k = 10. Recall is against exact search, by score, for equal
texts have equal vectors. Build includes reading the vectors from where each contender takes them.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.turns import CAPTIONS, DATA, RAYCASE, ROOT, Contender, finish, median, parser_of, run, serve, take_turns

CONDITION = "color of the clothes"
K, SINGLE, BATCH, BATCHES = 10, 100, 64, 5
NAMES = {
    "exact": "ours, exact",
    "ivf-rq": "ours, IVF-RQ (default)",
    "faiss-flat": "FAISS flat",
    "faiss-ivf": "FAISS IVF-flat, 394 lists, 32 probed",
    "lancedb-flat": "LanceDB, exact",
    "lancedb-hnsw": "LanceDB, HNSW",
}
OURS = ("exact", "ivf-rq")
EF, REFINE = 100, 3


def ours(name, folder):
    from raycase.index.build import build
    from raycase.index.index import Index

    build(str(folder / f"{name}.lance"), [(folder / "embeddings").read_text()], vector_index=name)
    index = Index.open(str(folder / f"{name}.lance"))
    return lambda queries: index.nearest(queries, CONDITION, K)[1]


def faiss(name, folder):
    import faiss

    vectors = np.load(folder / "vectors.npy").astype(np.float32)
    index = faiss.IndexFlatIP(vectors.shape[1])
    if name == "faiss-ivf":
        index = faiss.IndexIVFFlat(index, vectors.shape[1], int(len(vectors) ** 0.5), faiss.METRIC_INNER_PRODUCT)
        index.train(vectors)
        index.nprobe = 32
    index.add(vectors)
    return lambda queries: index.search(queries, K)[1]


def lancedb(name, folder):
    import lancedb
    import lancedb.index
    import pyarrow as pa

    vectors = np.load(folder / "vectors.npy")
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    rows = pa.table({"id": np.arange(len(vectors)), "vector": column})
    table = lancedb.connect(str(folder / name)).create_table("captions", rows)
    if name == "lancedb-hnsw":
        table.create_index("vector", config=lancedb.index.HnswSq(distance_type="dot", num_partitions=1))

    def search(queries):
        asked = table.search(queries if len(queries) > 1 else queries[0]).distance_type("dot").limit(K)
        asked = asked.ef(EF).refine_factor(REFINE) if name == "lancedb-hnsw" else asked
        return asked.select(["id", "_distance"]).to_arrow()["id"].to_numpy().reshape(len(queries), K)

    return search


def contender(name, folder):
    folder = Path(folder)
    queries = np.load(folder / "queries.npy")
    began = time.perf_counter()
    search = (ours if name in OURS else faiss if name.startswith("faiss") else lancedb)(name, folder)
    built = time.perf_counter() - began
    np.save(folder / f"found-{name}.npy", np.concatenate([search(queries[i : i + 1]) for i in range(SINGLE)]))

    def turn():
        single = []
        for i in range(SINGLE):
            began = time.perf_counter()
            search(queries[i : i + 1])
            single.append(time.perf_counter() - began)
        began = time.perf_counter()
        for i in range(BATCHES):
            search(queries[i * BATCH : (i + 1) * BATCH])
        rate = BATCHES * BATCH / (time.perf_counter() - began)
        p50, p99 = np.percentile(single, [50, 99])
        return {"p50": 1000 * p50, "p99": 1000 * p99, "batch": rate, "build": built}

    serve(turn)


def prepare(embeddings, folder):
    """Vectors and queries for all; the seconds that a query takes to embed."""
    import pyarrow.dataset as ds

    import raycase
    from raycase.io.rated_pairs import read_rated
    from raycase.io.vectors import l2_normalize

    if not (embeddings / "manifest.json").exists():
        where = ("--input", CAPTIONS, "--output", embeddings)
        run(*RAYCASE, "embed", *where, "--model", "minilm", "--conditions", CONDITION)
    (folder / "embeddings").write_text(str(embeddings))
    column = ds.dataset(embeddings / "embeddings", format="parquet").to_table(columns=["embedding"])["embedding"]
    values = column.combine_chunks()
    vectors = l2_normalize(values.flatten().to_numpy().reshape(len(values), -1)).astype(np.float16)
    np.save(folder / "vectors.npy", vectors)
    rated = read_rated(str(DATA / "csts" / "validation.csv"), "--data")
    sentences = list(dict.fromkeys(rated.sentences1))[: BATCH * BATCHES]
    model = raycase.load("minilm")
    queries = l2_normalize(model.embed(sentences, CONDITION))
    np.save(folder / "queries.npy", queries)
    seconds = []
    for sentence in sentences[:100]:
        began = time.perf_counter()
        model.embed([sentence], CONDITION)
        seconds.append(time.perf_counter() - began)
    return vectors, queries, 1000 * median(seconds)


def cold(folder):
    """Seconds of the whole command, from a fresh process."""
    asked = ("--query", "Two girls in red dresses play soccer", "--condition", CONDITION)
    return run(*RAYCASE, "search", "--index", folder / "ivf-rq.lance", *asked).seconds


def main(embeddings, rounds):
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        vectors, queries, embed_ms = prepare(Path(embeddings).absolute(), folder)
        exact = queries[:SINGLE] @ vectors.astype(np.float32).T
        least = np.sort(exact, axis=1)[:, -K] - 1e-5

        def after(turn, answers):
            shown = {n: (round(t[-1]["p50"], 1), round(t[-1]["batch"])) for n, t in answers.items()}
            print(f"round {turn}: p50 in ms, batch queries/s {shown}", file=sys.stderr)

        module = "benchmarks.speed.search"
        running = {n: Contender(module, n, "--folder", folder, peer=n not in OURS) for n in NAMES}
        turns = take_turns(running, rounds, after)
        starts = [cold(folder) for _ in range(3)]
        figures = {}
        for name, label in NAMES.items():
            found = np.load(folder / f"found-{name}.npy").astype(np.int64)
            scores = np.take_along_axis(exact, found, axis=1)
            figures[name] = {key: median([t[key] for t in turns[name]]) for key in ("build", "p50", "p99", "batch")}
            figures[name]["recall"] = float((scores >= least[:, None]).mean())
            f = figures[name]
            print(
                f"{label:<40} build {f['build']:6.1f} s  p50 {f['p50']:6.1f} ms  p99 {f['p99']:6.1f} ms  "
                f"{f['batch']:7.0f} queries/s  recall {f['recall']:.3f}"
            )
    print(f"embedding one query {embed_ms:.1f} ms; `raycase search` from a fresh process {median(starts):.1f} s")
    ratios = {
        "exact batches over FAISS flat": figures["exact"]["batch"] / figures["faiss-flat"]["batch"],
        "exact query over FAISS flat": figures["faiss-flat"]["p50"] / figures["exact"]["p50"],
        "IVF-RQ query over LanceDB": figures["lancedb-hnsw"]["p50"] / figures["ivf-rq"]["p50"],
        "IVF-RQ query over FAISS IVF": figures["faiss-ivf"]["p50"] / figures["ivf-rq"]["p50"],
        "10 ms over IVF-RQ query": 10 / figures["ivf-rq"]["p50"],
        "10 s over a cold start": 10 / median(starts),
    }
    finish(ratios, figures=figures, embed_query_ms=embed_ms, cold_seconds=starts, rounds=rounds)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--embeddings", default=str(ROOT / "runs" / "captions"), help="output of the main job, kept")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.contender:
        contender(asked.contender, asked.folder)
    else:
        main(asked.embeddings, asked.rounds)
