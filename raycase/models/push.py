"""Publishing a model folder on the Hugging Face hub, from which `raycase.load("owner/name")` reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, ModelCardData

from raycase.errors import RequestError, WorkError, expecting, visible
from raycase.io.json_values import loads
from raycase.io.model_files import MODEL_FILE, is_trained
from raycase.models.model_folder import CARD, METRICS, WRITTEN
from raycase.models.registry import resolve


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
    """Upload a folder's model, its card with front matter for the hub; returns the commit.

    Raises RequestError for what is no finished model folder or needs files that others have not, and WorkError where
    the hub refuses.
    """
    folder = Path(flags.folder)
    if not is_trained(flags.folder) or not folder.is_dir():
        raise RequestError(f"FOLDER: expected a model folder with {MODEL_FILE}, got {flags.folder}")
    config = resolve(flags.folder)
    source = loads((folder / MODEL_FILE).read_bytes())["encoder"]["source"]
    if not source.startswith(("./", "package:")) and (Path(source).exists() or "://" in source):
        raise RequestError(
            f"FOLDER: expected an encoder that others can load, got the folder {visible(source)}; train on its "
            "Hugging Face id"
        )
    metrics = loads((folder / METRICS).read_bytes()) if (folder / METRICS).is_file() else {}
    card = _card(folder, flags.repository, source, metrics)
    files = [file for name in WRITTEN for file in (folder / name, *(folder / name).rglob("*")) if file.is_file()]
    added = [CommitOperationAdd(str(f.relative_to(folder)), f) for f in files if f != folder / CARD]
    added.append(CommitOperationAdd(CARD, str(card).encode()))
    api = HfApi()
    with expecting(f"{flags.repository}: expected the hub to take the model", OSError, ValueError, kind=WorkError):
        api.create_repo(flags.repository, private=flags.private, exist_ok=True)
        done = api.create_commit(flags.repository, added, commit_message=f"{config.label}, by raycase")
    return {"repository": flags.repository, "commit": done.oid, "model": f"{flags.repository}@{done.oid}"}


def _card(folder: Path, repository: str, source: str, metrics: dict[str, Any]) -> ModelCard:
    """The folder's card, with what the hub reads before it."""
    datasets = {part["dataset"] for part in metrics.get("data", {}).values() if "dataset" in part}
    base = None if source.startswith(("./", "package:")) else source.partition("@")[0]
    data = ModelCardData(
        base_model=base,
        datasets=sorted(datasets) or None,
        library_name="raycase",
        pipeline_tag="sentence-similarity",
        tags=["raycase", "sentence-embeddings"],
    )
    text = (folder / CARD).read_text(encoding="utf-8") if (folder / CARD).is_file() else f"# {repository}\n"
    if here := re.search(r'raycase\.load(\(".*"\))  # the path of this folder', text):
        text = text.replace(here[0], f"raycase.load{here[1]}").replace(here[1], f'("{repository}")')
    return ModelCard(f"---\n{data.to_yaml()}\n---\n\n{text}")
