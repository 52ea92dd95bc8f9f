"""Publishing a model folder on the Hugging Face hub, from which `raycase.load("owner/name")` reads it."""

import re
from pathlib import Path
from typing import Any

from huggingface_hub import CommitOperationAdd, HfApi, ModelCard, ModelCardData

from raycase.encoder.model_files import MODEL_FILE, is_trained
from raycase.errors import RequestError, WorkError, expecting, visible
from raycase.io.json_values import loads
from raycase.models.model_folder import CARD, METRICS, WRITTEN
from raycase.models.registry import resolve


def push(folder: str, repository: str, *, private: bool = False) -> str:
    """Upload a folder's model, its card with front matter for the hub; returns the commit.

    Raises RequestError for what is no finished model folder or needs files that others have not, and WorkError where
    the hub refuses.
    """
    root = Path(folder)
    if not is_trained(folder) or not root.is_dir():
        raise RequestError(f"FOLDER: expected a model folder with {MODEL_FILE}, got {folder}")
    config = resolve(folder)
    source = loads((root / MODEL_FILE).read_bytes())["encoder"]["source"]
    if not source.startswith(("./", "package:")) and (Path(source).exists() or "://" in source):
        raise RequestError(
            f"FOLDER: expected an encoder that others can load, got the folder {visible(source)}; train on its "
            "Hugging Face id"
        )
    metrics = loads((root / METRICS).read_bytes()) if (root / METRICS).is_file() else {}
    card = _card(root, repository, source, metrics)
    files = [file for name in WRITTEN for file in (root / name, *(root / name).rglob("*")) if file.is_file()]
    added = [CommitOperationAdd(str(file.relative_to(root)), file) for file in files if file != root / CARD]
    added.append(CommitOperationAdd(CARD, str(card).encode()))
    api = HfApi()
    with expecting(f"{repository}: expected the hub to take the model", OSError, ValueError, raises=WorkError):
        api.create_repo(repository, private=private, exist_ok=True)
        done = api.create_commit(repository, added, commit_message=f"{config.label}, by raycase")
    return done.oid


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
