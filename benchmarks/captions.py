"""Whether conditions steer a search: captions whose nearest neighbours share the attribute that the condition names.

    .venv/bin/python benchmarks/captions.py --model minilm-conditional condition-pooling:minilm --attributes all \\
        --data ../shared/data/flickr30k --train ../shared/data/csts/train.csv --output runs/captions

Reads the first 20,000 captions and writes metrics.json and report.md as `raycase evaluate` does. --train leaves out
each image that has a sentence of the file as a caption, and says of each condition whether a row of the file has it
(stripped and case-folded). A model embeds every caption under every condition that is measured, in one job: with
another choice of conditions, or of --train, it embeds them again.

A measure of ours, not of any publication: attributes are found by word lists (attribute_words.json). It says whether
vectors move with the condition, not whether people would be content with the answers.

Shapes: N captions, T distinct ones, C conditions, Q queries, q queries that name one value, V values, K neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attributes import attribute_patterns, attributes_of
from conditions import folded
from reports import encoder_names, report_parser, write_report
from turns import finish

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import Task
from raycase.evaluation.report import RankedSystem, rank_systems, ranked_values, render_ranked, table
from raycase.index.topk import top_k
from raycase.io.rated_pairs import RatedPairs, read_rated
from raycase.io.reader import read_files
from raycase.io.vectors import l2_normalize

CAPTIONS, NEIGHBOURS = 20_000, 10
IMAGE, TEXT = "image", "text"
MEASURE = f"share@{NEIGHBOURS}"
DEFAULT = ("number of people", "color of the clothes", "type of sport", "animal")
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Captions:
    """The corpus: N captions and the number of each one's image; queries are the first caption of each image."""

    uri: str
    texts: list[str]
    images: np.ndarray  # (N,) int64, not necessarily without gaps

    @property
    def queries(self) -> np.ndarray:
        """(Q,) rows."""
        return np.unique(self.images, return_index=True)[1]


@dataclass(frozen=True, kw_only=True)
class Attribute:
    """What captions name under one condition; only queries that name exactly one value are measured."""

    named: np.ndarray  # (V, N) bool: whether a caption names a value
    query_index: np.ndarray  # (q,) into `Captions.queries`
    value_index: np.ndarray  # (q,) into the values


@dataclass(frozen=True, kw_only=True)
class CaptionData:
    """The corpus without the images of the training data, and the conditions to measure."""

    captions: Captions
    conditions: list[str]
    train: RatedPairs | None
    captions_left_out: int
    images_left_out: int

    @property
    def uri(self) -> str:
        return self.captions.uri


def read(
    flags: EvaluateFlags, *, attributes: Sequence[str] | None = None, train_file: str | None = None
) -> CaptionData:
    """Read the first captions and `--train`. Raises RequestError."""
    conditions = choose_conditions(attributes)
    captions = every = read_captions(flags.data)
    train = None
    if train_file:
        train = read_rated(train_file, "--train")
        captions = without_images_of(every, train)
        if len(captions.queries) < 2:
            raise RequestError(
                f"--train: expected captions of several images without a sentence of {train_file} in {flags.data}, "
                f"got {len(captions.queries)}"
            )
    return CaptionData(
        captions=captions,
        conditions=conditions,
        train=train,
        captions_left_out=len(every.texts) - len(captions.texts),
        images_left_out=len(every.queries) - len(captions.queries),
    )


def choose_conditions(names: Sequence[str] | None) -> list[str]:
    """The conditions of `--attributes` in the order of the word lists. Raises RequestError for an unknown one."""
    every = list(attribute_patterns())
    chosen = DEFAULT if names is None else every if tuple(names) == (ALL,) else names
    unknown = [name for name in chosen if name not in every]
    if unknown or not chosen:
        got = repr(unknown[0]) if unknown else "none"
        raise RequestError(f"--attributes: expected {ALL}, or some of {', '.join(map(repr, every))}, got {got}")
    return [condition for condition in every if condition in chosen]


