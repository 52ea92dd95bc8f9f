"""What teaching a condition by answers gains, beside the condition by its words and the unconditional vector.

    python -m benchmarks.quality.teach --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json --answers 50

Of each column of labelled texts, under its first wording: so many rows are drawn, of which those with one label are the
answers; on the other rows with one label, the share x 100 of the ten nearest with the same label, and macro F1 x 100 of
logistic regression on the answers. By `model.teach` as it is: where it sees no gain, the condition keeps its words.

Shapes: N texts, D dimensions.
"""

import time
import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import raycase
from benchmarks.quality.columns import labelled_parser, nearest, tables_of
from benchmarks.turns import finish
from raycase.io.vectors import l2_normalize

WAYS = ("unconditional", "named", "taught")


def judged(unit_ND, answered, left, label_N):
    """The share of the nearest among the rows that are left, and macro F1."""
    label_M = label_N[left]
    several_M = (label_M[:, None] == label_M).sum(1) > 1
    share = 100 * (label_M[nearest(unit_ND[left])] == label_M[:, None]).mean(1)[several_M].mean()
    found_M = LogisticRegression(C=10).fit(unit_ND[answered], label_N[answered]).predict(unit_ND[left])
    return share, 100 * f1_score(label_M, found_M, average="macro", labels=np.unique(label_M), zero_division=0)


def main():
    parser = labelled_parser(__doc__)
    parser.add_argument("--answers", type=int, nargs="+", default=[50])
    parser.add_argument("--most-rows", type=int, default=1500, help="of a table, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, draw, found = raycase.load(args.model), np.random.default_rng(args.seed), {}
    warnings.filterwarnings("ignore", module="sklearn")
    for name, table in tables_of(args):
        if len(table) > args.most_rows:
            table = table.take(np.sort(draw.choice(len(table), args.most_rows, replace=False)))
        unconditional_ND = l2_normalize(model.embed(table.texts, None))
        for column in table.columns:
            label_N = np.array([next(iter(labels)) if len(labels) == 1 else "" for labels in column.labels])
            for count in args.answers:
                drawn = draw.permutation(len(label_N))[:count]
                answered = drawn[label_N[drawn] != ""]
                left = np.setdiff1d(np.flatnonzero(label_N != ""), answered)
                if count > len(label_N) // 2 or (np.unique(label_N[answered], return_counts=True)[1] > 1).sum() < 2:
                    continue
                began, texts = time.perf_counter(), [table.texts[i] for i in answered]
                taught = model.teach(texts, label_N[answered].tolist(), column.conditions[0])
                seconds = time.perf_counter() - began
                vectors = [l2_normalize(model.encode(table.texts, each)) for each in (column.conditions[0], taught)]
                ways = [judged(each, answered, left, label_N) for each in (unconditional_ND, *vectors)]
                found.setdefault(count, []).append([*np.concatenate(ways), seconds])
                print(f"{name}, {column.name}, {count}: {np.round(ways, 1).tolist()}", flush=True)
    figures = {}
    for count, rows in found.items():
        share_RW, f1_RW, seconds_R = np.array(rows)[:, 0:6:2], np.array(rows)[:, 1:6:2], np.array(rows)[:, 6]
        below = [float((of[:, 2] < of[:, 1] - 1).mean()) for of in (share_RW, f1_RW)]
        means = {way: [float(share_RW[:, i].mean()), float(f1_RW[:, i].mean())] for i, way in enumerate(WAYS)}
        figures[count] = means | {"below": below, "columns": len(rows), "seconds": float(np.median(seconds_R))}
        print(f"{count}: {figures[count]}")
    finish(seed=args.seed, figures=figures)


if __name__ == "__main__":
    main()
