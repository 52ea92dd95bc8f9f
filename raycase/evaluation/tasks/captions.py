"""Do conditions steer a search? Captions whose nearest neighbours share what the condition asks for.

A measure of ours, not of any publication: attributes are read off captions by the lists of words below. It says whether
vectors move with the condition, not whether people would be content.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import encoder_names, find_models
from raycase.evaluation.ranked import report
from raycase.search.topk import l2_normalize, top_k
from raycase.systems.contracts import VectorsOf
from raycase.systems.projector import project

CAPTIONS, NEIGHBOURS = 20_000, 10
IMAGE, TEXT = "image", "text"
MEASURE = f"share@{NEIGHBOURS}"

# Condition -> value -> words; a caption may have several values, and a query must have one.
ONE = [
    "man",
    "woman",
    "boy",
    "girl",
    "child",
    "person",
    "lady",
    "guy",
    "kid",
    "player",
    "male",
    "female",
    "worker",
    "toddler",
    "baby",
]
COLORS = ["red", "blue", "green", "yellow", "black", "white", "orange", "pink", "purple", "brown"]
CLOTHES = [
    "shirt",
    "shirts",
    "t-shirt",
    "dress",
    "jacket",
    "coat",
    "hat",
    "cap",
    "shorts",
    "pants",
    "jeans",
    "skirt",
    "suit",
    "uniform",
    "uniforms",
    "sweater",
    "top",
    "vest",
    "jersey",
    "jerseys",
    "outfit",
    "clothes",
    "clothing",
    "hoodie",
    "swimsuit",
    "bikini",
    "robe",
    "apron",
    "sweatshirt",
    "tank",
    "scarf",
]
WORDS: dict[str, dict[str, list[str]]] = {
    "number of people": {
        "one": [f"^an? (?:\\w+ )?{noun}\\b(?! and)" for noun in ONE],
        "two": ["two", "couple"],
        "three": ["three"],
        "four": ["four"],
        "many": ["group of", "crowd", "many people", "several", "large group"],
    },
    "color of the clothes": {
        color: [f"{color} (?:(?:and )?\\w+ )?{garment}" for garment in CLOTHES] for color in [*COLORS, "gr[ae]y"]
    },
    "type of sport": {
        "soccer": ["soccer"],
        "football": ["football"],
        "basketball": ["basketball"],
        "baseball": ["baseball"],
        "tennis": ["tennis"],
        "hockey": ["hockey"],
        "volleyball": ["volleyball"],
        "golf": ["golf", "golfer"],
        "surfing": ["surfing", "surfer", "surfboard", "surfs"],
        "skateboarding": ["skateboard", "skateboarder", "skateboarding"],
        "skiing": ["ski", "skier", "skiing", "skis"],
        "snowboarding": ["snowboard", "snowboarder", "snowboarding"],
        "swimming": ["swimming", "swimmer", "swims"],
        "cycling": ["bicycle", "bike", "biker", "bicyclist", "cyclist"],
        "climbing": ["rock climbing", "rock climber", "climber"],
        "martial arts": ["karate", "martial arts", "boxing", "boxer", "wrestling", "wrestler", "judo"],
    },
    "animal": {
        "dog": ["dog", "dogs", "puppy", "puppies"],
        "cat": ["cat", "cats", "kitten"],
        "horse": ["horse", "horses", "bull", "bronco"],
        "bird": ["bird", "birds", "pigeon", "pigeons", "duck", "ducks"],
        "cow": ["cow", "cows", "ox", "oxen"],
        "sheep": ["sheep", "goat", "goats", "lamb"],
        "fish": ["fish"],
        "elephant": ["elephant", "elephants"],
        "monkey": ["monkey", "monkeys"],
        "camel": ["camel", "camels"],
    },
}
PATTERNS = {
    condition: {value: re.compile(rf"(?:\b|^)(?:{'|'.join(words)})\b") for value, words in values.items()}
    for condition, values in WORDS.items()
}


def attributes_of(caption: str, condition: str) -> set[str]:
    """The values that a caption names: `{"red"}` of "a girl in a red dress" under "color of the clothes"."""
    lower = caption.lower()
    return {value for value, pattern in PATTERNS[condition].items() if pattern.search(lower)}


@dataclass(frozen=True, kw_only=True)
class Captions:
    """The corpus: N captions, whose image is a number; queries are the first caption of each image."""

    texts: list[str]
    images: np.ndarray  # (N,) int64

    @property
    def queries(self) -> np.ndarray:
        """(Q,) places."""
        return np.unique(self.images, return_index=True)[1]


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, write the report, and give what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    folder = check_request(job)
    captions = read_captions(job.data)
    models = find_models(job)
    name = str(Path(job.data) / "captions.parquet")
    chance = {condition: shared(None, captions, condition)[1] for condition in WORDS}
    chance = {condition: values for condition, values in chance.items() if len(values)}
    if not chance:
        raise RequestError(f"--data: expected captions that name {', '.join(WORDS)}, got none in {name}")
    distinct = {text: i for i, text in enumerate(dict.fromkeys(captions.texts))}
    place_N = np.array([distinct[text] for text in captions.texts])
    plain: dict[str, np.ndarray] = {}  # of each encoder, (N, D)
    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in plain:
            options: dict[str, Any] = {"name": name, "cache": model.cache, "compute": job.compute}
            plain[encoder] = vectors_of(list(distinct), model.config, **options)[place_N]
    systems: list[dict[str, str]] = []
    values: dict[str, dict[str, np.ndarray]] = {}
    for encoder, vectors in plain.items():
        systems.append({"name": f"{encoder}, plain", "what": "f(s): no condition"})
        found = nearest(vectors, captions)
        values[f"{encoder}, plain"] = {c: 100 * shared(found, captions, c)[0][:, None] for c in chance}
    for model in models:
        systems.append({"name": model.name, "what": f"{model.config.label}: {model.config.formula}"})
        values[model.name] = {}
        for condition in chance:
            pairs = [(text, condition) for text in distinct]
            vectors = vectors_of(pairs, model.config, name=name, cache=model.cache, compute=job.compute)
            if model.projector:
                vectors = project(model.projector, vectors)
            found = nearest(vectors[place_N], captions)
            values[model.name][condition] = 100 * shared(found, captions, condition)[0][:, None]
    return report(
        job,
        folder,
        began,
        title=f"Captions: how often the first {NEIGHBOURS} neighbours share what the condition asks for, %",
        about=(
            "A measure of ours: attributes are read off captions by lists of words "
            "(`raycase/evaluation/tasks/captions.py`). Queries "
            "are the first caption of each image that names exactly one value; captions of the same image are left "
            "out. Chance is the share among all captions."
        ),
        data={"captions": len(captions.texts), "images": len(captions.queries)},
        measures=[MEASURE],
        groups=[{"name": c, "queries": len(v), "chance": 100 * float(v.mean())} for c, v in chance.items()],
        systems=systems,
        values=values,
    )


def read_captions(folder: str, most: int = CAPTIONS) -> Captions:
    """The first captions of `captions.parquet` (columns image and text). Raises RequestError."""
    names: list[str] = []
    found: list[str] = []
    for file in find_input(f"{folder.rstrip('/')}/captions.parquet", "--data"):
        columns = read_columns(file, (IMAGE, TEXT), "--data")
        names += [str(name) for name in columns[IMAGE][:most]]
        found += texts(columns[TEXT][:most], f"--data: {file.uri}", TEXT)
    number = {name: i for i, name in enumerate(dict.fromkeys(names))}
    if len(number) < 2:
        raise RequestError(f"--data: expected captions of several images in {folder}, got {len(number)}")
    return Captions(texts=found, images=np.array([number[name] for name in names]))


def nearest(vectors_ND: np.ndarray, captions: Captions) -> np.ndarray:
    """The captions of other images nearest to each query, by cosine: (Q, 10) places; -1 where there are fewer."""
    unit_ND, images = torch.from_numpy(l2_normalize(vectors_ND)), torch.from_numpy(captions.images)
    queries = torch.from_numpy(captions.queries)
    return top_k(unit_ND[queries], [unit_ND], NEIGHBOURS, query_groups=images[queries], groups=images)[1]


def shared(neighbours_QK: np.ndarray | None, captions: Captions, condition: str) -> tuple[np.ndarray, np.ndarray]:
    """Of each query that names one value: the share of its neighbours that name it, and that of all captions of other
    images, which is what chance gives."""
    values = [attributes_of(text, condition) for text in captions.texts]
    names = {value: np.array([value in found for found in values]) for value in WORDS[condition]}
    own, chance = [], []
    for query, row in enumerate(captions.queries):
        if len(values[row]) != 1:
            continue
        has_N = names[next(iter(values[row]))]
        others_N = captions.images != captions.images[row]
        chance.append((has_N & others_N).sum() / others_N.sum())
        if neighbours_QK is not None:
            found = neighbours_QK[query]
            own.append(has_N[found[found >= 0]].mean())
    return np.array(own), np.array(chance)