def read_captions(folder: str, limit: int = CAPTIONS) -> Captions:
    """The first `limit` captions of `captions.parquet` (columns image and text). Raises RequestError."""
    uri = f"{folder.rstrip('/')}/captions.parquet"
    names: list[str] = []
    captions: list[str] = []
    for _, columns in read_files(uri, (IMAGE, TEXT), "--data", words=[TEXT]):
        names += [str(name) for name in columns[IMAGE][:limit]]
        captions += columns[TEXT][:limit]
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(number) < 2:
        raise RequestError(f"--data: expected captions of several images in {folder}, got {len(number)}")
    return Captions(uri=uri, texts=captions, images=np.array([number[name] for name in names]))


def without_images_of(captions: Captions, train: RatedPairs) -> Captions:
    """The captions of images of which no caption is a sentence of the training data; what case it has is no matter."""
    sentences = set(folded([*train.sentences1, *train.sentences2]))
    seen_N = np.array([text in sentences for text in folded(captions.texts)])
    kept = np.flatnonzero(~np.isin(captions.images, captions.images[seen_N]))
    return Captions(uri=captions.uri, texts=[captions.texts[row] for row in kept], images=captions.images[kept])


def measure(flags: EvaluateFlags, data: CaptionData, models: Sequence[Model]) -> dict[str, Any]:
    """For each encoder's own vectors and each model's conditional ones, the share of neighbours with the value.

    A model's vectors under all conditions are embedded in one call, sentence by sentence: (T * C, D) float32 in memory.
    """
    captions = data.captions
    attributes = find_attributes(captions, data.conditions)
    rows = {text: row for row, text in enumerate(dict.fromkeys(captions.texts))}
    text_index_N = np.array([rows[text] for text in captions.texts])

    def share(vectors_TD: np.ndarray, *conditions: str) -> dict[str, np.ndarray]:
        neighbours_QK = nearest(vectors_TD[text_index_N], captions)
        return {c: neighbour_share(neighbours_QK, attributes[c])[:, None] for c in conditions}

    systems: dict[str, RankedSystem] = {}
    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in systems:
            values = share(model.embed(list(rows)), *attributes)
            systems[encoder] = RankedSystem(name=f"{encoder}, plain", what="f(s): no condition", values=values)
    conditional = []
    for model in models:
        vectors = model.embed([(text, condition) for text in rows for condition in attributes])
        vectors_TCD = vectors.reshape(len(rows), len(attributes), -1)
        values = {}
        for column, condition in enumerate(attributes):
            values |= share(model.project(vectors_TCD[:, column]), condition)
        what = f"{model.config.label}: {model.config.formula}"
        conditional.append(RankedSystem(name=model.name, what=what, values=values))
    ranked = rank_systems(
        flags,
        title=f"Captions: how often the first {NEIGHBOURS} neighbours share what the condition asks for, %",
        about=about(data),
        data=described(data),
        measures=[MEASURE],
        systems=[*systems.values(), *conditional],
    )
    return ranked | {"groups": groups(data, attributes)}


def about(data: CaptionData) -> str:
    """The report's first paragraph."""
    text = (
        "A measure of ours: attributes are read off captions by lists of words "
        "(`benchmarks/attribute_words.json`). Queries "
        "are the first caption of each image that names exactly one value; captions of the same image are left "
        "out. Chance is the share among all captions."
    )
    if data.train is not None:
        text += (
            f" {data.captions_left_out:,} captions of {data.images_left_out:,} images are left out everywhere: "
            f"{Path(data.train.uri).name} has a caption of each of these images. A condition is seen in training if a "
            "row of the file has it, stripped and case-folded; a paraphrase of it does not count."
        )
    return text


def described(data: CaptionData) -> dict[str, Any]:
    """What `metrics.json` holds of the data."""
    counts = {"captions": len(data.captions.texts), "images": len(data.captions.queries)}
    if data.train is None:
        return counts
    training = {
        "file": Path(data.train.uri).name,
        "sha256": data.train.data_sha256,
        "rows": len(data.train),
        "captions_left_out": data.captions_left_out,
        "images_left_out": data.images_left_out,
    }
    return counts | {"training": training}


