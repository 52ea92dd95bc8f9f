"""Long texts in chunks: does the right document, and the right place in it, come back?

    .venv/bin/python benchmarks/documents.py papers    # CSFCube: NDCG, by whole papers and by their best chunks
    .venv/bin/python benchmarks/documents.py captions  # documents of captions: the one that describes the same image

Late chunks (Günther et al., 2024, arXiv:2409.04701) pool the states that the encoder gives the whole text.
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace

import csfcube
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from turns import CAPTIONS, DATA

import raycase
from raycase.encoder.chunks import Chunking
from raycase.encoder.sources import load_tokenizer
from raycase.index.build import IndexJob, build
from raycase.index.index import Index
from raycase.io.vectors import l2_normalize

IMAGES_A_DOCUMENT, QUERIES = 20, 500


def late_chunks(model, text, spans, questions):
    """Unit vectors (chunks, conditions, D) from the states of the whole text; None for a chunk that was not read."""
    [words] = model.words([text])
    read = int(words.real.sum())
    offsets = load_tokenizer(model.config.encoder).tokenizer.encode(text, add_special_tokens=False).offsets[:read]
    found = []
    for start, end in spans:
        inside = torch.tensor([[start <= a and b <= end for a, b in offsets]])
        masked = replace(words, real=words.real & inside) if inside.any() and end <= offsets[-1][1] else None
        found.append(None if masked is None else l2_normalize(model.head.pool(masked, questions)[0].numpy()))
    return found


@torch.inference_mode()
def papers(tokens):
    """NDCG at 20 % of the dev queries: query papers whole, candidates whole or by their best chunk."""
    cube, model = csfcube.read_cube(str(DATA / "csfcube")), raycase.load()
    conditions = list(csfcube.CONDITIONS.values())
    needed = sorted({paper for (query, _), (pool, _) in cube.pools.items() for paper in (query, *pool)})
    began = time.perf_counter()
    whole = dict(
        zip(needed, l2_normalize(model.encode_grid([cube.papers[p] for p in needed], conditions)), strict=True)
    )
    results = {"papers": len(needed), "seconds whole": round(time.perf_counter() - began, 1)}
    questions = model.questions(conditions)
    for size in tokens:
        began = time.perf_counter()
        cut = {p: list(Chunking(tokens=size).cut(model.config.encoder, cube.papers[p])) for p in needed}
        texts = [cube.papers[p][a:b] for p in needed for a, b in cut[p]]
        vectors = l2_normalize(model.encode_grid(texts, conditions))
        results |= {f"chunks of {size}": len(texts), f"seconds {size}": round(time.perf_counter() - began, 1)}
        ends = np.cumsum([len(cut[p]) for p in needed])
        chunks = dict(zip(needed, np.split(vectors, ends[:-1]), strict=True))
        late = {}
        for paper in needed:
            of = late_chunks(model, cube.papers[paper], cut[paper], questions)
            late[paper] = np.stack([own if one is None else one for one, own in zip(of, chunks[paper], strict=True)])
        values = {
            "whole": [],
            "best chunk": [],
            "best late chunk": [],
            "whole + best chunk": [],
            "whole + best late": [],
        }
        for (query, facet), (pool, grades) in cube.pools.items():
            number = list(csfcube.CONDITIONS).index(facet)
            asked = whole[query][number]
            by_whole = np.array([whole[p][number] @ asked for p in pool])
            by_chunk, by_late = (np.array([(of[p][:, number] @ asked).max() for p in pool]) for of in (chunks, late))
            scores = (by_whole, by_chunk, by_late, by_whole + by_chunk, by_whole + by_late)
            for name, score in zip(values, scores, strict=True):
                ranked = grades[np.argsort(-score, kind="stable")]
                values[name].append(csfcube.ndcg_at(ranked, int(0.2 * len(ranked))))
        results |= {f"NDCG {size}: {name}": round(100 * float(np.mean(each)), 1) for name, each in values.items()}
    return results


def captions(tokens):
    """Documents of the first captions of 20 images each; the query is the second caption of one of these images."""
    table = pq.read_table(CAPTIONS, columns=["image", "text"]).to_pandas()
    pairs = table.groupby("image", sort=True)["text"].agg(list).tolist()
    random.Random(0).shuffle(pairs)
    pairs = pairs[: len(pairs) // IMAGES_A_DOCUMENT * IMAGES_A_DOCUMENT]
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
    parser.add_argument("what", choices=["papers", "captions"])
    parser.add_argument("--chunk", type=int, nargs="+", default=[40, 80])
    arguments = parser.parse_args()
    measured = {"papers": papers, "captions": captions}[arguments.what](arguments.chunk)
    print(json.dumps({"what": arguments.what} | measured))
