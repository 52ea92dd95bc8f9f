"""Model folders on object storage: fetched once a machine, into a cache that all its processes share."""

from __future__ import annotations

import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from filelock import FileLock

from raycase.data.storage import STORE_ERRORS, fingerprint, locate, mark
from raycase.errors import RequestError, first_line

LARGE = 64 * 2**20  # bytes; larger files are weights, which only those who encode need
NEVER = re.compile(r"\.(bin|pt|pth|ckpt|h5|msgpack|onnx|pkl|pickle|py)$|(^|/)\.")  # pickles, code, other formats


def is_remote(model: str) -> bool:
    """Whether a model is on object storage."""
    return "://" in model


def remote_identity(uri: str) -> str:
    """What names the files at a URI for good, wherever they are copied to with their marks: names, sizes, ETags.

    Raises RequestError where there are none.
    """
    return f"listing:{fingerprint(sorted(_files(uri).items()))}"


def fetch(uri: str, *, large: bool, named: str = "") -> Path:
    """A local copy of the folder at a URI, with its large files or without; the processes of a machine share it.

    Of the large files the one that is `named` comes in any case.

    It is kept in RAYCASE_CACHE (~/.cache/raycase) under a name that the listing decides, so that another model at the
    same URI is another copy. Raises RequestError where there is none, or it cannot be read.
    """
    files = _files(uri)
    folder = _cache() / fingerprint([uri, sorted(files.items())])[:16]
    wanted = [name for name, (size, _) in files.items() if large or size <= LARGE or name == named]
    if all((folder / name).exists() for name in wanted):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # the first process fetches, the others wait for it
        missing = [name for name in wanted if not (folder / name).exists()]
        try:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda name: _fetch_file(uri, name, folder, files[name][0]), missing))
        except STORE_ERRORS as error:
            raise RequestError(f"--model: expected a readable folder at {uri}, got: {first_line(error)}") from error
    return folder


def _fetch_file(uri: str, name: str, folder: Path, size: int) -> None:
    """Whole, or not at all."""
    source = locate(uri) / name
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        source.fs.get_file(source.path, str(temporary))
        if temporary.stat().st_size != size:
            raise OSError(f"{source.uri}: {temporary.stat().st_size} of {size} bytes came")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _files(uri: str) -> dict[str, tuple[int, str]]:
    """Name within the folder -> size and mark, of all that a model may consist of."""
    root = locate(uri)
    root.fs.invalidate_cache()
    try:
        found = root.fs.find(root.path, detail=True)
    except STORE_ERRORS as error:
        raise RequestError(f"--model: expected to list {root.uri}, got: {first_line(error)}") from error
    inside = len(root.path) + 1
    files = {path[inside:]: (info["size"], mark(info)) for path, info in found.items() if info["type"] == "file"}
    files = {name: listed for name, listed in files.items() if name and not NEVER.search(name)}
    if not {"config.json", "raycase.json", "adapter_config.json"} & files.keys():
        raise RequestError(
            f"--model: expected a folder with config.json or raycase.json at {root.uri}, got "
            f"{', '.join(sorted(files)[:3]) or 'nothing'}"
        )
    return files


def _cache() -> Path:
    return Path(os.environ.get("RAYCASE_CACHE", "~/.cache/raycase")).expanduser() / "models"
