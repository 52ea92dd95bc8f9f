"""Which files of a model are read: those in its own folder, in formats that hold no code.

transformers reads more than it is asked for: pickles that an index names, a tokenizer elsewhere, an adapter
beside the weights. What leads there is refused before it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raycase.data.fetch import WEIGHTS_INDEX
from raycase.data.hub import file_of
from raycase.data.json_values import loads
from raycase.errors import RequestError

ADAPTER = "adapter_config.json"
TOKENIZER, TOKENIZER_FILE = "tokenizer_config.json", "tokenizer.json"
BESIDE_TOKENIZER, VOCABULARIES = (
    ("special_tokens_map.json", "added_tokens.json"),
    ("vocab.txt", "vocab.json", "merges.txt"),
)


def check_no_adapter(folder: str) -> None:
    """Raise RequestError for the folder of an adapter, which transformers would add to the weights, if peft is there,
    and whose encoder it would look for elsewhere."""
    here = Path(folder)
    if not (here / ADAPTER).is_file():
        return
    raise RequestError(
        f"--model: expected an encoder, got a LoRA adapter in {folder} ({ADAPTER}); merge the adapter into its encoder "
        "(merge_and_unload of peft) and pass the folder of both"
    )


def check_weights(folder: str, pinned: dict[str, str]) -> None:
    """Raise ValueError for weights of a folder or Hugging Face id that are not safetensors within it: an index may
    name any file as a shard, and an adapter is read from where it likes."""
    if not Path(folder).is_dir() and of_folder(folder, ADAPTER, pinned):
        raise ValueError(f"a LoRA adapter ({ADAPTER}), which has to be merged into its encoder")
    if index := of_folder(folder, WEIGHTS_INDEX, pinned):
        shards = set(loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        check_names(WEIGHTS_INDEX, shards, ".safetensors")


def check_tokenizer(folder: str, pinned: dict[str, str]) -> None:
    """Raise ValueError for a tokenizer of a folder or Hugging Face id that is to be read from another one, and
    RequestError where it is not known whether there is a file: transformers would do without it."""
    if file := of_folder(folder, TOKENIZER, pinned, sure=True):
        check_names(TOKENIZER, loads(file.read_text(encoding="utf-8")).get("fast_tokenizer_files", ()), ".json")
    whole = of_folder(folder, TOKENIZER_FILE, pinned)
    for name in BESIDE_TOKENIZER if whole else BESIDE_TOKENIZER + VOCABULARIES:
        of_folder(folder, name, pinned)


def check_names(file: str, names: Any, ending: str) -> None:
    """Raise ValueError for names that are not those of files in the same folder with this ending."""
    for name in names:
        if Path(name).name != name or not name.endswith(ending):
            raise ValueError(f"{name!r:.80} in {file}, expected names of *{ending} in the same folder")


def of_folder(folder: str, name: str, pinned: dict[str, str], *, sure: bool = False) -> Path | None:
    """A file of a folder here or of a Hugging Face id; None where there is none. `sure`: as `file_of`, which raises
    RequestError where that is not known. Raises it for a name that leads out of the folder, too."""
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise RequestError(f"--model: expected a file within {folder}, got {name!r}")
    if Path(folder).is_dir():
        return Path(folder) / name if (Path(folder) / name).is_file() else None
    return file_of(folder, name, pinned["revision"], sure=sure)
