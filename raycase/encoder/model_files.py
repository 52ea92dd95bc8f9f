"""Where model folders are: on this machine, inside the package, on object storage, from which a machine fetches them
once, or one commit on the Hugging Face hub."""

import os
import re
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import huggingface_hub as hub  # which imports its client when it is used
from filelock import FileLock

from raycase.errors import RequestError, expecting
from raycase.errors import named as in_words
from raycase.io.storage import PACKAGE, fingerprint, locate, mark
from raycase.names import DEFAULT_MODEL

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
PINNED = re.compile(r"hf://([\w.-]+/[\w.-]+)@([0-9a-f]{40})(?:/(.+))?")  # repository, commit, subfolder
COMMIT = re.compile("[0-9a-f]{40}")
ADVICE = {  # by the type of an error of the hub
    "GatedRepoError": "accept its terms on the hub, and log in: hf auth login",
    "RevisionNotFoundError": "name a revision that it has",
}
DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(@[^/]+)?/.+")
WEIGHTS = "safetensors"
VOCABULARIES = ("model", "tsv", "tiktoken", "codes", "spm")
MODULE_WEIGHTS = (f"[0-9]_*/model.{WEIGHTS}", "[0-9]_*/pytorch_model.bin")  # small ones, of sentence-transformers
ENDINGS = ("json", WEIGHTS, "txt", "jinja", "md", *VOCABULARIES)  # endings of what is read
MODEL_FILE = "raycase.json"  # written last into a model folder; names its system
METRICS, CARD = "metrics.json", "README.md"  # of a model folder, and no part of the model
OF_MODELS = {"config.json", MODEL_FILE, "adapter_config.json"}  # of which a folder of a model has one
MPNET = "sentence-transformers/all-mpnet-base-v2@e8c3b32edf5434bc2275fc9bab85f82640a19130"
INSIDE = {DEFAULT_MODEL: "minilm", "mpnet-conditional-v3": MPNET}  # a model that ships -> its encoder
SHIPPED = {name: f"{PACKAGE}models/{name}" for name in INSIDE}  # -> its folder, wherever raycase is installed
MOST_POINTER = 1024  # bytes of one of Git LFS
ALWAYS_READ = ("config.json", "tokenizer.json", "model.safetensors")  # where they are there
LARGE_BYTES = 64 * 2**20  # larger files are weights, which only encoding needs
ENCODER_WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"  # with one of them none is pickled
PART = r"[^./\\:\0][^/\\:\0]*"  # of a path that stays in its folder, on any system; nothing hidden
FETCHED = re.compile(rf"(({PART}/)*){PART}\.({'|'.join(ENDINGS)})")  # settings, weights, vocabularies: no code
PICKLED = re.compile(rf"(({PART}/)*)pytorch_model[^/\\:\0]*\.bin")  # weights, of which only tensors are read


def is_remote(model: str) -> bool:
    """Whether a model is on object storage."""
    return "://" in model


def is_trained(model: str) -> bool:
    """Whether a model is one that ships, or a model folder on this machine."""
    return model in SHIPPED or (Path(model) / MODEL_FILE).is_file()


def model_folder(model: str | None) -> str | None:
    """The folder that a model is read from, behind the prefix of its system; None for a name."""
    if model is None or model in SHIPPED:
        return None
    folders = (model, model.partition(":")[2])
    return next(
        (f for f in folders if re.match(r"\w+://", f) or any((Path(f) / name).is_file() for name in OF_MODELS)), None
    )


def remote_identity(uri: str) -> str:
    """Identifies the files at a URI for good, by their names, sizes and marks (ETags)."""
    if PINNED.fullmatch(uri):
        return uri.removeprefix("hf://")  # a commit is for good
    files = _files(uri)
    besides = {METRICS, CARD} if MODEL_FILE in files else set()  # a trained encoder is beside them
    return f"listing:{fingerprint(sorted((name, at) for name, at in files.items() if name not in besides))}"


def fetch(uri: str, *, large: bool = False, named: str = "") -> Path:
    """A copy on this machine of the folder at a URI, which its processes share, or a folder that is here; of remote
    files above LARGE_BYTES only the one called `named`, unless `large`. The copy is in RAYCASE_CACHE (~/.cache/raycase)
    under a hash of the URI and its listing, so that another model at the same URI is another copy; of a commit on the
    Hugging Face hub it is the hub's own."""
    if not is_remote(uri):
        return check_no_pointers(Path(locate(uri).path))
    if pinned := PINNED.fullmatch(uri):
        with expecting(f"--model: expected a readable model at {uri}", OSError, ValueError):
            folder = _snapshot(*pinned.groups(), large=large, named=named)
        return check_no_pointers(folder)
    files = _files(uri)
    cache = Path(os.environ.get("RAYCASE_CACHE", "~/.cache/raycase")).expanduser() / "models"
    folder = cache / fingerprint([uri, sorted(files.items())])[:16]
    needed = [name for name, (size, _) in files.items() if large or size <= LARGE_BYTES or name == named]
    if all((folder / name).exists() for name in needed):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):  # the first process fetches, the others wait for it
        missing = [name for name in needed if not (folder / name).exists()]
        with expecting(f"--model: expected a readable folder at {uri}", OSError), ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda name: _fetch_file(uri, name, folder, files[name][0]), missing))
    return folder


