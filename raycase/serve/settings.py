"""What a service serves and where: the flags of `raycase serve`, and what they must be. Imports nothing slow."""

import hashlib
import os
import re
import socket
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from raycase.errors import RequestError, at_least, check_ranges, expecting
from raycase.index.options import MOST_MEMORY
from raycase.names import DEFAULT_MODEL, Advanced, Hidden

HERE = "127.0.0.1"
TOKEN = "RAYCASE_TOKEN"
LEAST_TOKEN = 16  # characters
ORIGIN = re.compile(r"https?://[^/\s*]+")


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Serve a model and an index over HTTP: search, facets, explanations, and embeddings in the format of OpenAI's
    API with an optional condition."""

    index: str | None = None
    """Output of `raycase index`, local or on object storage. Default: serve embeddings and explanations only."""
    model: str | None = None
    """A name, a Hugging Face id or a folder. Default: the index's model, or minilm-conditional-v3; with --index it is
    the folder of the index's model, if it has moved."""
    host: str = HERE
    """Address to listen on. Any but 127.0.0.1 needs a token, from RAYCASE_TOKEN or --token-file."""
    port: int = 8000
    """Port to listen on. 0: a free one, not on a cluster."""
    token_file: str | None = None
    """File with the token that requests send as `Authorization: Bearer TOKEN`. Default: RAYCASE_TOKEN, if set."""
    replicas: int = 1
    """Copies of the model, each in a process of its own. On one machine they share the processors."""
    gpus_per_replica: float | None = None
    """GPUs of each replica. Default: 1 if there are GPUs, else 0."""
    queue: int = 256
    """Most requests that a replica processes or holds waiting. Further ones get status 429 and `Retry-After`."""
    memory: Advanced[float] = 4.0
    """GiB of memory in each replica for an index's stored tokens. Their sketches take at most as much again."""
    allow_origin: tuple[str, ...] = ()
    """Origins, such as https://example.org, whose pages may send requests from a browser."""
    mcp: Literal["http", "stdio"] | None = None
    """Offer search, facets, explain and conditions as tools for agents by the Model Context Protocol. http: at /mcp of
    the service. stdio: in place of the service, for an agent that starts this command, without a port."""
    metrics_port: int | None = None
    """Port of Prometheus metrics on 127.0.0.1. Default: a free one. Not on a cluster, where Ray's own port serves
    them."""
    token_sha256: Hidden[str | None] = None  # of the token, once it is checked


def check_serve(settings: ServeFlags, *, on_cluster: bool = False) -> ServeFlags:
    """Check settings and read the token, which is needed at any address but 127.0.0.1; on a cluster there, too."""
    from raycase.encoder.model_files import model_folder
    from raycase.io.places import check_paths
    from raycase.io.storage import locate

    opens = {"--index": settings.index, "--model": model_folder(settings.model)}
    check_paths(opens=opens, reads={"--token-file": settings.token_file})
    ranges = at_least(1, settings, "replicas", "queue")
    ranges |= at_least(0, settings, "gpus_per_replica") | at_least(0, settings, "port", "metrics_port", most=65535)
    ranges["memory"] = (0 < settings.memory <= MOST_MEMORY, f"GiB above 0, at most {MOST_MEMORY:,}")
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
    expected = f"{named}: expected a file with a token"
    with expecting(expected, OSError, UnicodeDecodeError, why=lambda error: type(error).__name__):
        given = os.environ.get(TOKEN) if file is None else Path(file).expanduser().read_text(encoding="utf-8")
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
