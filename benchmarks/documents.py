"""Long texts in chunks: does the right document, and the right place in it, come back?

    .venv/bin/python benchmarks/documents.py --most 1500 --chunk 40

Documents are the first captions of 20 images each; a query is the second caption of one of these images.
"""

import argparse
import json
import random
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq
from turns import CAPTIONS

import raycase
from raycase.index.build import IndexJob, build
from raycase.index.index import Index

IMAGES_A_DOCUMENT, QUERIES = 20, 500


def captions(tokens, most):
    table = pq.read_table(CAPTIONS, columns=["image", "text"]).to_pandas()
    pairs = table.groupby("image", sort=True)["text"].agg(list).tolist()
    random.Random(0).shuffle(pairs)
    pairs = pairs[: min(len(pairs) // IMAGES_A_DOCUMENT, most or len(pairs)) * IMAGES_A_DOCUMENT]
    groups = [pairs[i : i + IMAGES_A_DOCUMENT] for i in range(0, len(pairs), IMAGES_A_DOCUMENT)]
    texts = [" ".join(pair[0].strip() for pair in group) for group in groups]
    asked = random.Random(1).sample([(d, i) for d, group in enumerate(groups) for i in range(len(group))], QUERIES)
    queries = [groups[d][i][1] for d, i in asked]
    places = [texts[d].index(groups[d][i][0].strip()) for d, i in asked]
    results = {"documents": len(texts), "characters": sum(map(len, texts)), "queries": QUERIES}
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), f"{folder}/in.parquet")
        for size in (None, *tokens):
            output, began = f"{folder}/{size}", time.perf_counter()
            done = raycase.embed(f"{folder}/in.parquet", output, unconditional=True, chunk=size, ray=False)
            seconds = time.perf_counter() - began
            build(IndexJob(embeddings=(output,), output=f"{output}.lance"))
            index = Index.open(f"{output}.lance")
            index.search(queries[:1], unconditional=True)
            began = time.perf_counter()
            found = index.search(queries, unconditional=True, k=10, per=None if size is None else "document")
            searched, place, first, ten, spans = time.perf_counter() - began, "document" if size else "id", 0, 0, 0
            for row in found.to_pylist():
                right = row[place] == asked[row["query"]][0]
                first, ten = first + (right and row["rank"] == 1), ten + right
                spans += bool(size and right and row["rank"] == 1 and row["start"] <= places[row["query"]] < row["end"])
            results[str(size or "whole")] = {
                "rows": done["pairs"],
                "rows_truncated": done["rows_truncated"],
                "seconds": round(seconds, 1),
                "ms a query": round(1000 * searched / QUERIES, 1),
                "first": round(first / QUERIES, 3),
                "among ten": round(ten / QUERIES, 3),
                "first, and its span has the caption": round(spans / QUERIES, 3),
            }
            print(size, results[str(size or "whole")], flush=True)
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunk", type=int, nargs="+", default=[40, 80])
    parser.add_argument("--most", type=int, help="documents; default: all")
    arguments = parser.parse_args()
    print(json.dumps(captions(arguments.chunk, arguments.most)))