def check_no_pointers(folder: Path) -> Path:
    """The folder. Raises RequestError for what a clone without Git LFS has in place of a large file."""
    for file in (folder / name for name in ALWAYS_READ):
        is_small = file.is_file() and file.stat().st_size < MOST_POINTER and os.access(file, os.R_OK)
        if is_small and b"https://git-lfs" in file.read_bytes():
            raise RequestError(f"--model: expected the content of {file}, got a pointer of Git LFS; run: git lfs pull")
    return folder


def _fetch_file(uri: str, name: str, folder: Path, size: int) -> None:
    """Fetch one file. Raises OSError, and leaves nothing, where it does not arrive completely."""
    source = locate(uri) / name
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        source.fs.get_file(source.path, str(temporary))
        if (came := temporary.stat().st_size) != size:
            raise OSError(f"{source.uri}: {came} of {size} bytes came")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _files(uri: str) -> dict[str, tuple[int, str]]:
    """Name within the folder -> size and mark, of every file that belongs to a model."""
    root = locate(uri)
    root.fs.invalidate_cache()
    hint = "; a model on the Hugging Face hub is given as owner/name" if uri.startswith("hf://") else ""
    with expecting(f"--model: expected to list {root.uri}", OSError, advice=hint):
        infos = root.fs.find(root.path, detail=True)
    prefix = len(root.path) + 1
    files = {path[prefix:]: (info["size"], mark(info)) for path, info in infos.items() if info["type"] == "file"}
    files = {name: listed for name, listed in files.items() if _is_read(name, files)}
    if not OF_MODELS & files.keys():
        raise RequestError(
            f"--model: expected a folder with config.json or {MODEL_FILE} at {root.uri}, got "
            f"{', '.join(sorted(files)[:3]) or 'nothing'}"
        )
    return files


def _is_read(name: str, files: Mapping[str, object]) -> bool:
    """Whether a file belongs to a model: pickled weights where their folder has no others."""
    if pickled := PICKLED.fullmatch(name):
        return not any(pickled[1] + weights in files for weights in (ENCODER_WEIGHTS, WEIGHTS_INDEX))
    return bool(FETCHED.fullmatch(name))


# ----------------------------------------------------------------------------------------------------------- the hub


@cache
def pinned_uri(model: str, file: str) -> str | None:
    """`hf://owner/name@commit` of a Hugging Face id whose repository has this file, by `file_of`, else None."""
    name, _, revision = model.partition("@")
    if not HUB_ID.fullmatch(model) or Path(model).exists():
        return None
    found = file_of(name, file, revision or None)
    return None if found is None else f"hf://{name}@{found.parent.name}"


def file_of(name: str, file: str, revision: str | None, *, sure: bool = False) -> Path | None:
    """A file of a repository, in the hub's cache of this machine; None where the repository has none, or, offline and
    not `sure`, the cache. Raises RequestError where it is not known, as where the hub fails to answer."""
    offline, is_commit = hub.is_offline_mode(), bool(revision and COMMIT.fullmatch(revision))
    lacks = _is_known_to_lack(name, revision, file)
    if lacks and (offline or is_commit):
        return None
    try:
        return Path(hub.hf_hub_download(name, file, revision=revision))
    except Exception as error:  # of the hub, of its client, or of the network
        from huggingface_hub import errors

        match error:
            case errors.LocalEntryNotFoundError():  # offline, or the hub was not reached
                none = lacks or (offline and not sure)
            case errors.GatedRepoError():
                none = False
            case errors.RepositoryNotFoundError():
                none = not is_commit
            case _:
                none = isinstance(error, (errors.HFValidationError, errors.EntryNotFoundError))
        if none:
            return None
        advice = ADVICE.get(type(error).__name__, "try again, or set HF_HUB_OFFLINE=1 to read its cache alone")
        if offline:
            advice = "vectors may be others without it: run this once with the network, or pass the folder of a copy"
        raise RequestError(
            f"--model: expected {file} of {name} on the Hugging Face hub or in its cache on this machine, "
            f"got: {in_words(error.__cause__ or error)}; {advice}"
        ) from error


def _is_known_to_lack(name: str, revision: str | None, file: str) -> bool:
    """Whether the hub's cache has the mark of a failed request for a file, or a listing of all files without it."""
    with suppress(Exception):  # no name of a repository, no listing, or a hub's library that is older than these
        if hub.try_to_load_from_cache(name, file, revision=revision) is hub._CACHED_NO_EXIST:
            return True
        return file not in {each.path for each in hub.get_cached_repo_tree(name, revision=revision)}
    return False


def dataset_of(uri: str) -> str | None:
    """The dataset, as owner/name, that a file or folder on the hub is in; None for a place elsewhere."""
    match = DATASET.fullmatch(uri)
    return match and match[1]


def _snapshot(name: str, commit: str, inside: str | None, *, large: bool, named: str) -> Path:
    """A repository, or a folder inside it, in the hub's cache: settings and vocabularies, the file called `named`, and
    where `large` the weights."""
    below = f"{inside}/" if inside else ""
    patterns = [f"{below}*.{ending}" for ending in ENDINGS if large or ending != WEIGHTS]
    patterns += [f"{below}{file}" for file in (*MODULE_WEIGHTS, *([named] if named else []))]
    folder = hub.snapshot_download(name, revision=commit, allow_patterns=patterns)
    if large and not any(Path(folder, below).glob(f"*.{WEIGHTS}")):
        hub.snapshot_download(name, revision=commit, allow_patterns=[*patterns, f"{below}pytorch_model*.bin"])
    return Path(folder, below)
