"""Model folders: written by training, read by `raycase.load`. `raycase.json` is written last: it marks a whole one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_safetensors
from torch import nn

from raycase.data.claim import claim
from raycase.data.fetch import MODEL_FILE
from raycase.data.json_values import from_json, loads
from raycase.data.storage import locate
from raycase.encoder.loading import save_encoder
from raycase.encoder.table import HERE, read_spec
from raycase.errors import RequestError, first_line
from raycase.systems.condition_head import WEIGHTS as HEAD
from raycase.systems.projector import WEIGHTS
from raycase.systems.weights import load_weights

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raycase.systems.fine_tuned_config import FineTunedConfig

METRICS, CARD = "metrics.json", "README.md"
EXTRA = "extra.safetensors"  # weights that are not the encoder's
ENCODER, ADAPTER = "encoder", "adapter"  # folders
WRITTEN = (MODEL_FILE, METRICS, CARD, EXTRA, WEIGHTS, HEAD, ENCODER, ADAPTER)


def open_model_folder(folder: Path, fingerprint: str, *, overwrite: bool = False) -> dict[str, Any] | None:
    """The metrics of the finished model with this fingerprint in a folder; None if there is none yet.

    Raises RequestError for a folder that holds another model, unless `overwrite`.
    """
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"--output: expected a folder, got the file {folder}")
    root = locate(str(folder))
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


def write_folder(folder: Path, metrics: dict[str, Any], card: str, save: Callable[[Path], None]) -> None:
    """Write the metrics and the model card, then the model with `save`, whose last file is `raycase.json`."""
    root = locate(str(folder))
    for half in root.half_written():
        half.remove()
    (root / MODEL_FILE).remove()
    (root / METRICS).put_json(metrics)
    (root / CARD).put(card.encode())
    save(folder)


# ------------------------------------------------------------------------------------- the files of a fine-tuned system


def save_folder(
    config: FineTunedConfig,
    folder: Path,
    model: PreTrainedModel | None = None,
    *,
    adapters: Any = None,
    extra: nn.Module | None = None,
) -> None:
    """Write the encoder (None: its source is unchanged), adapters (of peft), extra weights and, last, `raycase.json`.

    `raycase.load(folder)` reads them back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for subfolder in (ENCODER, ADAPTER):
        locate(str(folder / subfolder)).remove()
    source, adapter = config.encoder.source, None
    if adapters is not None:
        adapters.save_pretrained(str(folder / "adapter"))
        adapter = f"{HERE}adapter"
    if model is not None:
        save_encoder(model, config.encoder, folder / "encoder")
        source = f"{HERE}encoder"
    if extra is not None:
        weights = {name: t.detach().cpu().contiguous() for name, t in extra.state_dict().items()}
        locate(str(folder / EXTRA)).put(to_safetensors(weights))
    row = replace(config.encoder, source=source, adapter=adapter).as_json()
    locate(str(folder / MODEL_FILE)).put_json({"system": config.SYSTEM, "encoder": row, **config.choices})


def load_extra(module: nn.Module, folder: Path | None) -> None:
    """Load the extra weights of a saved model; does nothing before training. Raises RequestError."""
    if folder is None:
        return
    # an encoder among them may have a word that is not finite: rows with it are rejected
    load_weights(module, folder / EXTRA, "the weights beside the encoder's", finite=False)


def read_folder(kind: type[Any], folder: str, values: dict[str, Any]) -> Any:
    """The config that `save_folder` wrote into `folder` (or URI); `values` is its `raycase.json`."""
    choices = {name: value for name, value in values.items() if name not in ("system", "encoder")}
    return from_json(kind, choices, model=folder, encoder=read_spec(values["encoder"]).at(folder), folder=folder)
