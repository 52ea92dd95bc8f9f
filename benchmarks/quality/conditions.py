"""Where models err on rated pairs: under conditions that training seldom has, and in the order of two conditions.

    python -m benchmarks.quality.conditions --model minilm-conditional-v3 minilm --data csts/validation.csv \\
        --train csts/train.csv --output runs/conditions

Spearman x 100 by how many rows of --train have the pair's condition, label -1 too, and how often, in percent, a model
puts the same two sentences under two conditions in the order of their ratings (a tie counts half). Conditions compare
as written, stripped and case-folded; intervals are those of the bootstrap over sentence pairs.

Shapes: N rated pairs, M comparisons.
"""

from collections import Counter
from itertools import combinations

import numpy as np

from benchmarks.quality.reports import job_of, models_of, report_parser
from benchmarks.turns import finish
from raycase.evaluation.metrics import estimate, mean_of
from raycase.evaluation.report import interval, table
from raycase.evaluation.tasks import csts
from raycase.io.rated_pairs import NOT_APPLICABLE, read_rated

METRICS = ("spearman", "spearman_rated")
TIMES = ((0, 0), (1, 3), (4, 20), (21, 100), (101, np.inf))  # rows of the training data: least and most of a group


def folded(texts):
    """Texts stripped and case-folded, as they are compared with those of a training file."""
    return [text.strip().casefold() for text in texts]


def comparisons(rated):
    """The rows of the same two sentences under two conditions, the higher rating first: (M, 2)."""
    keys, ratings_N = folded(rated.conditions), rated.ratings
    rows_of = {}
    for row, group in enumerate(rated.groups.tolist()):
        rows_of.setdefault(group, []).append(row)
    found = [
        (a, b) if ratings_N[a] > ratings_N[b] else (b, a)
        for rows in rows_of.values()
        for a, b in combinations(rows, 2)
        if keys[a] != keys[b] and ratings_N[a] != ratings_N[b]
    ]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def figures_of(scores_N, rated, times_N, **bootstrap):
    """A model's correlations by the groups of `TIMES`, and its share in the right order, each with its interval."""
    by_times = []
    for least, most in TIMES:
        inside_N = (times_N >= least) & (times_N <= most)
        some = {"groups_N": rated.groups[inside_N], **bootstrap}
        pairs = (scores_N[inside_N], rated.ratings[inside_N])
        figures = {name: estimate(csts.CORRELATIONS[name], *pairs, **some) for name in METRICS}
        by_times.append({"least": least, "pairs": int(inside_N.sum()), **figures})
    order = {}
    rows_M2 = comparisons(rated)
    rated_M = (rated.ratings[rows_M2] != NOT_APPLICABLE).all(1)
    for name, rows_m2 in (("all", rows_M2), ("rated", rows_M2[rated_M])):
        right_m = (np.sign(scores_N[rows_m2[:, 0]] - scores_N[rows_m2[:, 1]]) + 1) / 2
        order[name] = estimate(mean_of, right_m, right_m, groups_N=rated.groups[rows_m2[:, 0]], **bootstrap)
    return {"by_times": by_times, "order": order}


def main(arguments):
    """Measure and print."""
    job = job_of(arguments)
    rated, train = read_rated(job.data, "--data"), read_rated(arguments.train, "--train")
    counts = Counter(folded(train.conditions))
    times_N = np.array([counts[key] for key in folded(rated.conditions)])
    found = {}
    for model in models_of(job):
        scores_N = model.scores(rated.sentences1, rated.sentences2, rated.conditions)
        found[model.name] = of = figures_of(scores_N, rated, times_N, resamples=job.resamples, seed=job.seed)
        rows = [
            [f"{least} to {most:g}", f"{line['pairs']:,}", *(interval(line[name]) for name in METRICS)]
            for (least, most), line in zip(TIMES, of["by_times"], strict=True)
        ]
        print(table([f"{model.name}: rows in training", "pairs", "Spearman", "Spearman without -1"], rows))
        print(f"right order {interval(of['order']['all'])}, without label -1 {interval(of['order']['rated'])}\n")
    finish(models=found)


if __name__ == "__main__":
    parser = report_parser(__doc__)
    parser.add_argument("--train", required=True, help="rated pairs whose conditions are counted")
    main(parser.parse_args())
