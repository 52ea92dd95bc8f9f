"""The commands whose files are still to come: where their flags and their work are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from raycase.errors import visible


@dataclass(frozen=True)
class Elsewhere:
    """What `Command` asks of a file."""

    flags: str  # module:name
    work: Callable[[Any], dict[str, Any]]
    EXAMPLE: str
    OVER: str = ""

    def __getattr__(self, name: str) -> Any:
        if name == "__path__":
            raise AttributeError(name)
        if name.endswith("_FLAGS"):
            raise AttributeError(name)
        return resolve_name(self.flags) if name.endswith("Flags") else self.work


def index(flags: Any) -> dict[str, Any]:
    """Index the vectors of an output of `embed`, or add new ones to an index."""
    from raycase.index.build import build

    result = build(flags)
    if result["rows_deleted"]:
        print(f"{result['rows_deleted']:,} rows deleted, {result['rows_added']:,} added")
    of = result["kind"]
    how = "searched exactly" if of == "exact" else f"an {of.upper()} index"
    rows, tokens = result["rows"], result["rows_with_tokens"]
    under = f" under {result['conditions']} conditions" if result["conditions"] or not tokens else ""
    under += (" for any condition" if tokens == rows else f", {tokens:,} of them for any condition") if tokens else ""
    print(f"{rows:,} rows{under}, {how}: {visible(result['output'])}")
    return result


def serve(flags: Any) -> dict[str, Any]:
    """Serve a model and an index over HTTP, or to agents by the Model Context Protocol: search, facets, embeddings."""
    from raycase.serve.serve_job import check_serve, import_serve

    import_serve(mcp=flags.mcp is not None)
    if flags.mcp == "stdio":
        from raycase.serve.agents import serve_over_stdio

        serve_over_stdio(check_serve(flags))
        sys.exit()  # standard output was the agent's: no result stands there
    from raycase.ray.serve import serve

    serve(flags)


def _at(place: str, line: str, *, with_runner: bool = False) -> Callable[[Any], dict[str, Any]]:
    """The work at this module:name, which is imported when it begins, and its line in the help. with_runner: a `Runner`
    runs it."""

    def work(flags: Any) -> dict[str, Any]:
        runner = [resolve_name("raycase.commands.place:AutoRunner")(flags.ray)] if with_runner else []
        return resolve_name(place)(flags, *runner)

    work.__doc__ = line
    return work


ELSEWHERE = {
    "index": Elsewhere(
        "raycase.index.build:IndexFlags", index, "raycase index --embeddings out/ --output captions.lance"
    ),
    "search": Elsewhere(
        "raycase.index.search_job:SearchFlags",
        _at("raycase.commands.place:search", "Search an index by sentences under conditions."),
        'raycase search --index captions.lance --query "Girls in red play" --condition "color of the clothes"',
    ),
    "serve": Elsewhere("raycase.serve.serve_job:ServeFlags", serve, "raycase serve --index captions.lance"),
}
