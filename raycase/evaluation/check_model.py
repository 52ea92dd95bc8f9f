"""The command check-model: shows an encoder's tokens, pooled span, norms and similarities, and compares its vectors."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

from raycase.data.fetch import fetch, is_encoder_too, is_remote, model_folder
from raycase.data.json_values import loads
from raycase.data.places import JSON, File, check_paths
from raycase.encoder.cosines import cosines
from raycase.encoder.pooling import pooled_spans
from raycase.encoder.prompt_flags import PromptFlags, prompt_file
from raycase.encoder.prompts import Template
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS
from raycase.errors import MOST_SHOWN, RequestError, WorkError, check_ranges, visible
from raycase.systems.case import Case, CaseConfig
from raycase.systems.case import resolve as resolve_case
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
class CheckJob(PromptFlags):
    """Embed a few pairs, show tokens, norms and similarities, and fail if the vectors are wrong."""

    model: tyro.conf.Positional[str]
    """Name in the table of encoders, Hugging Face id, or folder."""
    compute: Literal["bfloat16", "float32"] | None = None
    """Number format inside the encoder. Default: bfloat16 where the processor is faster with it."""
    golden: str | None = None
    """File of vectors to compare with, as the authors' code gives them. Default: golden.json in the model's folder."""
    save_golden: bool = False
    """Write these vectors into that file, for later checks to compare with."""


def check_model(job: CheckJob) -> dict[str, Any]:
    """Print what an encoder does with a few pairs; returns the figures.

    Compares with `golden.json` in the model's folder, or the file of --golden: `label` (prompt, pooling and
    subtraction) and `vectors`, a list of {sentence, condition (or null), vector}, from the authors' code or an earlier
    check. Raises RequestError; WorkError if a vector is not finite, depends on the rest of its batch, or differs from
    the golden one.
    """
    check_ranges(job)
    opens = {"MODEL": model_folder(job.model)} | ({} if job.save_golden else {"--golden": job.golden})
    reads = {"--prompt": prompt_file(job.prompt)}
    check_paths(reads=reads, opens=opens, writes={"--golden": File(job.golden, JSON)} if job.save_golden else {})
    if is_encoder_too(job.model) and job.prompt:
        config: Any = resolve_case(job.model, **job.text_choices, subtract=job.subtract)
    else:
        config = resolve(job.model, **job.prompt_choices)
    if not isinstance(config, CaseConfig):
        source = config.encoder.source
        encoder = next((name for name, row in ENCODERS.items() if row.source == source), source)
        raise RequestError(
            f"{job.model}: expected an encoder under a prompt, or a projector on one, got {config.label}; its encoder "
            f"can be checked: {encoder} with --prompt"
        )
    return check_config(job, config)


def check_config(job: CheckJob, config: CaseConfig) -> dict[str, Any]:
    """`check_model` of a resolved encoder."""
    file = _golden_file(job, config)
    system = config.load(dtype=None if job.compute is None else getattr(torch, job.compute))
    spec, model = config.encoder, system.encoder.model
    attention = "causal" if spec.causal else "bidirectional"
    source = visible(spec.source)
    print(f"{source}: {config.dim} dimensions, {spec.pooling[0]}, {attention}, at most {spec.max_tokens} tokens")
    print(f"{type(model).__name__} in {model.dtype} on {model.device}\n")
    for line in own_lines(config):
        print(visible(line))
    for view, prompts in zip(spec.prompt.split("+"), config.prompts, strict=True):
        shown = [template for template in (prompts.pair, prompts.base, prompts.plain) if template]
        print(
            f"{view}, {'its base, ' if prompts.base else ''}and the sentence alone (pooled tokens between >> and <<):"
        )
        for template in shown:
            print("  " + visible(marked(config, template, SENTENCES[0], str(CONDITIONS[0])), MOST_SHOWN))
    vectors = [system.embed(SENTENCES, [c] * len(SENTENCES) if c else None) for c in CONDITIONS]
    alone = [np.concatenate([system.embed([s], c) for s in SENTENCES]) for c in CONDITIONS]
    for condition, vectors_SD in zip(CONDITIONS, vectors, strict=True):
        _print_similarities(condition or "sentences alone", vectors_SD)
    figures = {
        "model": job.model,
        "dim": config.dim,
        "finite": all(np.isfinite(v).all() for v in vectors),
        "least_cosine_to_alone": round(float(np.min([cosines(a, b) for a, b in zip(vectors, alone, strict=True)])), 5),
    }
    print()
    _check_figures(figures)
    golden = figures["golden"] = _compare(job, config, system, file)
    if golden is not None and not golden >= NEAR:
        raise WorkError(f"{job.model}: expected the vectors of {file.name}, got cosine {golden}")
    return figures


def _print_similarities(title: str, vectors_SD: np.ndarray) -> None:
    """Norms, and the cosine of every two vectors."""
    norms = np.linalg.norm(vectors_SD, axis=1)
    print(f"\n{title}: norms {', '.join(f'{n:.3g}' for n in norms)}")
    for sentence, vector_D in zip(SENTENCES, vectors_SD, strict=True):
        print("  " + "  ".join(f"{cosine:6.3f}" for cosine in cosines(vectors_SD, vector_D)) + f"  {sentence}")


def _check_figures(figures: dict[str, Any]) -> None:
    """Raises WorkError for figures of a wrong encoder."""
    model, alone = figures["model"], figures["least_cosine_to_alone"]
    if not figures["finite"]:
        raise WorkError(f"{model}: expected finite vectors, got NaN or infinity; try --compute float32")
    if not alone >= NEAR:
        raise WorkError(
            f"{model}: expected the same vector in a batch and alone, got cosine {alone}; the direction of its "
            "attention may be wrong"
        )


def marked(config: CaseConfig, template: Template, sentence: str, condition: str) -> str:
    """The tokens of a prompt, the pooled ones between >> and <<."""
    tokenizer = load_tokenizer(config.encoder)
    (prompt,) = tokenizer([template.render(sentence, condition)])
    if prompt.refused:
        return f"refused: {prompt.refused}"
    bounds = torch.tensor([[prompt.start], [prompt.end], [len(prompt.ids)]])
    first, stop = (int(t) for t in pooled_spans(config.encoder.pooling[0], *bounds))
    words = [tokenizer.tokenizer.id_to_token(i) or f"#{i}" for i in prompt.ids]
    return " ".join([*words[:first], ">>", *words[first:stop], "<<", *words[stop:]])


def _golden_file(job: CheckJob, config: CaseConfig) -> Path:
    """Where the golden vectors are, or will be. Raises RequestError where they cannot be read, or written."""
    source = config.encoder.source
    if job.golden is None:
        folder = config.local or (fetch(source, large=False) if is_remote(source) else Path(source))
        if job.save_golden and (not folder.is_dir() or is_remote(job.model)):
            raise RequestError(f"--save-golden: expected a model folder on this machine, got {job.model}")
        return folder / GOLDEN
    file = Path(job.golden)
    if job.save_golden and not file.parent.is_dir():
        raise RequestError(f"--golden: expected a file in a folder on this machine, got {job.golden}")
    if job.save_golden and file.is_file() and not _is_golden(file):
        raise RequestError(f"--golden: expected a new file or one of vectors, got {file}, which is none")
    if not job.save_golden and not file.is_file():
        raise RequestError(f"--golden: expected a file of vectors, got none at {file}; --save-golden writes it")
    return file


def _is_golden(file: Path) -> bool:
    """Whether a file that would be written over is one of golden vectors."""
    try:
        return "vectors" in loads(file.read_bytes())
    except (ValueError, TypeError):
        return False


def _compare(job: CheckJob, config: CaseConfig, system: Case, file: Path) -> float | None:
    """The least cosine to the golden vectors; None if there are none. Writes them first for --save-golden."""
    if job.save_golden:
        vectors = [
            {"sentence": s, "condition": c, "vector": [float(x) for x in system.embed([s], c)[0]]}
            for c in CONDITIONS
            for s in SENTENCES
        ]
        file.write_text(json.dumps({"label": _label(config), "vectors": vectors}), encoding="utf-8")
        print(f"\nwrote {visible(file)}")
    if not file.is_file():
        return None
    try:
        saved = loads(file.read_text(encoding="utf-8"))
        label = saved["label"]
        golden = [(g["sentence"], g["condition"], np.array(g["vector"], dtype=np.float32)) for g in saved["vectors"]]
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{file}: expected a label, and sentence, condition and vector, got {error!r}") from error
    if label != _label(config) or not golden:
        print(
            visible(
                f"not compared: {file.name} has {len(golden)} vectors of {label!r}, not of {_label(config)!r}",
                MOST_SHOWN,
            )
        )
        return None
    to_golden: list[float] = []
    for sentence, condition, golden_D in golden:
        vectors_1D = system.embed([sentence], condition)
        if vectors_1D[0].shape != golden_D.shape:
            raise RequestError(f"{file}: expected vectors of {vectors_1D.shape[1]} dimensions, got {golden_D.shape}")
        to_golden.append(float(cosines(vectors_1D, golden_D[None])[0]))
    least = float(np.min(to_golden))  # NaN if one is
    print(f"\ncosine to {len(golden)} golden vectors: at least {least:.5f}")
    return round(least, 5)


def own_lines(config: CaseConfig) -> list[str]:
    """A prompt of one's own as its file has it, a line each key; none of a built-in one."""
    own = config.encoder.chosen["own"]
    return [f"{name}: {str(value)!r}" for name, value in asdict(own).items() if value] if own else []


def _label(config: CaseConfig) -> str:
    """What decides the vectors besides the model."""
    subtracted = "minus base" if config.subtract else "as it is"
    return ", ".join([config.encoder.prompt, config.encoder.pooling[0], subtracted, *own_lines(config)])
