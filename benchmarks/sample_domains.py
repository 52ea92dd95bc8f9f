"""Beyond captions: whether neighbours among reviews, news, questions and products share what a condition asks for.

    .venv/bin/python benchmarks/sample_domains.py [--models MODEL ...] [--dim D] [--plain BOUND ...]

Sentences of our own, labelled by hand: the package's sample (its labels are below) and `questions_and_products.csv`. A
small check of English that is not captions. For each model, the share of the first three neighbours of the same domain
that have the query's label, in percent; the mean over queries whose label another sentence has.
"""

import argparse
import csv
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
from turns import finish

import raycase
from raycase.data.vectors import l2_normalize

MODELS = ("minilm-conditional", "condition-pooling:minilm", "minilm")
NEIGHBOURS = 3
PRODUCTS = (
    "headphones phone laptop toothbrush drill vacuum coffee blender toaster skillet|pan shoes jacket sweater jeans"
)
PRODUCTS += " backpack suitcase tent mattress chair lamp bookshelf watch|smartwatch e-reader novel cookbook game train"
PRODUCTS += " dog.bed"
OPINIONS = "+-o-+-+o-+ o-++o+-o-+ ++-o-+-o++ -o--++-oo- ++-o-++-o+"
OPINIONS += " -o+-+-o+-o ++-o+-+-o+ +-o++-o+-- ++-o-+-+o- +-+-o-+-o+"
EVENTS = {"flood": (1, 6), "earthquake": (7, 10), "fire": (11, 14), "drought": (15, 17), "merger": (25, 30)}
EVENTS |= {"strike": (46, 50), "politics": (51, 59), "protest": (63, 65), "court": (66, 68), "football": (69, 72)}


def product(number, text):
    """The product of a review; None for one of its kind."""
    return next((p for p in PRODUCTS.split() if re.search(rf"\b({p.replace('.', ' ')})\b", text, re.IGNORECASE)), None)


def opinion(number, text):
    """Whether the writer is content (+), is not (-), or both (o)."""
    return OPINIONS.replace(" ", "")[number - 1]


def event(number, text):
    """The kind of event; None where no range has it."""
    return next((name for name, (first, last) in EVENTS.items() if first <= number <= last), None)


SAMPLE = (
    ("review", "kind of product", product),
    ("review", "opinion of the writer", opinion),
    ("news", "kind of event", event),
)
LABELLED = {  # domain -> the condition of each of its labels, in their order
    "question": ("subject of the question", "kind of answer that is asked for"),
    "product": ("kind of product", "color of the product", "material of the product"),
}


def read_rows(path):
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measures():
    """Domain, condition, texts and the label of each."""
    rows = read_rows(Path(raycase.__file__).parent / "sample" / "sentences.csv")
    for domain, condition, label in SAMPLE:
        texts = {row["id"].split("-")[1]: row["text"] for row in rows if row["domain"] == domain}
        yield domain, condition, list(texts.values()), [label(int(n), text) for n, text in texts.items()]
    rows = read_rows(Path(__file__).with_name("questions_and_products.csv"))
    for domain, conditions in LABELLED.items():
        of_domain = [row for row in rows if row["domain"] == domain]
        for i, condition in enumerate(conditions):
            yield domain, condition, [row["text"] for row in of_domain], [row["labels"].split()[i] for row in of_domain]


def share_of_each(vectors_ND, labels):
    """The share of each text's neighbours that have its label, % (N,); NaN where no other text has it."""
    unit_ND = l2_normalize(vectors_ND)
    scores_NN = unit_ND @ unit_ND.T
    np.fill_diagonal(scores_NN, -np.inf)
    near_NK = np.argsort(-scores_NN, axis=1)[:, :NEIGHBOURS]
    same_N = [100 * np.mean([labels[j] == label for j in near]) for near, label in zip(near_NK, labels, strict=True)]
    return np.where([label is not None and labels.count(label) > 1 for label in labels], same_N, np.nan)


def share(vectors_ND, labels):
    """The mean over the texts whose label another one has."""
    return float(np.nanmean(share_of_each(vectors_ND, labels)))


def main(models, dim=None, bounds=None):
    plain, shares = {}, {model: {} for model in models}
    for model in models:
        loaded = raycase.load(model, dim=dim)
        if bounds:
            names = ("plain_share", "plain_from", "plain_to", "plain_alone_from", "plain_alone_to")
            part = loaded.head.plain
            part.config = replace(part.config, **dict(zip(names, bounds, strict=True)))
        for domain, condition, texts, labels in measures():
            name = f"{domain}: {condition}"
            if model == models[0]:
                plain[name] = share(loaded.embed(texts, None), labels)
            shares[model][name] = share(loaded.embed(texts, condition), labels)
    shares = {f"{models[0]}, plain": plain} | shares
    print("| % | " + " | ".join(shares) + " |\n|" + "---|" * (len(shares) + 1))
    for name in plain:
        print(f"| {name} | " + " | ".join(f"{found[name]:.1f}" for found in shares.values()) + " |")
    ratios = {
        f"{model}, {name}: / plain": value / plain[name] for model in models for name, value in shares[model].items()
    }
    finish({"ratios": ratios, "share_of_neighbours": shares})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, help="what `--model` of the commands takes")
    parser.add_argument("--dim", type=int, help="cut vectors to one of the nested dimensions")
    parser.add_argument("--plain", nargs=5, type=float, help="other bounds of the plain part (systems/plain_part.py)")
    args = parser.parse_args()
    main(args.models, args.dim, args.plain)
