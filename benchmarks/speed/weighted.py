"""Recall and time of searches under weighted conditions that are pooled from stored tokens, in two stages beside exact.

    python -m benchmarks.speed.weighted --index captions.lance [--candidates 520]

Questions are texts of the index (--seed), each under two to four conditions with random weights, of which some are
negative. Recall: the share of the ten best ids of an exact search that two stages find. --candidates: rows that are
pooled for a question without negative weights, for an index that is smaller than those that are searched in two stages.
"""

import random
import time

from benchmarks.turns import finish, median, parser_of
from raycase.index.index import AWAY, LEAST_POOLED, Index
from raycase.index.question import EFFORTS

CONDITIONS = ["color of the clothes", "number of people", "place", "type of sport", "animal", "weather", "mood", "age"]
WEIGHTS = [-1.0, -0.5, 0.5, 1.0, 2.0]
K = 10


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--index", required=True)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--candidates", type=int, default=LEAST_POOLED)
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    chance = random.Random(flags.seed)
    two_stages, exact = Index.open(flags.index), Index.open(flags.index)
    two_stages.metadata.exact_below = 1
    factor = flags.candidates / LEAST_POOLED
    rows = two_stages.dataset.count_rows()
    texts = two_stages.dataset.take(chance.sample(range(rows), flags.questions), columns=["text"])["text"].to_pylist()
    found = {"recall": [], "negative": [], "seconds": [], "exact_seconds": []}
    for text in texts:
        weights = {name: chance.choice(WEIGHTS) for name in chance.sample(CONDITIONS, chance.randint(2, 4))}
        began = time.perf_counter()
        best = two_stages.search(text, weights, K, factor=factor)["id"].to_pylist()
        half = time.perf_counter()
        wanted = exact.search(text, weights, K, **EFFORTS["exact"])["id"].to_pylist()
        found["seconds"].append(half - began)
        found["exact_seconds"].append(time.perf_counter() - half)
        recall = len(set(best) & set(wanted)) / K
        found["recall"].append(recall)
        if min(weights.values()) < 0:
            found["negative"].append(recall)
    seconds, exact_seconds = median(found["seconds"]), median(found["exact_seconds"])
    result = {
        "rows": rows,
        "candidates": [flags.candidates, AWAY * flags.candidates],
        "questions": len(texts),
        "recall": round(sum(found["recall"]) / len(texts), 4),
        "recall_with_negative_weights": round(sum(found["negative"]) / max(1, len(found["negative"])), 4),
        "least_recall": min(found["recall"]),
        "median_ms": round(1000 * seconds, 1),
        "median_ms_exact": round(1000 * exact_seconds, 1),
    }
    finish({"exact over two stages": exact_seconds / seconds}, **result)


if __name__ == "__main__":
    main()
