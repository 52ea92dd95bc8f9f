"""Weights that are published as `pytorch_model.bin` alone: read as tensors and nothing else, kept as safetensors."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import torch
from filelock import FileLock
from safetensors.torch import save_file
from torch import Tensor

from raycase.data.fetch import ENCODER_WEIGHTS, WEIGHTS_INDEX, cache_folder, check_no_pointer
from raycase.data.json_values import loads
from raycase.data.storage import fingerprint
from raycase.encoder.model_files import check_names, of_folder

BIN, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def pickled_files(folder: str, pinned: dict[str, str]) -> list[Path]:
    """The weights of a folder or Hugging Face id that has none in safetensors, as transformers chooses them: in one
    file, else in shards; empty where safetensors are. Raises ValueError where there are none, and for an index that
    names what is not there, or elsewhere."""
    if any(of_folder(folder, name, pinned) for name in (ENCODER_WEIGHTS, WEIGHTS_INDEX)):
        return []
    if file := of_folder(folder, BIN, pinned):
        return [file]
    index = of_folder(folder, BIN_INDEX, pinned)
    if index is None:
        raise ValueError("no model.safetensors or pytorch_model.bin, nor an index of shards of either")
    names = sorted(set(loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    check_names(BIN_INDEX, names, ".bin")
    files = {name: of_folder(folder, name, pinned) for name in names}
    for name in names:
        if files[name] is None:
            raise ValueError(f"no {name}, which {BIN_INDEX} names")
    return [file for file in files.values() if file]


def as_safetensors(files: list[Path], identity: str) -> Path:
    """A folder of the cache with the tensors of these files, made once for each identity of weights.

    Raises ValueError for a file that holds anything else.
    """
    folder = cache_folder() / f"weights-{fingerprint([identity, *(file.name for file in files)])[:16]}"
    target = folder / ENCODER_WEIGHTS
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # the first process reads them, the others wait for it
        if target.is_file():
            return folder
        tensors = {name: tensor for file in files for name, tensor in _tensors(file).items()}
        temporary = folder / f".{uuid.uuid4().hex}"
        try:
            save_file(tensors, temporary, metadata={"format": "pt"})
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
    return folder


def _tensors(file: Path) -> dict[str, Tensor]:
    check_no_pointer(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # its words advise to load whatever the file holds
        raise ValueError(f"{file.name} that holds more than tensors, or is cut off ({type(error).__name__})") from error
    values = found.items() if isinstance(found, dict) else [("", found)]
    for name, value in values:
        if not (isinstance(name, str) and name and isinstance(value, Tensor) and value.layout is torch.strided):
            raise ValueError(f"{file.name} with a {type(value).__name__} in it, expected tensors by name")
    return {name: value.detach().clone().contiguous() for name, value in values}  # safetensors holds no views
