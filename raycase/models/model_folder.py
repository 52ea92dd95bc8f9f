"""Model folders: written by training, read by `raycase.load`. `raycase.json` is written last: it marks a whole one."""

from pathlib import Path
from typing import Any

from torch import nn

from raycase.encoder.library_files import CONFIG, MODULES, POOLING, PROMPTS, SETTINGS
from raycase.encoder.model_files import CARD, ENCODER_WEIGHTS, METRICS, MODEL_FILE
from raycase.encoder.sources import TOKENIZER
from raycase.errors import RequestError
from raycase.heads.condition_head import WEIGHTS as HEAD
from raycase.heads.projector import WEIGHTS, save_weights
from raycase.io.places import claim
from raycase.io.storage import locate

EXTRA = "extra.safetensors"  # weights that are not the encoder's
ENCODER = "encoder"  # a folder
VOCABULARIES = ("vocab.txt", "vocab.json", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
OF_TOKENIZER = ("tokenizer.json", TOKENIZER, "chat_template.jinja", "special_tokens_map.json", *VOCABULARIES)
# An encoder that others read, too, is in no folder of its own. Without its configuration it is none: that comes last.
AT_ROOT = (*OF_TOKENIZER, ENCODER_WEIGHTS, POOLING, SETTINGS, PROMPTS, MODULES, CONFIG)
WRITTEN = (MODEL_FILE, *reversed(AT_ROOT), METRICS, CARD, EXTRA, WEIGHTS, HEAD, ENCODER)


def open_model_folder(folder: Path, fingerprint: str, *, overwrite: bool = False) -> dict[str, Any] | None:
    """The metrics of the finished model with this fingerprint in a folder; None if there is none yet."""
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
    return metrics if (root / MODEL_FILE).exists() else None


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


def begin_folder(folder: Path, metrics: dict[str, Any], card: str) -> None:
    """Remove an earlier model, and write the metrics and the model card; the model follows."""
    root = locate(str(folder))
    for half in root.half_written():
        half.remove()
    remove_model(folder)
    (root / METRICS).put_json(metrics)
    (root / CARD).put(card.encode())


def write_folder(folder: Path, config: Any, module: nn.Module, metrics: dict[str, Any], card: str) -> None:
    """Write the model folder of a system whose encoder stands elsewhere; module: what was trained above it."""
    begin_folder(folder, metrics, card)
    save_weights(module, folder / config.WEIGHTS)
    config.write(folder)
