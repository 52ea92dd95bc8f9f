"""The command serve: a model and an index over HTTP on Ray Serve, or as tools for an agent over standard input."""

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal, NoReturn

from raycase.commands.flags import Advanced
from raycase.errors import lacks_package

EXAMPLE = "raycase serve --index captions.lance"


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Serve a model and an index over HTTP: search, facets, explanations, and embeddings in the format of OpenAI's
    API with an optional condition."""

    index: str | None = None
    """Output of `raycase index`, local or on object storage. Default: serve embeddings and explanations only."""
    model: str | None = None
    """A name, a Hugging Face id or a folder. Default: the index's model, or minilm-conditional-v2; with --index it is
    the folder of the index's model, if it has moved."""
    host: str = "127.0.0.1"
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


def serve(flags: ServeFlags) -> NoReturn:
    """Serve a model and an index over HTTP, or to agents by the Model Context Protocol: search, facets, embeddings."""
    for package in ("fastapi", "uvicorn", *(["mcp"] if flags.mcp else [])):  # `ray[serve]` has the first two
        if find_spec(package) is None:
            raise lacks_package(package, "mcp" if package == "mcp" else "serve", "for a service")
    from raycase.serve.settings import ServeSettings, check_serve

    settings = ServeSettings(**vars(flags))
    if flags.mcp == "stdio":
        from raycase.serve.agents import serve_over_stdio

        serve_over_stdio(check_serve(settings))
        sys.exit()  # standard output was the agent's: no result stands there
    from raycase.ray.serve import serve

    serve(settings)
