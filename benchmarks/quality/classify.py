"""How well labels are told under a condition, without examples and with some, beside unconditional vectors.

    python -m benchmarks.quality.classify --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json

Macro F1 x 100, the mean over the columns of labelled texts with its 95 % interval by the bootstrap over columns. The
functions of `raycase classify` label the texts that have one label, under the first wording of the column's condition:
by labels as phrases, or averaged with examples. The unconditional one is the same procedure with the unconditional
vectors of the same encoder. All four are asked for the same texts, from which the examples are left out.

Shapes: N texts, L labels, C columns.
"""

import numpy as np

import raycase
from benchmarks.quality.stated import labelled_parser, tables_of
from benchmarks.turns import finish
from raycase.explore.classify import label_vectors, nearest_labels
from raycase.io.vectors import l2_normalize

LEAST = 4  # texts of a label; at most half of them are examples
RESAMPLES = 10_000
WAYS = ("unconditional", "condition", "unconditional, examples", "condition, examples")


def macro_f1(found_N, label_N, labels):
    """x 100; of the labels that some text has."""
    right = np.bincount(label_N[found_N == label_N], minlength=labels)
    there = np.bincount(label_N, minlength=labels)
    return 100 * (2 * right / (there + np.bincount(found_N, minlength=labels)))[there > 0].mean()


def figures_of(model, column, texts, plain_ND, under_ND, shots, draw):
    """The macro F1 of each of WAYS; None for a column without two labels that are frequent enough."""
    one_N = np.array([next(iter(labels)) if len(labels) == 1 else "" for labels in column.labels])
    names, counts = np.unique(one_N[one_N != ""], return_counts=True)
    names = names[counts >= LEAST].tolist()
    if len(names) < 2:
        return None
    rows = [draw.permutation(np.flatnonzero(one_N == name)) for name in names]
    rows = [np.split(of, [min(shots, len(of) // 2)]) for of in rows]
    examples = {name.replace("_", " "): [texts[i] for i in own] for name, (own, _) in zip(names, rows, strict=True)}
    left_n = np.concatenate([asked for _, asked in rows])
    label_n = np.repeat(np.arange(len(names)), [len(asked) for _, asked in rows])

    place = {text: i for i, text in enumerate(texts)}

    def vectors_of(texts_ND, condition):
        """As `Index.embed`; texts of the table have their vectors."""

        def embed(sentences, _, named, *, phrases=False):
            if named == "--examples":
                return texts_ND[[place[text] for text in sentences]]
            return l2_normalize(
                model.embed_phrases(sentences, condition) if condition else model.embed(sentences, None)
            )

        return embed

    found = []
    for given in (None, examples):
        for vectors_ND, condition in ((plain_ND, None), (under_ND, column.conditions[0])):
            labels_LD = label_vectors(vectors_of(vectors_ND, condition), [*examples], condition, given)
            found.append(macro_f1(nearest_labels(vectors_ND[left_n], labels_LD)[0], label_n, len(names)))
    return found


def main():
    parser = labelled_parser(__doc__)
    parser.add_argument("--shots", type=int, default=8, help="examples of each label")
    parser.add_argument("--most-rows", type=int, default=2000, help="of a table, drawn at random")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    model, draw = raycase.load(args.model), np.random.default_rng(args.seed)
    columns = {}
    for name, table in tables_of(args):
        if len(table) > args.most_rows:
            table = table.take(np.sort(draw.choice(len(table), args.most_rows, replace=False)))
        plain_ND = l2_normalize(model.embed(table.texts, None))
        vectors_NCD = model.encode_grid(table.texts, [column.conditions[0] for column in table.columns])
        for column, vectors_ND in zip(table.columns, vectors_NCD.swapaxes(0, 1), strict=True):
            found = figures_of(model, column, table.texts, plain_ND, l2_normalize(vectors_ND), args.shots, draw)
            if found:
                columns[f"{name}, {column.name}"] = found
    f1_CW = np.array([*columns.values()])
    picked = np.random.default_rng(args.seed).integers(len(f1_CW), size=(RESAMPLES, len(f1_CW)))

    def with_interval(values_C):
        low, high = np.percentile(values_C[picked].mean(1), [2.5, 97.5])
        return f"{values_C.mean():.1f} [{low:.1f}, {high:.1f}]"

    print(f"| column | {' | '.join(WAYS)} |\n|---|---|---|---|---|")
    for name, values in sorted(columns.items(), key=lambda item: item[1][0] - item[1][1]):
        print(f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |")
    print(f"| mean of {len(f1_CW)} columns | {' | '.join(map(with_interval, f1_CW.T))} |")
    for kind, plain in (("without examples", 0), ("with examples", 2)):
        print(f"{kind}, minus unconditional: {with_interval(f1_CW[:, plain + 1] - f1_CW[:, plain])}")
    means = f1_CW.mean(0).tolist()
    ratios = {"without examples": means[1] / means[0], "with examples": means[3] / means[2]}
    finish(ratios, columns=len(f1_CW), seed=args.seed, f1=dict(zip(WAYS, means, strict=True)))


if __name__ == "__main__":
    main()
