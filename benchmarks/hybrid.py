"""Vectors, words and both: `raycase search` beside LanceDB on the same vectors and texts.

    python benchmarks/hybrid.py --rows 16000 --queries 300

Rows are captions, five of each image. A query is a caption; the other four of its image should be among its ten best.
LanceDB gets raycase's vectors, searches them exactly, and fuses both ranks by its own RRFReranker with the same k = 60.
Each way takes its turns alone, a query at a time, the query's vector among the work.
"""

import argparse
import tempfile
import time

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lancedb.rerankers import RRFReranker
from turns import captions, finish

import raycase
from raycase.index.build import IndexFlags, build
from raycase.index.index import Index
from raycase.index.text_index import RRF_K

K, OF_AN_IMAGE = 10, 5


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16_000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    texts = captions(args.rows)
    asked = np.random.default_rng(args.seed).choice(args.rows // OF_AN_IMAGE * OF_AN_IMAGE, args.queries, replace=False)
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": range(args.rows), "text": texts}), f"{folder}/texts.parquet")
        output = f"{folder}/out"
        raycase.embed(f"{folder}/texts.parquet", output, unconditional=True, keep_columns=("text",))
        build(IndexFlags(embeddings=(output,), output=f"{folder}/i.lance", text_index=True))
        index = Index.open(f"{folder}/i.lance")
        ids = index.dataset.to_table(columns=["id"])["id"].to_numpy()
        vectors = index.vectors_at(None, np.argsort(ids))
        arrays = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        rows = pa.table({"id": range(args.rows), "text": texts, "vector": arrays})
        table = lancedb.connect(f"{folder}/lancedb").create_table("captions", rows)
        table.create_fts_index("text", language="English", stem=True, remove_stop_words=False)
        reranker = RRFReranker(K=RRF_K)

        def of_lancedb(text, kind):
            vector = None if kind == "fts" else index.embed([text], None)[0]
            if kind == "hybrid":
                search = table.search(query_type="hybrid").vector(vector).text(text).rerank(reranker)
            else:
                search = table.search(text if vector is None else vector, query_type=kind)
            if vector is not None:
                search = search.distance_type("cosine")
            return search.limit(K + 1).to_arrow()["id"].to_pylist()

        def of_raycase(text, **options):
            return index.search(text, None, K + 1, unconditional=True, **options)["id"].to_pylist()

        ways = {
            "raycase, vectors": of_raycase,
            "LanceDB, vectors": lambda text: of_lancedb(text, "vector"),
            "LanceDB, words (BM25)": lambda text: of_lancedb(text, "fts"),
            "raycase --hybrid": lambda text: of_raycase(text, hybrid=True),
            "LanceDB, hybrid": lambda text: of_lancedb(text, "hybrid"),
        }
        seconds, recalls = {name: [] for name in ways}, {name: [] for name in ways}
        for i in asked.tolist():
            wanted = {i - i % OF_AN_IMAGE + j for j in range(OF_AN_IMAGE)} - {i}
            for name, find in ways.items():
                began = time.perf_counter()
                found = find(texts[i])
                seconds[name].append(time.perf_counter() - began)
                recalls[name].append(len(wanted & set([one for one in found if one != i][:K])) / len(wanted))
    for name in ways:
        print(f"{name:24} {100 * np.mean(recalls[name]):6.1f} {1000 * np.median(seconds[name]):8.1f} ms")
    ratio = np.median(seconds["LanceDB, hybrid"]) / np.median(seconds["raycase --hybrid"])
    result = {"rows": args.rows, "ratios": {"LanceDB's hybrid / raycase's, time": ratio}}
    result["recall"] = {name: round(float(np.mean(recalls[name])), 4) for name in ways}
    finish(result | {"median_ms": {name: round(1000 * float(np.median(seconds[name])), 1) for name in ways}})


if __name__ == "__main__":
    main()
