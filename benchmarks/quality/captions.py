"""Whether conditions steer a search: captions whose nearest neighbours share the attribute that the condition names.

    python -m benchmarks.quality.captions --model minilm-conditional-v3 condition-pooling:minilm --attributes all \\
        --data ../shared/data/flickr30k --train ../shared/data/csts/train.csv --output runs/captions

Reads the first 20,000 captions and writes metrics.json and report.md as `raycase evaluate` does. Queries are the first
caption of each image that names exactly one value; captions of the same image are left out. --train leaves out each
image that has a sentence of the file as a caption, and shows of each condition whether a row of the file has it
(stripped and case-folded). A model embeds every caption under every condition that is measured, in one job.

A measure of ours, not of any publication: attributes are found by word lists (attribute_words.json). It shows whether
vectors move with the condition, not whether people would be content with the answers.

Shapes: N captions, T distinct ones, C conditions, Q queries, q queries that name one value, V values, K neighbours.
"""

import json
import re
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.quality.conditions import folded
from benchmarks.quality.reports import encoder_names, report_parser, write_report
from benchmarks.turns import finish
from raycase.errors import RequestError
from raycase.evaluation.report import RankedSystem, rank_systems, ranked_values, render_ranked, table
from raycase.evaluation.tasks import Task
from raycase.index.topk import top_k
from raycase.io.rated_pairs import read_rated
from raycase.io.reader import read_files
from raycase.io.vectors import l2_normalize

CAPTIONS, NEIGHBOURS = 20_000, 10
DEFAULT = ("number of people", "color of the clothes", "type of sport", "animal")
WORDS = Path(__file__).with_name("attribute_words.json")


@dataclass(frozen=True, kw_only=True)
class Captions:
    """The corpus: N captions and the number of each one's image; queries are the first caption of each image.

    seen: the conditions of the training data; None without any.
    """

    uri: str
    texts: list[str]
    images: np.ndarray  # (N,) int64, not necessarily without gaps
    left_out: int = 0
    seen: set[str] | None = None

    @property
    def queries(self):
        """(Q,) rows."""
        return np.unique(self.images, return_index=True)[1]


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """What captions name under one condition; only queries that name exactly one value are measured."""

    named: np.ndarray  # (V, N) bool: whether a caption names a value
    query_index: np.ndarray  # (q,) into `Captions.queries`
    value_index: np.ndarray  # (q,) into the values


@cache
def patterns():
    """Condition -> value -> the pattern of attribute_words.json that names it in lower-case text.

    It matches at the start of a word and ends with one; `{name}` stands for any word of the list `name`.
    """
    words = json.loads(WORDS.read_text(encoding="utf-8"))
    any_of = {name: f"(?:{'|'.join(map(re.escape, listed))})" for name, listed in words["lists"].items()}

    def compiled(alternatives):
        expanded = "|".join(re.sub(r"\{([a-z]+)\}", lambda name: any_of[name[1]], each) for each in alternatives)
        return re.compile(rf"(?:\b|^)(?:{expanded})\b")

    return {
        condition: {value: compiled(alternatives) for value, alternatives in values.items()}
        for condition, values in words["conditions"].items()
    }


def read(data, *, train):
    """The first captions of `captions.parquet` (columns image and text), without images of the training data."""
    uri = f"{data.rstrip('/')}/captions.parquet"
    names, texts = [], []
    for _, columns in read_files(uri, ("image", "text"), "--data", words=["text"]):
        names += map(str, columns["image"][:CAPTIONS])
        texts += columns["text"][:CAPTIONS]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    images = np.array([number[name] for name in names])
    if train is None:
        return Captions(uri=uri, texts=texts, images=images)
    pairs = read_rated(train, "--train")
    sentences = set(folded([*pairs.sentences1, *pairs.sentences2]))
    seen_N = np.array([text in sentences for text in folded(texts)])
    kept = np.flatnonzero(~np.isin(images, images[seen_N]))
    some = {"texts": [texts[row] for row in kept], "images": images[kept]}
    return Captions(uri=uri, left_out=len(texts) - len(kept), seen=set(folded(pairs.conditions)), **some)


def attribute_under(captions, condition):
    """What each caption names under a condition."""
    values = patterns()[condition]
    lower = [text.lower() for text in captions.texts]
    named_VN = np.array([[bool(pattern.search(text)) for text in lower] for pattern in values.values()])
    of_queries_VQ = named_VN[:, captions.queries]
    single_q = np.flatnonzero(of_queries_VQ.sum(0) == 1)
    return Attribute(named=named_VN, query_index=single_q, value_index=of_queries_VQ[:, single_q].argmax(0))


