"""The command serve: a model and an index over HTTP on Ray Serve, or as tools for an agent over standard input."""

import sys
from importlib.util import find_spec
from typing import NoReturn

from raycase.errors import lacks_package
from raycase.serve.settings import ServeFlags, check_serve

EXAMPLE = "raycase serve --index captions.lance"


def serve(flags: ServeFlags) -> NoReturn:
    """Serve a model and an index over HTTP, or to agents by the Model Context Protocol: search, facets, embeddings."""
    for package in ("fastapi", "uvicorn", *(["mcp"] if flags.mcp else [])):  # `ray[serve]` has the first two
        if find_spec(package) is None:
            raise lacks_package(package, "mcp" if package == "mcp" else "serve", "for a service")
    if flags.mcp == "stdio":
        from raycase.serve.agents import serve_over_stdio

        serve_over_stdio(check_serve(flags))
        sys.exit()  # standard output was the agent's: no result stands there
    from raycase.ray.serve import serve

    serve(flags)