def groups(data: CaptionData, attributes: dict[str, Attribute]) -> list[dict[str, Any]]:
    """Each condition's queries, share by chance and, with training data, whether that has the condition."""
    lines: list[dict[str, Any]] = []
    for condition, attribute in attributes.items():
        chance = 100 * float(chance_share(data.captions, attribute).mean())
        lines.append({"name": condition, "queries": len(attribute.query_index), "chance": chance})
    if data.train is not None:
        seen = set(folded(data.train.conditions))
        lines = [line | {"seen": key in seen} for line, key in zip(lines, folded(attributes), strict=True)]
    return lines


def find_attributes(captions: Captions, conditions: Sequence[str]) -> dict[str, Attribute]:
    """The conditions under which a query names exactly one value. Raises RequestError where there are none."""
    attributes = {condition: attribute_under(captions, condition) for condition in conditions}
    attributes = {condition: attribute for condition, attribute in attributes.items() if len(attribute.query_index)}
    if not attributes:
        raise RequestError(f"--data: expected captions that name {', '.join(conditions)}, got none in {captions.uri}")
    return attributes


def attribute_under(captions: Captions, condition: str) -> Attribute:
    """What each caption names under a condition."""
    values = list(attribute_patterns()[condition])
    named = [attributes_of(text, condition) for text in captions.texts]
    single = [(query, next(iter(named[row]))) for query, row in enumerate(captions.queries) if len(named[row]) == 1]
    return Attribute(
        named=np.array([[value in names for names in named] for value in values]),
        query_index=np.array([query for query, _ in single], dtype=np.int64),
        value_index=np.array([values.index(value) for _, value in single], dtype=np.int64),
    )


def nearest(vectors_ND: np.ndarray, captions: Captions) -> np.ndarray:
    """The captions of other images nearest to each query, by cosine: (Q, K) rows; -1 where there are fewer."""
    unit_ND, images = torch.from_numpy(l2_normalize(vectors_ND)), torch.from_numpy(captions.images)
    queries = torch.from_numpy(captions.queries)
    return top_k(unit_ND[queries], [unit_ND], NEIGHBOURS, query_groups=images[queries], groups=images)[1]


def neighbour_share(neighbours_QK: np.ndarray, attribute: Attribute) -> np.ndarray:
    """The share of each query's neighbours that name its value: (q,)."""
    shares = []
    for query, value in zip(attribute.query_index, attribute.value_index, strict=True):
        neighbours = neighbours_QK[query]
        shares.append(attribute.named[value][neighbours[neighbours >= 0]].mean())
    return np.array(shares)


def chance_share(captions: Captions, attribute: Attribute) -> np.ndarray:
    """The share of all captions of other images that name the query's value, which is what chance gives: (q,)."""
    shares = []
    queries = captions.queries
    for query, value in zip(attribute.query_index, attribute.value_index, strict=True):
        others_N = captions.images != captions.images[queries[query]]
        shares.append((attribute.named[value] & others_N).sum() / others_N.sum())
    return np.array(shares)


def render(metrics: dict[str, Any]) -> str:
    """The report in Markdown."""
    groups = metrics["groups"]
    rows = [["chance", *(f"{group['chance']:.2f}" for group in groups)]]
    if any("seen" in group for group in groups):
        rows.append(["condition seen in training", *("yes" if group["seen"] else "no" for group in groups)])
    return render_ranked(metrics) + "\n" + table(["", *(group["name"] for group in groups)], rows) + "\n"


def main(arguments):
    """Measure and write the report."""
    reading = partial(read, attributes=arguments.attributes, train_file=arguments.train)
    task = Task(read=reading, measure=measure, render=render)
    metrics = write_report(arguments, task, task="captions", cache=arguments.cache)
    finish({"ratios": {}, "systems": ranked_values(metrics), "output": arguments.output})


if __name__ == "__main__":
    parser = report_parser(__doc__, "folder of captions.parquet, with columns image and text")
    parser.add_argument("--train", help="rated pairs, whose images are left out")
    parser.add_argument("--attributes", nargs="+", help="conditions, or all; default: four")
    parser.add_argument("--cache", help="of embedded captions")
    main(parser.parse_args())
