"""The command push: a model folder on the Hugging Face hub, from which `raycase.load("owner/name")` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from raycase.errors import RequestError, WorkError, expecting, visible

if TYPE_CHECKING:
    from huggingface_hub import ModelCard

EXAMPLE = "raycase push runs/pooling owner/name"


@dataclass(frozen=True, kw_only=True)
class PushFlags:
    """Publish a model folder on the Hugging Face hub, with your token (`hf auth login`, or HF_TOKEN)."""

    folder: tyro.conf.Positional[str]
    """What `raycase train` wrote."""
    repository: tyro.conf.Positional[str]
    """owner/name; created if it does not exist."""
    private: bool = False
    """Make a new repository private."""


def push(flags: PushFlags) -> dict[str, Any]:
    """Publish a model folder on the Hugging Face hub."""
    from huggingface_hub import CommitOperationAdd, HfApi

    from raycase.encoder.model_files import MODEL_FILE, is_trained
    from raycase.io.json_values import loads
    from raycase.models.model_folder import CARD, METRICS, WRITTEN
    from raycase.models.registry import resolve

    root, repository = Path(flags.folder), flags.repository
    if not is_trained(flags.folder) or not root.is_dir():
        raise RequestError(f"FOLDER: expected a model folder with {MODEL_FILE}, got {flags.folder}")
    config = resolve(flags.folder)
    source = loads((root / MODEL_FILE).read_bytes())["encoder"]["source"]
    base = None if source.startswith(("./", "package:")) else source.partition("@")[0]
    if base and (Path(source).exists() or "://" in source):
        raise RequestError(
            f"FOLDER: expected an encoder that others can load, got the folder {visible(source)}; train on its "
            "Hugging Face id"
        )
    metrics = loads((root / METRICS).read_bytes()) if (root / METRICS).is_file() else {}
    text = (root / CARD).read_text(encoding="utf-8") if (root / CARD).is_file() else f"# {repository}\n"
    card = _published(text, repository, base, metrics)
    files = [file for name in WRITTEN for file in (root / name, *(root / name).rglob("*")) if file.is_file()]
    added = [CommitOperationAdd(str(file.relative_to(root)), file) for file in files if file != root / CARD]
    added.append(CommitOperationAdd(CARD, str(card).encode()))
    api = HfApi()
    with expecting(f"{repository}: expected the hub to take the model", OSError, ValueError, raises=WorkError):
        api.create_repo(repository, private=flags.private, exist_ok=True)
        done = api.create_commit(repository, added, commit_message=f"{config.label}, by raycase")
    model = f"{repository}@{done.oid}"
    print(f"raycase.load({repository!r}), or this very commit: {model}")
    return {"repository": repository, "commit": done.oid, "model": model}


def _published(card: str, repository: str, base: str | None, metrics: dict[str, Any]) -> ModelCard:
    """A folder's card by the name on the hub, with what the hub reads before it; base: the encoder's id."""
    from huggingface_hub import ModelCard, ModelCardData

    datasets = {part["dataset"] for part in metrics.get("data", {}).values() if "dataset" in part}
    data = ModelCardData(
        base_model=base,
        datasets=sorted(datasets) or None,
        library_name="raycase",
        pipeline_tag="sentence-similarity",
        tags=["raycase", "sentence-embeddings"],
    )
    if here := re.search(r'raycase\.load(\(".*"\))  # the path of this folder', card):
        card = card.replace(here[0], f"raycase.load{here[1]}").replace(here[1], f'("{repository}")')
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{card}")
