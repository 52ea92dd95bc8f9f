"""Long texts in chunks: does the right document, and the right place in it, come back?

    python -m benchmarks.quality.documents --documents 1500 --chunk 40
    python -m benchmarks.quality.documents --documents 20000 --chunk 40 --no-whole

Documents are the captions of 20 images each; a query is the fifth caption of an image. An image is in several documents
where there are more than its captions fill once: each of these is right, with another of the first four captions.
"""

import random
import tempfile
import time

import pyarrow as pa
import pyarrow.parquet as pq

import raycase
from benchmarks.turns import CAPTIONS, finish, parser_of
from raycase.index.build import build
from raycase.index.index import Index

IMAGES_A_DOCUMENT, QUERIES = 20, 500
QUERY = 4  # which caption of an image asks for the others


def found_of(tokens, count, late):
    table = pq.read_table(CAPTIONS, columns=["image", "text"]).to_pandas()
    images = [of for of in table.groupby("image", sort=True)["text"].agg(list) if len(of) > QUERY]
    draw, groups = random.Random(0), []  # of a document: (image, which caption)
    while len(groups) < count:
        order, turn = draw.sample(range(len(images)), len(images)), len(groups) * IMAGES_A_DOCUMENT // len(images)
        groups += [
            [(image, turn % QUERY) for image in order[i : i + IMAGES_A_DOCUMENT]]
            for i in range(0, len(order) - IMAGES_A_DOCUMENT + 1, IMAGES_A_DOCUMENT)
        ]
    groups = groups[:count]
    texts = [" ".join(images[image][which].strip() for image, which in group) for group in groups]
    right = {}  # image -> document -> where its caption begins
    for document, group in enumerate(groups):
        for image, which in group:
            right.setdefault(image, {})[document] = texts[document].index(images[image][which].strip())
    asked = random.Random(1).sample(sorted(right), QUERIES)
    queries = [images[image][QUERY] for image in asked]
    results = {
        "documents": len(texts),
        "characters": sum(map(len, texts)),
        "queries": QUERIES,
        "right documents of a query": round(sum(map(len, right.values())) / len(right), 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), f"{folder}/in.parquet")
        for size in tokens:
            output, began = f"{folder}/{size}", time.perf_counter()
            how = {"chunk": size, "late_chunking": late and size is not None}
            done = raycase.embed(f"{folder}/in.parquet", output, unconditional=True, ray=False, **how)
            seconds = time.perf_counter() - began
            build(f"{output}.lance", [output])
            index = Index.open(f"{output}.lance")
            index.search(queries[:1], unconditional=True)
            began = time.perf_counter()
            found = index.search(queries, unconditional=True, k=10, per=None if size is None else "document")
            searched, place, first, spans = time.perf_counter() - began, "document" if size else "id", 0, 0
            hit = set()
            for row in found.to_pylist():
                at = right[asked[row["query"]]].get(row[place])
                if at is not None:
                    hit.add(row["query"])
                    first += row["rank"] == 1
                    spans += bool(size and row["rank"] == 1 and row["start"] <= at < row["end"])
            results[str(size or "whole")] = {
                "rows": done["pairs"],
                "rows_truncated": done["rows_truncated"],
                "seconds": round(seconds, 1),
                "ms a query": round(1000 * searched / QUERIES, 1),
                "first": round(first / QUERIES, 3),
                "among ten": round(len(hit) / QUERIES, 3),
                "first, and its span has the caption": round(spans / QUERIES, 3),
            }
            print(size, results[str(size or "whole")], flush=True)
    return results


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--chunk", type=int, nargs="+", default=[40, 80])
    parser.add_argument("--documents", type=int, default=1500)
    parser.add_argument("--no-whole", action="store_true", help="do not embed whole documents beside")
    parser.add_argument("--late-chunking", action="store_true")
    arguments = parser.parse_args()
    sizes = [None] * (not arguments.no_whole) + arguments.chunk
    finish(found=found_of(sizes, arguments.documents, arguments.late_chunking))
