"""What shows whether a text states a condition: the model, its neighbours, or labels of the same column.

    python -m benchmarks.quality.stated --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json

AUC x 100, the mean over columns that leave some texts out, in three ways: the probability of `model.states`; how near
the five nearest vectors under the condition are; and ridge regression on the vectors under the condition, trained on
four fifths of the column's texts and asked for the other fifth.

Shapes: N texts, D dimensions.
"""

import numpy as np

import raycase
from benchmarks.turns import finish, parser_of
from raycase.evaluation.metrics import auc
from raycase.io.inputs import find_input
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.vectors import l2_normalize

NEAREST, PARTS, RIDGE = 5, 5, 1.0  # RIDGE: times the mean squared length of the centred vectors


def labelled_parser(doc):
    """The flags of a model and labelled texts."""
    parser = parser_of(doc)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--labels", nargs="*", default=())
    return parser


def tables_of(args):
    """(name, labelled texts) of each file."""
    files = [file.uri for file in find_input(args.data, "--data")]
    for uri, labels in zip(files, labels_of(files, tuple(args.labels)), strict=True):
        yield uri.rpartition("/")[2].removesuffix(".csv"), read_labelled(uri, labels, "--data")


def nearness(unit_ND):
    """Mean cosine of each vector's nearest others: (N,)."""
    cosines_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(cosines_NN, -np.inf)
    return np.sort(cosines_NN, axis=1)[:, -NEAREST:].mean(1)


def by_labels(unit_ND, stated_N):
    """AUC x 100 of ridge regression, the mean over the parts that were left out."""
    part_N = np.arange(len(stated_N)) % PARTS
    found = []
    for part in range(PARTS):
        train, left = part_N != part, part_N == part
        if len(set(stated_N[left])) < 2:
            continue
        mean_D = unit_ND[train].mean(0)
        centred_nD = unit_ND[train] - mean_D
        gram_nn = centred_nD @ centred_nD.T
        gram_nn += RIDGE * np.trace(gram_nn) / len(gram_nn) * np.eye(len(gram_nn))
        weights_D = centred_nD.T @ np.linalg.solve(gram_nn, stated_N[train] - stated_N[train].mean())
        found.append(100 * auc((unit_ND[left] - mean_D) @ weights_D, stated_N[left]))
    return np.mean(found)


def main():
    args = labelled_parser(__doc__).parse_args()
    model = raycase.load(args.model)
    columns = {}
    for name, table in tables_of(args):
        judged = [column for column in table.columns if column.said is not None]
        if not judged:
            continue
        vectors_NCD = model.encode_grid(table.texts, [column.conditions[0] for column in judged])
        asked = [column.conditions[0] for column in judged for _ in table.texts]
        states_CN = np.split(model.stated([*table.texts] * len(judged), asked), len(judged))
        unit_CND = l2_normalize(vectors_NCD).swapaxes(0, 1)
        for column, unit_ND, states_N in zip(judged, unit_CND, states_CN, strict=True):
            stated_N = np.array(column.said)
            columns[f"{name}: {column.name}"] = (
                100 * auc(states_N, stated_N),
                100 * auc(nearness(unit_ND), stated_N),
                by_labels(unit_ND, stated_N.astype(np.float64)),
            )
    print("| column | states | nearest | labels of the column |\n|---|---|---|---|")
    for name, values in sorted(columns.items(), key=lambda item: -item[1][0]):
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    means = np.mean(list(columns.values()), axis=0)
    figures = dict(zip(("states", "nearest", "labels"), means.tolist(), strict=True))
    finish(columns=len(columns), auc=figures)


if __name__ == "__main__":
    main()
