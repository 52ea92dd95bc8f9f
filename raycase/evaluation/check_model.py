"""Whether an encoder is right, at a glance: its tokens and pooled span, norms, similarities, golden vectors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from raycase.data.fetch import fetch, is_remote
from raycase.encoder.cosines import cosines
from raycase.encoder.pooling import Pooling, pooled_spans
from raycase.encoder.prompts import Template
from raycase.encoder.sources import load_tokenizer
from raycase.errors import RequestError, WorkError
from raycase.systems.case import Case, CaseConfig
from raycase.systems.registry import resolve

SENTENCES = [
    "Two girls in red dresses play soccer.",
    "Two men in red shirts repair a car.",
    "A crowd in blue coats watches a soccer game.",
]
CONDITIONS = ["color of the clothes", "number of people", None]  # None: the sentence alone
GOLDEN = "golden.json"
NEAR = 0.999  # cosine


@dataclass(frozen=True, kw_only=True)
class CheckJob:
    """Embed a few pairs and show what there is to see; fails where the vectors are not what they should be."""

    model: tyro.conf.Positional[str]
    """Name in the table of encoders, Hugging Face id, or folder."""
    prompt: str | None = None
    """How sentence and condition become one text. Default: the encoder's."""
    pooling: Pooling | None = None
    """How tokens become one vector. Default: the encoder's."""
    subtract: bool | None = None
    """Whether the condition's own vector is taken away. Default: the encoder's."""
    compute: Literal["bfloat16", "float32"] | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor has it."""
    save_golden: bool = False
    """Keep these vectors in the model's folder, for later checks to compare with."""


def check_model(job: CheckJob) -> dict[str, Any]:
    """Print what an encoder does with a few pairs; returns the figures.

    Compares with `golden.json` in the model's folder: `label` (the prompt, pooling and subtraction it is of) and
    `vectors`, a list of {sentence, condition (or null), vector}, from the authors' own code or an earlier check.
    Raises RequestError; WorkError where a vector is not finite, depends on what it is encoded with, or is not the
    golden one.
    """
    config = resolve(job.model, prompt=job.prompt, pooling=job.pooling, subtract=job.subtract)
    if not isinstance(config, CaseConfig):
        raise RequestError(
            f"{job.model}: expected an encoder or a projector on one, got a fine-tuned system; its encoder can be "
            f"looked at: {job.model}/encoder with --prompt and --pooling"
        )
    system = config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
    row, model = config.encoder, system.encoder.model
    reads = "causal" if row.causal else "both ways"
    print(f"{row.source}: {config.dim} dimensions, {row.pooling[0]}, reads {reads}, at most {row.max_tokens} tokens")
    print(f"{type(model).__name__} in {model.dtype} on {model.device}\n")
    for view, prompts in zip(config.encoder.prompt.split("+"), config.prompts, strict=True):
        print(f"{view}, its base, and the sentence alone (pooled tokens between >> and <<):")
        for template in (prompts.pair, prompts.base, prompts.plain):
            print("  " + marked(config, template, SENTENCES[0], str(CONDITIONS[0])))
    vectors = [system.embed(SENTENCES, [c] * len(SENTENCES) if c else None) for c in CONDITIONS]
    alone = [np.concatenate([system.embed([s], c) for s in SENTENCES]) for c in CONDITIONS]
    figures: dict[str, Any] = {"model": job.model, "dim": config.dim}
    figures["finite"] = all(np.isfinite(v).all() for v in vectors)
    figures["least_cosine_to_alone"] = round(min(cosines(a, b).min() for a, b in zip(vectors, alone, strict=True)), 5)
    for condition, found in zip(CONDITIONS, vectors, strict=True):
        norms = np.linalg.norm(found, axis=1)
        print(f"\n{condition or 'sentences alone'}: norms {', '.join(f'{n:.3g}' for n in norms)}")
        for i, sentence in enumerate(SENTENCES):
            near = cosines(np.repeat(found[i : i + 1], len(found), axis=0), found)
            print("  " + "  ".join(f"{c:6.3f}" for c in near) + f"  {sentence}")
    figures["golden"] = _compare(job, config, system)
    print()
    if not figures["finite"]:
        raise WorkError(f"{job.model}: expected finite vectors, got NaN or infinity; try --compute float32")
    if figures["least_cosine_to_alone"] < NEAR:
        raise WorkError(
            f"{job.model}: expected a pair's vector whatever it is encoded with, got cosine "
            f"{figures['least_cosine_to_alone']} to the pair alone; the direction of its attention may be wrong"
        )
    if figures["golden"] is not None and figures["golden"] < NEAR:
        raise WorkError(f"{job.model}: expected the vectors of {GOLDEN}, got cosine {figures['golden']}")
    return figures


def marked(config: CaseConfig, template: Template, sentence: str, condition: str) -> str:
    """The tokens of a prompt, those pooled between >> and <<."""
    tokenizer = load_tokenizer(config.encoder)
    (found,) = tokenizer([template.render(sentence, condition)])
    if found.refused:
        return f"refused: {found.refused}"
    places = torch.tensor([[found.start], [found.end], [len(found.ids)]])
    first, stop = (int(t) for t in pooled_spans(config.encoder.pooling[0], *places))
    words = [tokenizer.tokenizer.id_to_token(i) or f"#{i}" for i in found.ids]
    return " ".join([*words[:first], ">>", *words[first:stop], "<<", *words[stop:]])


def _compare(job: CheckJob, config: CaseConfig, system: Case) -> float | None:
    """The least cosine to the golden vectors; None where there are none."""
    source = config.encoder.source
    folder = config.local or (fetch(source, large=False) if is_remote(source) else Path(source))
    file = folder / GOLDEN
    if job.save_golden:
        if not folder.is_dir() or is_remote(job.model):
            raise RequestError(f"--save-golden: expected a model folder on this machine, got {job.model}")
        vectors = [
            {"sentence": s, "condition": c, "vector": [float(x) for x in system.embed([s], c)[0]]}
            for c in CONDITIONS
            for s in SENTENCES
        ]
        file.write_text(json.dumps({"label": _label(config), "vectors": vectors}), encoding="utf-8")
        print(f"\nwrote {file}")
    if not file.is_file():
        return None
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        label = saved["label"]
        golden = [(g["sentence"], g["condition"], np.array(g["vector"], dtype=np.float32)) for g in saved["vectors"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{file}: expected a label, and sentence, condition and vector, got {error!r}") from error
    if label != _label(config) or not golden:
        print(f"\nnot compared: {file.name} has {len(golden)} vectors of {label!r}, these are of {_label(config)!r}")
        return None
    found: list[float] = []
    for sentence, condition, vector in golden:
        own = system.embed([sentence], condition)
        if own[0].shape != vector.shape:
            raise RequestError(f"{file}: expected vectors of {own.shape[1]} dimensions, got {vector.shape}")
        found.append(float(cosines(own, vector[None])[0]))
    print(f"\ncosine to {len(golden)} golden vectors: at least {min(found):.5f}")
    return round(min(found), 5)


def _label(config: CaseConfig) -> str:
    """What decides the vectors besides the model."""
    return f"{config.encoder.prompt}, {config.encoder.pooling[0]}, {'minus base' if config.subtract else 'as it is'}"
