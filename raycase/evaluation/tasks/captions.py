"""Whether conditions steer a search: captions whose nearest neighbours share the attribute that the condition names.

A measure of ours, not of any publication: attributes are found by word lists (attribute_words.json). It says whether
vectors move with the condition, not whether people would be content with the answers.

Shapes: N captions, Q queries, q queries that name one value, V values, K neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model, encoder_names
from raycase.evaluation.procedure import Embed, Measured
from raycase.evaluation.ranked import RankedSystem, rank_systems
from raycase.evaluation.tasks.attributes import attribute_patterns, attributes_of
from raycase.search.topk import l2_normalize, top_k

CAPTIONS, NEIGHBOURS = 20_000, 10
IMAGE, TEXT = "image", "text"
MEASURE = f"share@{NEIGHBOURS}"


@dataclass(frozen=True, kw_only=True)
class Captions:
    """The corpus: N captions and the number of each one's image; queries are the first caption of each image."""

    uri: str
    texts: list[str]
    images: np.ndarray  # (N,) int64

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


def read(job: EvaluateJob) -> Captions:
    """Read the first captions. Raises RequestError."""
    return read_captions(job.data)


def read_captions(folder: str, limit: int = CAPTIONS) -> Captions:
    """The first `limit` captions of `captions.parquet` (columns image and text). Raises RequestError."""
    uri = f"{folder.rstrip('/')}/captions.parquet"
    names: list[str] = []
    captions: list[str] = []
    for file in find_input(uri, "--data"):
        columns = read_columns(file, (IMAGE, TEXT), "--data")
        names += [str(name) for name in columns[IMAGE][:limit]]
        captions += texts(columns[TEXT][:limit], f"--data: {file.uri}", TEXT)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(number) < 2:
        raise RequestError(f"--data: expected captions of several images in {folder}, got {len(number)}")
    return Captions(uri=uri, texts=captions, images=np.array([number[name] for name in names]))


def measure(job: EvaluateJob, captions: Captions, models: Sequence[Model], embed: Embed) -> Measured:
    """For each encoder's plain vectors and each model's conditional ones, the share of neighbours with the value."""
    attributes = find_attributes(captions)
    chance = {condition: chance_share(captions, attribute) for condition, attribute in attributes.items()}
    rows = {text: row for row, text in enumerate(dict.fromkeys(captions.texts))}
    text_index_N = np.array([rows[text] for text in captions.texts])

    def share(neighbours_QK: np.ndarray, condition: str) -> np.ndarray:
        return 100 * neighbour_share(neighbours_QK, attributes[condition])[:, None]

    systems: dict[str, RankedSystem] = {}
    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in systems:
            neighbours_QK = nearest(embed(list(rows), model)[text_index_N], captions)
            values = {condition: share(neighbours_QK, condition) for condition in attributes}
            systems[encoder] = RankedSystem(name=f"{encoder}, plain", what="f(s): no condition", values=values)
    conditional = []
    for model in models:
        values = {}
        for condition in attributes:
            vectors_TD = model.project(embed([(text, condition) for text in rows], model))
            values[condition] = share(nearest(vectors_TD[text_index_N], captions), condition)
        what = f"{model.config.label}: {model.config.formula}"
        conditional.append(RankedSystem(name=model.name, what=what, values=values))
    return rank_systems(
        job,
        title=f"Captions: how often the first {NEIGHBOURS} neighbours share what the condition asks for, %",
        about=(
            "A measure of ours: attributes are read off captions by lists of words "
            "(`raycase/evaluation/tasks/attribute_words.json`). Queries "
            "are the first caption of each image that names exactly one value; captions of the same image are left "
            "out. Chance is the share among all captions."
        ),
        data={"captions": len(captions.texts), "images": len(captions.queries)},
        measures=[MEASURE],
        groups=[{"name": c, "queries": len(v), "chance": 100 * float(v.mean())} for c, v in chance.items()],
        systems=[*systems.values(), *conditional],
    )


def find_attributes(captions: Captions) -> dict[str, Attribute]:
    """The conditions under which a query names exactly one value. Raises RequestError where there are none."""
    attributes = {condition: attribute_under(captions, condition) for condition in attribute_patterns()}
    attributes = {condition: attribute for condition, attribute in attributes.items() if len(attribute.query_index)}
    if not attributes:
        raise RequestError(
            f"--data: expected captions that name {', '.join(attribute_patterns())}, got none in {captions.uri}"
        )
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
