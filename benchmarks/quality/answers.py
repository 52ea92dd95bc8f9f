"""How well labels are learned from a few answers under a condition, beside unconditional vectors.

    python -m benchmarks.quality.answers --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json

Per column of labelled texts, by the functions of `raycase classify`, the mean over the columns with its 95 % interval
by the bootstrap over columns:

- zero-shot, few: macro F1 x 100 without answers, and with --shots of each label, on texts that have one label
- error: expected calibration error x 100 of the probabilities after 100 answers, of all columns together
- stated: AUC x 100 of the probability that a text has any label, after 50 answers of which some are "none"
- asked, held: rounds of asking, each for a tenth of the rows, until every row is answered or its label promised with a
  precision of 0.9: the share of the rows that were asked for, and the share of runs in which the promise held

Shapes: N texts, L labels, C columns; of the D numbers of a vector the first `dim` are under the condition.
"""

import warnings

import numpy as np

import raycase
from benchmarks.quality.columns import labelled_parser, tables_of
from benchmarks.turns import finish
from raycase.evaluation.metrics import auc
from raycase.explore.answered import learn
from raycase.explore.classify import join_vectors
from raycase.explore.labelling import Rows, Wanted, promise, rows_to_ask
from raycase.explore.promise import check_sample
from raycase.io.vectors import l2_normalize

LEAST = 4  # texts of a label; at most half of them are answered
RESAMPLES, BINS, ROUNDS, PRECISION = 10_000, 10, 40, 0.9
FIGURES = ("zero-shot", "few", "stated", "asked", "held")


def macro_f1(found_N, label_N, labels):
    """x 100; of the labels that some text has."""
    right = np.bincount(label_N[found_N == label_N], minlength=labels)
    there = np.bincount(label_N, minlength=labels)
    return 100 * (2 * right / (there + np.bincount(found_N, minlength=labels)))[there > 0].mean()


