"""How often the label of a cluster is in its name, on labelled texts that no name was made for.

    python -m benchmarks.quality.group_names --model minilm-conditional-v3 --data 'datasets/labelled/test/*.csv' \\
        --labels datasets/labelled/test/*.json [--show call_notes]

The texts of a table are clustered under each column's first wording, into as many clusters as `raycase facets` chooses
and into as many as the column has labels (`of one label`: those of which half of the texts or more have one). A
cluster's label is that of most of its texts. It is in the name where the
name has a word with the stem of one of the label's words. That cannot be where no text of the cluster has such a word:
`in texts` is the share of clusters where one has. `by words` names by the weights of the words alone. `or answers`
counts a word of the label's answers, too, three other phrases for each label.
"""

import re
from collections import Counter
from functools import partial

import numpy as np
import torch

import raycase
from benchmarks.quality.columns import labelled_parser, tables_of
from benchmarks.turns import finish
from raycase.explore.facets import WORDS, answer_cosines, find_clusters, score_words
from raycase.tokens.words import FUNCTION_WORDS

ENDINGS = re.compile("((ation|ment|ing|er|or)s?|ness|ies|ied|edly|ed|es|s|ly|ful|al|y|e)$")
FIGURES = ("by words", "named", "in texts", "by words or answers", "named or answers")


def stems(text):
    """The words of a text without endings, but those of English function words."""
    words = {*re.findall(r"\w+", text.lower())} - FUNCTION_WORDS
    return {word[:3] + ENDINGS.sub("", word[3:]).rstrip("e") for word in words}


def judge(model, texts, weighed, column, unit_ND, clusters):
    """(rows, label, its rows, the name, whether it is in `FIGURES`) of each cluster that has a label."""
    found, judged = find_clusters(lambda: [(np.arange(len(texts)), torch.from_numpy(unit_ND))], clusters), []
    of_clusters = [[(texts[row], weighed[row]) for row in rows] for rows in found.members()]
    condition = column.conditions[0]
    named = score_words(of_clusters, WORDS, partial(answer_cosines, model, condition, found.centres))
    for rows, by_words, words in zip(found.members(), score_words(of_clusters, WORDS), named, strict=True):
        counts = Counter(label for row in rows for label in sorted(column.labels[row]))
        if counts:
            label, count = counts.most_common(1)[0]
            shown, named_so = (" ".join(word.word for word in name) for name in (by_words, words))
            wide, inside = " ".join([label, *column.answers.get(label, ())]), " ".join(texts[row] for row in rows)
            tried = [(label, shown), (label, named_so), (label, inside), (wide, shown), (wide, named_so)]
            judged.append((len(rows), label, count, words, [bool(stems(a) & stems(b)) for a, b in tried]))
    return judged


def main():
    parser = labelled_parser(__doc__)
    parser.add_argument("--show", nargs="*", default=(), help="tables whose names are printed")
    args = parser.parse_args()
    model, every = raycase.load(args.model), {"chosen": [], "as labels": []}
    for name, table in tables_of(args):
        vectors_NCD = model.encode_grid(table.texts, [each.conditions[0] for each in table.columns], normalize=True)
        for column, unit_ND in zip(table.columns, vectors_NCD.swapaxes(0, 1), strict=True):
            weighed = model.word_weights(table.texts, [column.conditions[0]] * len(table.texts))
            labels = {label for each in column.labels for label in each}
            for number, clusters in zip(every, (None, len(labels)), strict=True):
                judged = judge(model, table.texts, weighed, column, np.ascontiguousarray(unit_ND), clusters)
                every[number] += judged
                for rows, label, count, words, (_, hit, *_) in judged if name in args.show else ():
                    shown = ", ".join(word.word for word in words)
                    print(f"| {name}, {column.conditions[0]} | {rows} | {label} {count} | {shown} | {'x' * hit} |")
    every["of one label"] = [each for each in every["as labels"] if 2 * each[2] >= each[0]]
    result = {}
    for number, judged in every.items():
        share = np.mean([hits for *_, hits in judged], axis=0)
        result[number] = {"clusters": len(judged), **dict(zip(FIGURES, share.round(3).tolist(), strict=True))}
        print(number, result[number])
    finish(model=args.model, **result)


if __name__ == "__main__":
    main()
