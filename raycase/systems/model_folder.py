"""Model folders: written by training, read by `raycase.load`. `raycase.json` is written last: it marks a whole one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from raycase.data.claim import claim
from raycase.data.fetch import CARD, ENCODER_WEIGHTS, METRICS, MODEL_FILE
from raycase.data.json_values import loads
from raycase.data.storage import locate
from raycase.encoder.published import CONFIG, MODULES, POOLING, PROMPTS, SETTINGS
from raycase.encoder.sources import TOKENIZER
from raycase.errors import RequestError, first_line
from raycase.systems.condition_head import WEIGHTS as HEAD
from raycase.systems.projector import WEIGHTS

EXTRA = "extra.safetensors"  # weights that are not the encoder's
ENCODER, ADAPTER = "encoder", "adapter"  # folders, the latter of version 0.2
VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OF_TOKENIZER = ("tokenizer.json", TOKENIZER, "chat_template.jinja", "special_tokens_map.json", *VOCABULARIES)
# An encoder that others read, too, is in no folder of its own. Without its configuration it is none: that comes last.
AT_ROOT = (*OF_TOKENIZER, ENCODER_WEIGHTS, POOLING, SETTINGS, PROMPTS, MODULES, CONFIG)
WRITTEN = (MODEL_FILE, *reversed(AT_ROOT), METRICS, CARD, EXTRA, WEIGHTS, HEAD, ENCODER, ADAPTER)


def open_model_folder(folder: Path, fingerprint: str, *, overwrite: bool = False) -> dict[str, Any] | None:
    """The metrics of the finished model with this fingerprint in a folder; None if there is none yet.

    Raises RequestError for a folder that holds another model, unless `overwrite`, and for somebody else's encoder.
    """
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"--output: expected a folder, got the file {folder}")
    root = locate(str(folder))
    if overwrite and not any((root / name).exists() for name in (METRICS, MODEL_FILE)):
        for name in AT_ROOT:
            if (root / name).exists():
                raise RequestError(
                    f"--output: expected a model that training wrote in {root.uri}, or none, got {name} without "
                    f"{METRICS}; choose another folder"
                )
    results = [name for name in WRITTEN if name != METRICS]
    metrics = claim(root, METRICS, fingerprint, job="this very model", results=results, overwrite=overwrite)
    if metrics is None or not (root / MODEL_FILE).exists():
        return None
    _check_whole(folder)
    return metrics


def _check_whole(folder: Path) -> None:
    """Raise RequestError where a file of a finished model was cut off: it is no result of the job."""
    parts = [folder / name for name in WRITTEN]
    for file in [*parts, *(file for part in parts for file in part.rglob("*"))]:
        try:
            if file.suffix == ".json" and file.is_file():
                loads(file.read_bytes())
            elif file.suffix == ".safetensors" and file.is_file():
                with safe_open(file, "np"):
                    pass
        except (OSError, ValueError, SafetensorError) as error:
            raise RequestError(
                f"--output: expected a whole model in {folder}, got in {file.relative_to(folder)}: "
                f"{first_line(error)}; pass --overwrite to train it again"
            ) from error


def remove_model(folder: Path) -> None:
    """Remove an earlier model, what makes it one first, but for its metrics and its card."""
    for name in WRITTEN:
        if name not in (METRICS, CARD):
            locate(str(folder / name)).remove()


def move_to_root(folder: Path) -> None:
    """Move a saved encoder out of its own folder, its configuration last."""
    for name in AT_ROOT:
        if (folder / ENCODER / name).exists():
            (folder / ENCODER / name).rename(folder / name)
    if not any((folder / ENCODER).iterdir()):  # what other libraries' versions write besides stays there
        (folder / ENCODER).rmdir()


def write_folder(folder: Path, metrics: dict[str, Any], card: str, save: Callable[[Path], None]) -> None:
    """Write the metrics and the model card, then the model with `save`, whose last file is `raycase.json`."""
    root = locate(str(folder))
    for half in root.half_written():
        half.remove()
    remove_model(folder)
    (root / METRICS).put_json(metrics)
    (root / CARD).put(card.encode())
    save(folder)