def few_shots(vectors_ND, class_N, labels_LD, dim, shots, draw):
    """Macro F1 without answers and with so many of each label, on the same texts."""
    frequent = [label for label in range(len(labels_LD)) if (class_N == label).sum() >= LEAST]
    rows = [draw.permutation(np.flatnonzero(class_N == label)) for label in frequent]
    rows = [np.split(of, [min(shots, len(of) // 2)]) for of in rows]
    (answered, label_A), (left, label_M) = (
        (np.concatenate([of[i] for of in rows]), np.repeat(np.arange(len(rows)), [len(of[i]) for of in rows]))
        for i in (0, 1)
    )
    learned = learn(vectors_ND[answered], label_A, labels_LD[frequent], dim)
    zero_M = (vectors_ND[left] @ labels_LD[frequent].T).argmax(1)
    few_M = learned.probabilities(vectors_ND[left]).argmax(1)
    return [macro_f1(found_M, label_M, len(rows)) for found_M in (zero_M, few_M)]


def after(count, vectors_ND, class_N, labels_LD, dim, draw):
    """After so many answers at random, of the other texts: whether the best label is right, its probability, whether
    the text has a label, and the probability of that; None where no answer or every answer is "none"."""
    answered, left = np.split(draw.permutation(len(class_N)), [count])
    there, none = np.unique(class_N[answered]), len(labels_LD)
    if len(there) < 2:
        return None
    place_of = np.full(none + 1, -1)
    place_of[there] = np.arange(len(there))
    learned = learn(vectors_ND[answered], place_of[class_N[answered]], labels_LD[there[there < none]], dim)
    of_each = learned.probabilities(vectors_ND[left])
    states = 1 - of_each[:, -1] if none in there else np.ones(len(left))
    return of_each.argmax(1) == place_of[class_N[left]], of_each.max(1), class_N[left] < none, states


def rounds(vectors_ND, class_N, labels_LD, dim, texts, draw):
    """The share of the rows asked for until none is open, and whether the promise held."""
    rows_N, labels = len(class_N), len(labels_LD)
    answer_N, drawn_N, order_N = np.full(rows_N, -1), np.zeros(rows_N, bool), draw.permutation(rows_N)
    looks = 0
    for _ in range(ROUNDS):
        checked_N = check_sample(order_N, drawn_N, (answer_N >= 0) & ~drawn_N)
        learned_N = (answer_N >= 0) & ~checked_N
        of_each = learn(vectors_ND[learned_N], answer_N[learned_N], labels_LD, dim).probabilities(vectors_ND)
        best_N, share_N = of_each.argmax(1), of_each.max(1)
        rows = Rows(order=order_N, answer=answer_N, checked=checked_N, best=best_N, share=share_N)
        promised = promise(rows, Wanted(precision=PRECISION), looks + 1, labels, of_each.shape[1])
        looks, given_N = promised.looks, promised.rows & (answer_N < 0)
        asked = rows_to_ask(
            rows, promised, max(20, rows_N // 10), vectors_ND.__getitem__, lambda at: [texts[i] for i in at]
        )
        if not asked[0] and not (~given_N & (answer_N < 0)).sum() > len(asked[1]):
            break
        for picked, at_random in zip(asked, (True, False), strict=True):
            answer_N[picked], drawn_N[picked] = class_N[picked], at_random
    wrong = (rows.best != class_N)[promised.rows].sum()
    return 1 - given_N.mean(), wrong <= (1 - PRECISION) * promised.rows.sum() + 1e-9


def figures_of(vectors_ND, class_N, labels_LD, dim, texts, args, sure):
    """FIGURES of a column, NaN for one that it has not; what the error is computed of goes into `sure`."""
    draw, one_N = np.random.default_rng(args.seed), class_N < len(labels_LD)
    found = [*few_shots(vectors_ND[one_N], class_N[one_N], labels_LD, dim, args.shots, draw), np.nan]
    if len(class_N) > 120 and (made := after(100, vectors_ND, class_N, labels_LD, dim, draw)):
        sure.append(made[:2])
    if len(class_N) > 70 and (made := after(50, vectors_ND, class_N, labels_LD, dim, draw)):
        _, _, stated_M, states_M = made
        if len({*stated_M}) == 2 and states_M.min() < 1:
            found[2] = 100 * auc(states_M, stated_M)
    runs = [
        rounds(vectors_ND, class_N, labels_LD, dim, texts, np.random.default_rng(seed)) for seed in range(args.runs)
    ]
    return [*found, *(100 * np.mean(runs, 0) if runs else [np.nan] * 2)]


def calibration_error(right_M, share_M):
    """x 100, over bins of equal width."""
    bin_M = np.minimum((share_M * BINS).astype(int), BINS - 1)
    return 100 * np.abs(np.bincount(bin_M, share_M) - np.bincount(bin_M, right_M)).sum() / len(share_M)


def main():
    parser = labelled_parser(__doc__)
    parser.add_argument("--shots", type=int, default=8, help="answers of each label")
    parser.add_argument("--runs", type=int, default=0, help="runs of rounds of each column")
    parser.add_argument("--most-rows", type=int, default=2000, help="of a table, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, draw = raycase.load(args.model), np.random.default_rng(args.seed)
    warnings.filterwarnings("ignore", module="sklearn")
    ways, names = {"unconditional": ([], []), "condition": ([], [])}, []
    for name, table in tables_of(args):
        if len(table) > args.most_rows:
            table = table.take(np.sort(draw.choice(len(table), args.most_rows, replace=False)))
        plain_ND = l2_normalize(model.embed(table.texts, None))
        vectors_NCD = model.encode_grid(table.texts, [column.conditions[0] for column in table.columns])
        for column, vectors_ND in zip(table.columns, vectors_NCD.swapaxes(0, 1), strict=True):
            labels = sorted(frozenset().union(*column.labels))
            class_N = np.array([len(of) and labels.index(min(of)) - len(labels) for of in column.labels]) + len(labels)
            kept = [i for i, of in enumerate(column.labels) if len(of) < 2]
            if (np.bincount(class_N[kept], minlength=1)[: len(labels)] >= LEAST).sum() < 2:
                continue
            names.append(f"{name}, {column.name}")
            words, texts = [label.replace("_", " ") for label in labels], [table.texts[i] for i in kept]
            for way, (found, sure) in ways.items():
                labels_LD, of_way_ND = l2_normalize(model.embed(words, None)), plain_ND
                dim = labels_LD.shape[1]
                if way == "condition":  # joined with the unconditional one
                    under_LD = l2_normalize(model.embed_phrases(words, column.conditions[0]))
                    dim, labels_LD = under_LD.shape[1], join_vectors(under_LD, labels_LD)
                    of_way_ND = join_vectors(l2_normalize(vectors_ND), plain_ND)
                found.append(figures_of(of_way_ND[kept], class_N[kept], labels_LD, dim, texts, args, sure))
    picked = np.random.default_rng(args.seed).integers(len(names), size=(RESAMPLES, len(names)))
    print(f"| column | {' | '.join(f'{way}, {figure}' for way in ways for figure in FIGURES)} |")
    print(f"|---|{'---|' * len(ways) * len(FIGURES)}")
    for row, name in enumerate(names):
        print(f"| {name} | {' | '.join(f'{value:.1f}' for found, _ in ways.values() for value in found[row])} |")
    figures = {}
    for way, (found, sure) in ways.items():
        for figure, values_C in zip(FIGURES if args.runs else FIGURES[:3], np.array(found).T, strict=False):
            low, high = np.nanpercentile(np.nanmean(values_C[picked], 1), [2.5, 97.5])
            print(f"{way}, {figure}: {np.nanmean(values_C):.1f} [{low:.1f}, {high:.1f}]")
            figures[f"{way}, {figure}"] = float(np.nanmean(values_C))
        if sure:
            figures[f"{way}, error"] = calibration_error(*map(np.concatenate, zip(*sure, strict=True)))
            print(f"{way}, error: {figures[f'{way}, error']:.1f}")
    finish(columns=len(names), seed=args.seed, figures=figures)


if __name__ == "__main__":
    main()