def nearest(vectors_ND, captions):
    """The captions of other images nearest to each query, by cosine: (Q, K) rows; -1 where there are fewer."""
    unit_ND, images = torch.from_numpy(l2_normalize(vectors_ND)), torch.from_numpy(captions.images)
    queries = torch.from_numpy(captions.queries)
    return top_k(unit_ND[queries], [unit_ND], NEIGHBOURS, query_groups=images[queries], groups=images)[1]


def neighbour_share(neighbours_QK, attribute):
    """The share of each query's neighbours that name its value: (q,)."""
    asked = zip(neighbours_QK[attribute.query_index], attribute.value_index, strict=True)
    return np.array([attribute.named[value][near[near >= 0]].mean() for near, value in asked])


def chance_share(captions, attribute):
    """The share of all captions of other images that name the query's value: (q,)."""
    shares, queries = [], captions.queries
    for query, value in zip(attribute.query_index, attribute.value_index, strict=True):
        others_N = captions.images != captions.images[queries[query]]
        shares.append((attribute.named[value] & others_N).sum() / others_N.sum())
    return np.array(shares)


def measure(settings, captions, models, *, conditions):
    """For each encoder's own vectors and each model's conditional ones, the share of neighbours with the value.

    A model's vectors under all conditions are embedded in one call, sentence by sentence: (T * C, D) float32 in memory.
    """
    found = {condition: attribute_under(captions, condition) for condition in conditions}
    attributes = {condition: attribute for condition, attribute in found.items() if len(attribute.query_index)}
    rows = {text: row for row, text in enumerate(dict.fromkeys(captions.texts))}
    text_index_N = np.array([rows[text] for text in captions.texts])

    def share(vectors_TD, *under):
        neighbours_QK = nearest(vectors_TD[text_index_N], captions)
        return {c: neighbour_share(neighbours_QK, attributes[c])[:, None] for c in under}

    systems = {}
    for model, encoder in zip(models, encoder_names(models), strict=True):
        if encoder not in systems:
            values = share(model.embed(list(rows)), *attributes)
            systems[encoder] = RankedSystem(name=f"{encoder}, unconditional", what="f(s): no condition", values=values)
    conditional = []
    for model in models:
        vectors = model.embed([(text, condition) for text in rows for condition in attributes])
        vectors_TCD = vectors.reshape(len(rows), len(attributes), -1)
        values = {}
        for column, condition in enumerate(attributes):
            values |= share(model.project(vectors_TCD[:, column]), condition)
        what = f"{model.config.label}: {model.config.formula}"
        conditional.append(RankedSystem(name=model.name, what=what, values=values))
    counts = {"captions": len(captions.texts), "images": len(captions.queries), "left_out": captions.left_out}
    ranked = rank_systems(
        settings,
        title=f"Captions: how often the first {NEIGHBOURS} neighbours share what the condition asks for, %",
        about="A measure of ours: attributes are read off captions by lists of words "
        f"(`benchmarks/quality/attribute_words.json`). {captions.left_out:,} captions of images that the training "
        "data has are left out. Chance is the share among all captions.",
        data=counts,
        measures=[f"share@{NEIGHBOURS}"],
        systems=[*systems.values(), *conditional],
    )
    groups = [
        {"name": condition, "queries": len(attribute.query_index)}
        | {"chance": 100 * float(chance_share(captions, attribute).mean())}
        | ({} if captions.seen is None else {"seen": folded([condition])[0] in captions.seen})
        for condition, attribute in attributes.items()
    ]
    return ranked | {"groups": groups}


def render(metrics):
    """The report in Markdown."""
    groups = metrics["groups"]
    rows = [["chance", *(f"{group['chance']:.2f}" for group in groups)]]
    if any("seen" in group for group in groups):
        rows.append(["condition seen in training", *("yes" if group["seen"] else "no" for group in groups)])
    return render_ranked(metrics) + "\n" + table(["", *(group["name"] for group in groups)], rows) + "\n"


def main(arguments):
    """Measure and write the report."""
    every = list(patterns())
    names = every if arguments.attributes == ["all"] else arguments.attributes
    if unknown := [name for name in names if name not in every]:
        raise RequestError(f"--attributes: expected all, or some of {', '.join(map(repr, every))}, got {unknown[0]!r}")
    measuring = partial(measure, conditions=[condition for condition in every if condition in names])
    task = Task(read=partial(read, train=arguments.train), measure=measuring, render=render)
    metrics = write_report(arguments, task, task="captions", cache=arguments.cache)
    finish(systems=ranked_values(metrics), output=arguments.output)


if __name__ == "__main__":
    parser = report_parser(__doc__, "folder of captions.parquet, with columns image and text")
    parser.add_argument("--train", help="rated pairs, whose images are left out")
    parser.add_argument("--attributes", nargs="+", default=DEFAULT, help="conditions, or all; default: four")
    parser.add_argument("--cache", help="of embedded captions")
    main(parser.parse_args())
