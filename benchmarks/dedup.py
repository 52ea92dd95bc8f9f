"""`raycase dedup` on captions with planted near-duplicates, beside what sentence-transformers has for them.

    python benchmarks/dedup.py --rows 20000 --planted 1000 --threshold 0.95

A planted row is a caption in lower case, without its last character and with "there is" before it. Recall: the share of
planted rows in one group with their caption. The peers, paraphrase mining and community detection, get the same
vectors, and pairs of the former become groups in the same way. Each takes its turn alone, in this process.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from sentence_transformers import util
from turns import captions, finish

import raycase
from raycase.explore.dedup import DedupFlags, dedup
from raycase.index.build import IndexFlags, build
from raycase.index.index import Index


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--planted", type=int, default=1000)
    parser.add_argument("--threshold", type=float, default=0.95)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    texts = captions(args.rows)
    draw = np.random.default_rng(args.seed)
    originals = draw.choice(len(texts), args.planted, replace=False)
    texts += [f"there is {texts[i].lower()[:-1]}" for i in originals]
    copies = np.arange(args.rows, len(texts))
    with tempfile.TemporaryDirectory() as folder:
        rows = {"id": np.arange(len(texts)), "text": texts}
        pq.write_table(pa.table(rows).take(draw.permutation(len(texts))), f"{folder}/texts.parquet")
        raycase.embed(f"{folder}/texts.parquet", f"{folder}/out", unconditional=True)
        build(IndexFlags(embeddings=(f"{folder}/out",), output=f"{folder}/i.lance"))
        began = time.perf_counter()
        result = dedup(DedupFlags(index=f"{folder}/i.lance", threshold=args.threshold, output=f"{folder}/groups"))
        seconds = {"raycase dedup": time.perf_counter() - began}
        found = pq.read_table(Path(folder, "groups")).sort_by("id")
        index = Index.open(f"{folder}/i.lance")
        ids = index.dataset.to_table(columns=["id"])["id"].to_numpy()
        vectors_ND = torch.from_numpy(index.vectors_at(None, np.arange(len(ids)))[np.argsort(ids)])
    groups = {"raycase dedup": found["group"].to_numpy()}

    began = time.perf_counter()
    pairs = util.paraphrase_mining_embeddings(vectors_ND)
    linked = np.array([(i, j) for score, i, j in pairs if score >= args.threshold], np.int64).reshape(-1, 2).T
    edges = coo_matrix((np.ones(linked.shape[1]), linked), shape=(len(texts),) * 2)
    groups["paraphrase mining"] = connected_components(edges, directed=False)[1]
    seconds["paraphrase mining"] = time.perf_counter() - began

    began = time.perf_counter()
    groups["community detection"] = np.arange(len(texts))
    for rows in util.community_detection(vectors_ND, threshold=args.threshold, min_community_size=2):
        groups["community detection"][rows] = min(rows)
    seconds["community detection"] = time.perf_counter() - began

    kept = {name: len(np.unique(each)) for name, each in groups.items()}
    recall = {name: float((each[copies] == each[originals]).mean()) for name, each in groups.items()}
    print(f"| {len(texts):,} rows, {args.planted:,} planted, threshold {args.threshold} | s | rows kept | recall |")
    print("|---|---|---|---|")
    for name in groups:
        print(f"| {name} | {seconds[name]:.1f} | {kept[name]:,} | {recall[name]:.3f} |")
    own = seconds["raycase dedup"]
    ratios = {f"{name} over raycase": seconds[name] / own for name in groups if name != "raycase dedup"}
    finish({"ratios": ratios, "seconds": seconds, "kept": kept, "recall": recall, "largest": result["largest"]})


if __name__ == "__main__":
    main()
