"""Chunks embedded apart, and from the states of their document (late chunking): which finds more?

    .venv/bin/python benchmarks/late_chunking.py --model minilm-conditional-v2 --chunk 64

The documents are the abstracts of CSFCube's papers without their titles; a query is a title, and a document ranks by
its best chunk. CSFCube's judgements are ranked, too: each query's whole text beside the best chunk of each candidate,
under the condition of the facet and without one.
"""

import argparse
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from csfcube import CONDITIONS, MEASURES, rank_pools, read_cube
from turns import finish

import raycase
from raycase.io.reader import read_files
from raycase.io.schema import embedding_numbers
from raycase.io.vectors import l2_normalize

DATA = "../shared/data/csfcube"
WAYS = {"whole": {}, "chunks apart": {}, "late chunks": {"late_chunking": True}}


def embed(texts, way, args, conditions=None):
    """Unit vectors of each text's chunks, (K, D), by condition (None: without), and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), f"{folder}/in.parquet")
        asked = {"conditions": conditions} if conditions else {"unconditional": True}
        chunk = None if way == "whole" else args.chunk
        began = time.perf_counter()
        options = {"model": args.model, "dtype": "float32", "keep_columns": (), "ray": False}
        raycase.embed(f"{folder}/in.parquet", f"{folder}/out", chunk=chunk, **WAYS[way], **asked, **options)
        seconds = time.perf_counter() - began
        table = pq.read_table(f"{folder}/out/embeddings")
    vectors, of = (
        l2_normalize(embedding_numbers(table["embedding"])),
        np.array(table["id" if chunk is None else "document"]),
    )
    under = np.array(table["condition"].to_pylist(), dtype=object)
    found = {}
    for condition in conditions or [None]:
        rows = np.flatnonzero(under == condition)
        rows = rows[np.argsort(of[rows].astype(int), kind="stable")]
        found[condition] = np.split(
            vectors[rows], np.cumsum(np.bincount(of[rows].astype(int), minlength=len(texts)))[:-1]
        )
    return found, seconds


def by_title(papers, args):
    """How often a title finds its own abstract."""
    asked = np.concatenate(embed([title for title, _ in papers], "whole", args)[0][None])
    found = {}
    for way in WAYS:
        chunks, seconds = embed([text for _, text in papers], way, args)
        starts = np.cumsum([0, *map(len, chunks[None])])[:-1]
        scores_NN = np.maximum.reduceat(asked @ np.concatenate(chunks[None]).T, starts, axis=1)
        rank_N = (scores_NN > np.diag(scores_NN)[:, None]).sum(1)
        figures = {"first": (rank_N < 1).mean(), "among ten": (rank_N < 10).mean(), "mrr": (1 / (1 + rank_N)).mean()}
        found[way] = {name: round(100 * float(value), 1) for name, value in figures.items()}
        found[way] |= {"rows": sum(map(len, chunks[None])), "seconds": round(seconds, 1), "ranks": rank_N}
        print(way, {name: value for name, value in found[way].items() if name != "ranks"}, flush=True)
    apart_N, late_N = (found[way]["ranks"] for way in ("chunks apart", "late chunks"))
    better, worse = (late_N < apart_N).sum(), (late_N > apart_N).sum()
    print(f"late chunks rank the right document better for {better} titles, worse for {worse}")
    return {way: {name: value for name, value in of.items() if name != "ranks"} for way, of in found.items()}


def by_judgement(cube, args):
    """CSFCube's measures x 100, without conditions and under those of the facets."""
    pairs = cube.pairs()
    of, papers = list(pairs), list(dict.fromkeys(paper for paper, _ in pairs))
    texts, row = [cube.papers[paper] for paper in papers], {paper: i for i, paper in enumerate(papers)}
    found = {}
    for conditions in (None, CONDITIONS):
        names = tuple(conditions.values()) if conditions else None
        whole = embed(texts, "whole", args, names)[0]
        for way in WAYS:
            chunks = whole if way == "whole" else embed(texts, way, args, names)[0]

            def score(query, pool, conditions=conditions, chunks=chunks, whole=whole):
                paper, facet = of[query]
                under = conditions and conditions[facet]
                asked = whole[under][row[paper]][0]
                return np.array([(chunks[under][row[of[candidate][0]]] @ asked).max() for candidate in pool])

            name = f"{way}, {'facet' if conditions else 'unconditional'}"
            figures = 100 * rank_pools(cube, pairs, score).mean(0)
            found[name] = dict(zip(MEASURES, figures.round(1).tolist(), strict=True))
            print(name, found[name], flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--chunk", type=int, default=64)
    parser.add_argument("--most", type=int, help="papers with their titles; default: all")
    args = parser.parse_args()
    papers = []
    for _, columns in read_files(f"{DATA}/corpus.jsonl", ("title", "sentences"), "--data"):
        texts = (" ".join(str(s["text"]) for s in sentences) for sentences in columns["sentences"])
        papers += [(str(t), text) for t, text in zip(columns["title"], texts, strict=True) if text.strip()]
    titles = by_title(papers[: args.most], args)
    finish({"ratios": {}, "titles": titles, "judged": by_judgement(read_cube(DATA), args)})


if __name__ == "__main__":
    main()
