"""What a service serves and where, and what that must be; imports neither FastAPI nor Ray."""

import hashlib
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from raycase.encoder.model_files import DEFAULT_MODEL, model_folder
from raycase.errors import RequestError, at_least, check_ranges, expecting
from raycase.index.options import MOST_MEMORY
from raycase.io.places import check_paths
from raycase.io.storage import locate

HERE = "127.0.0.1"
TOKEN = "RAYCASE_TOKEN"
LEAST_TOKEN = 16  # characters
ORIGIN = re.compile(r"https?://[^/\s*]+")


@dataclass(frozen=True, kw_only=True)
class ServeSettings:
    """What a service serves and where, by the flags of `raycase serve`; of a token, once checked, its SHA-256."""

    index: str | None = None
    model: str | None = None
    host: str = HERE
    port: int = 8000
    token_file: str | None = None
    replicas: int = 1
    gpus_per_replica: float | None = None
    queue: int = 256
    memory: float = 4.0
    allow_origin: tuple[str, ...] = ()
    mcp: Literal["http", "stdio"] | None = None
    metrics_port: int | None = None
    token_sha256: str | None = None


def check_serve(settings: ServeSettings, *, on_cluster: bool = False) -> ServeSettings:
    """Check settings and read the token, which is needed at any address but 127.0.0.1; on a cluster there, too."""
    opens = {"--index": settings.index, "--model": model_folder(settings.model)}
    check_paths(opens=opens, reads={"--token-file": settings.token_file})
    ranges = at_least(1, settings, "replicas", "queue")
    ranges |= at_least(0, settings, "port", "metrics_port", most=65535)
    ranges["memory"] = (0 < settings.memory <= MOST_MEMORY, f"GiB above 0, at most {MOST_MEMORY:,}")
    ranges["gpus_per_replica"] = (settings.gpus_per_replica is None or settings.gpus_per_replica >= 0, "0 or more")
    are_origins = all(map(ORIGIN.fullmatch, settings.allow_origin))
    ranges["allow_origin"] = (are_origins, "an origin, such as https://example.org")
    if on_cluster and settings.port == 0:
        ranges["port"] = (False, "the port on which every node of the cluster listens")
    check_ranges(settings, ranges)
    digest = _token_sha256(settings.token_file)
    if digest is None and (on_cluster or settings.host != HERE):
        where = "on a cluster" if on_cluster else f"at {settings.host}"
        raise RequestError(
            f"expected a token to listen {where}, which other machines can reach, got none; set {TOKEN} or pass "
            f"--token-file" + ("" if on_cluster else f", or listen on {HERE} only")
        )
    served = settings.model or (None if settings.index else DEFAULT_MODEL)
    if served and Path(served).is_dir():  # a replica works in another folder
        served = str(Path(served).absolute())
    index = locate(settings.index).uri if settings.index else None
    return replace(settings, index=index, model=served, token_file=None, token_sha256=digest)


def _token_sha256(file: str | None) -> str | None:
    """The SHA-256 of the token of a file or of the environment; None without one. No error shows the token."""
    named = TOKEN if file is None else f"--token-file {file}"
    try:
        given = os.environ.get(TOKEN) if file is None else Path(file).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{named}: expected a file with a token, got {type(error).__name__}") from error
    if given is None:
        return None
    token = given.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise RequestError(
            f"{named}: expected a token of {LEAST_TOKEN} or more letters and digits, got another; make one: "
            "openssl rand -hex 32"
        )
    return sha256_of(token)


def sha256_of(token: str) -> str:
    """What a server keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def free_port(host: str, port: int) -> int:
    """The port, or for 0 a free one; a RequestError where something listens on it, for Ray would share it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    expected = f"--port: expected {host}:{port} as an address and a port that are free"
    with expecting(expected, OSError), socket.create_server((host, port), family=family) as server:
        return int(server.getsockname()[1])
