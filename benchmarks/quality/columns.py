"""What shows, without labels, how much a condition gains over the unconditional vector.

    python -m benchmarks.quality.columns --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json

Of each column of labelled texts, under its first wording: the gain, the share x 100 of the ten nearest texts with a
label of the same group minus the same without a condition; and what is known without labels: the mean weight of a
text's heaviest token, the share of the ten nearest that are the same without a condition, and how much the probability
that a text states the condition varies. Then Spearman's correlation of each with the gain.

Shapes: N texts, D dimensions.
"""

import numpy as np
from scipy.stats import spearmanr

import raycase
from benchmarks.turns import finish, parser_of
from raycase.io.inputs import find_input
from raycase.io.labelled_texts import labels_of, read_labelled
from raycase.io.vectors import l2_normalize

NEAREST = 10
FIGURES = ("gain", "heaviest", "same nearest", "stated varies")


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


def nearest(unit_ND):
    """The nearest others of each vector: (N, NEAREST)."""
    cosines_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(cosines_NN, -np.inf)
    return np.argsort(-cosines_NN, axis=1)[:, :NEAREST]


def same_group(unit_ND, column):
    """Share x 100 of the nearest with a label of the same group, among texts that have a label."""
    rows = [i for i, labels in enumerate(column.labels) if labels]
    groups = [column.coarse(column.labels[i]) for i in rows]
    near = nearest(unit_ND[rows])
    return 100 * np.mean([bool(groups[i] & groups[j]) for i in range(len(rows)) for j in near[i]])


def main():
    args = labelled_parser(__doc__).parse_args()
    model, columns = raycase.load(args.model), {}
    for name, table in tables_of(args):
        unconditional_ND = l2_normalize(model.embed(table.texts, None))
        vectors_NCD = model.encode_grid(table.texts, [each.conditions[0] for each in table.columns], normalize=True)
        for column, unit_ND in zip(table.columns, vectors_NCD.swapaxes(0, 1), strict=True):
            asked = [column.conditions[0]] * len(table.texts)
            weights = model.token_weights(model.config.prepare(table.texts, asked))
            both = zip(nearest(unit_ND), nearest(unconditional_ND), strict=True)
            columns[f"{name}, {column.name}"] = (
                same_group(unit_ND, column) - same_group(unconditional_ND, column),
                np.mean([of_text.max() for of_text in weights]),
                np.mean([len({*own} & {*other}) / NEAREST for own, other in both]),
                model.stated(table.texts, column.conditions[0]).std(),
            )
    print(f"| column | {' | '.join(FIGURES)} |\n|---|{'---|' * len(FIGURES)}")
    for name, values in sorted(columns.items(), key=lambda item: item[1][1]):
        print(f"| {name} | {values[0]:.1f} | {' | '.join(f'{value:.3f}' for value in values[1:])} |")
    gain_C, *others = np.array([*columns.values()]).T
    found = {figure: float(spearmanr(of, gain_C)[0]) for figure, of in zip(FIGURES[1:], others, strict=True)}
    finish(columns=len(columns), gain=float(gain_C.mean()), spearman=found)


if __name__ == "__main__":
    main()
