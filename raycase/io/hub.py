"""Model folders on the Hugging Face hub: one commit of a repository, in the hub's own cache of this machine."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path

import huggingface_hub as hub  # which imports its client when it is used

from raycase.errors import RequestError, expecting
from raycase.errors import named as said

ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
PINNED = re.compile(r"hf://([\w.-]+/[\w.-]+)@([0-9a-f]{40})(?:/(.+))?")  # repository, commit, subfolder
COMMIT = re.compile("[0-9a-f]{40}")
RETRY = "try again, or set HF_HUB_OFFLINE=1 to read its cache alone"
ADVICE = {
    "GatedRepoError": "accept its terms on the hub, and log in: hf auth login",
    "RevisionNotFoundError": "name a revision that it has",
}
DATASET = re.compile(r"hf://datasets/([\w.-]+/[\w.-]+)(@[^/]+)?/.+")
WEIGHTS = "safetensors"
VOCABULARY_KINDS = ("model", "tsv", "tiktoken", "codes", "spm")
MODULE_WEIGHTS = (f"[0-9]_*/model.{WEIGHTS}", "[0-9]_*/pytorch_model.bin")  # small ones, of sentence-transformers
KINDS = ("json", WEIGHTS, "txt", "jinja", "md", *VOCABULARY_KINDS)  # endings of what is read


@cache
def pinned_uri(model: str, file: str) -> str | None:
    """`hf://owner/name@commit` of a Hugging Face id whose repository has this file; None where it has not, where there
    is no such repository, or where the cache lacks it, offline. Whether the cache has an encoder's files says nothing:
    a repository may have both. Raises RequestError as `file_of`."""
    name, _, revision = model.partition("@")
    if not ID.fullmatch(model) or Path(model).exists():
        return None
    found = file_of(name, file, revision or None)
    return None if found is None else f"hf://{name}@{found.parent.name}"


def file_of(name: str, file: str, revision: str | None, *, sure: bool = False) -> Path | None:
    """A file of a repository, in the hub's cache of this machine; None where the repository has none.

    A hub that fails to answer is no answer. Offline, what the cache lacks counts as none, but where `sure`: there the
    cache has to say so (`_is_known_to_lack`). Raises RequestError where it is not known.
    """
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
        advice = ADVICE.get(type(error).__name__, RETRY)
        if offline:
            advice = "vectors may be others without it: run this once with the network, or pass the folder of a copy"
        raise RequestError(
            f"--model: expected {file} of {name} on the Hugging Face hub or in its cache on this machine, "
            f"got: {said(error.__cause__ or error)}; {advice}"
        ) from error


def _is_known_to_lack(name: str, revision: str | None, file: str) -> bool:
    """Whether the hub's cache says that a revision has no such file: by the marker of an earlier failed request, or
    by a listing of all its files."""
    with suppress(Exception):  # no name of a repository, no listing, or a hub's library that is older than these
        if hub.try_to_load_from_cache(name, file, revision=revision) is hub._CACHED_NO_EXIST:
            return True
        return file not in {each.path for each in hub.get_cached_repo_tree(name, revision=revision)}
    return False


def dataset_of(uri: str) -> str | None:
    """The dataset, as owner/name, that a file or folder on the hub is in; None for a place elsewhere."""
    match = DATASET.fullmatch(uri)
    return match and match[1]


def snapshot(uri: str, *, large: bool, named: str = "") -> Path:
    """The folder behind a URI of `pinned_uri`, or a subfolder of it, on this machine: settings and vocabularies, the
    file called `named`, and where `large` the weights. Raises RequestError where it cannot be fetched."""
    match = PINNED.fullmatch(uri)
    assert match is not None
    name, commit, inside = match.groups()
    below = f"{inside}/" if inside else ""
    patterns = [f"{below}*.{kind}" for kind in KINDS if large or kind != WEIGHTS]
    patterns += [f"{below}{file}" for file in (*MODULE_WEIGHTS, *([named] if named else []))]
    with expecting(f"--model: expected a readable model at {uri}", OSError, ValueError):
        folder = hub.snapshot_download(name, revision=commit, allow_patterns=patterns)
        if large and not any(Path(folder, inside or "").glob(f"*.{WEIGHTS}")):
            folder = hub.snapshot_download(
                name, revision=commit, allow_patterns=[*patterns, f"{below}pytorch_model*.bin"]
            )
    return Path(folder) / (inside or "")
