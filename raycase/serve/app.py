"""The HTTP service as a FastAPI app: what each route takes and gives.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from raycase import __version__
from raycase.errors import RequestError, WorkError
from raycase.io.vectors import l2_normalize
from raycase.serve.guard import BODY, TOLD, Door, Guard, Observe, problem
from raycase.serve.schema import (
    MOST_NAMES,
    EmbeddingRequest,
    ExplainRequest,
    FacetsRequest,
    SearchRequest,
    first_problem,
)
from raycase.serve.serve_job import ServeSettings
from raycase.serve.service import Engine

log = logging.getLogger(__name__)
BEGAN = int(time.time())
SHORT = 2**16  # bytes of a body that is read on the event loop
MOST_BRACKETS = 2**18  # opening ones of a body: while a parser makes a million lists, no other thread runs


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs) if len(pairs) <= MOST_NAMES else {}
    if len(found) < len(pairs):
        got = f"{len(pairs):,}{' with one twice' if found else ''}"
        raise HTTPException(422, f"expected objects of at most {MOST_NAMES} names, each once, got {got}")
    return found


class JsonRequest(Request):
    """A request whose body is read beside the event loop, if it is long; of a million names pydantic would make a
    million errors, on the loop."""

    async def json(self) -> Any:
        """Raises ValueError for bytes that are no JSON, HTTPException for too many brackets, and for an object with too
        many names, or one twice."""
        body = await self.body()
        if (count := body.count(b"[")) > MOST_BRACKETS:
            raise HTTPException(422, f"expected at most {MOST_BRACKETS:,} brackets [, got {count:,}; split the request")
        read = partial(json.loads, body, object_pairs_hook=_object)
        return read() if len(body) <= SHORT else await asyncio.to_thread(read)

    async def body(self) -> bytes:
        """The bytes that `Guard` read."""
        return self.scope[BODY]


class JsonRoute(APIRoute):
    """A route of such requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await answer(JsonRequest(request.scope, request.receive))

        return handle


router = APIRouter(route_class=JsonRoute)


@router.get("/health")
async def health() -> Response:
    """The server is alive."""
    return _json({"alive": True})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """The model is loaded."""
    return _json({"ready": True, "model": _engine(request).service.name})


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The model that is loaded."""
    model = {"id": _engine(request).service.name, "object": "model", "created": BEGAN, "owned_by": "raycase"}
    return _json({"object": "list", "data": [model]})


@router.post("/v1/embeddings")
async def embeddings(asked: EmbeddingRequest, request: Request) -> Response:
    """The vector of each text, under its condition or without one: those of `model.encode`."""
    engine, conditions = _engine(request), asked.conditions
    name = engine.service.name
    if asked.model not in (None, name):
        raise HTTPException(404, f"model: expected {name}, got {asked.model!r}")
    engine.service.check(conditions, asked.dimensions)
    rows = await engine.embed(asked.input, conditions)
    for i, row in enumerate(rows):
        refused = "more tokens than it reads" if row.truncated and asked.truncate == "NONE" else row.refused
        if refused is not None:
            raise RequestError(f"input: text {i}: expected a text that {name} can embed, got: {refused}")
    vectors_ND = np.stack([row.vector[: asked.dimensions] for row in rows])
    if asked.normalize:
        vectors_ND = l2_normalize(vectors_ND)
    tokens = sum(row.tokens for row in rows)
    request.scope[TOLD] = {"texts": len(rows), "tokens": tokens}
    data = [
        {
            "object": "embedding",
            "index": i,
            "embedding": _shown(vector_D, asked.encoding_format),
            "truncated": row.truncated,
        }
        for i, (vector_D, row) in enumerate(zip(vectors_ND, rows, strict=True))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": name, "usage": usage})


@router.post("/search")
async def search(asked: SearchRequest, request: Request) -> Response:
    """The rows nearest to each query under its condition."""
    return _json(await _of_index(request).run(_engine(request).service.search, asked))


@router.post("/facets")
async def facets(asked: FacetsRequest, request: Request) -> Response:
    """The rows of the index in clusters under a condition."""
    engine = _of_index(request)
    return _json(await engine.run(engine.service.facets, asked))


@router.post("/explain")
async def explain(asked: ExplainRequest, request: Request) -> Response:
    """Which words of each text each condition looks at."""
    engine = _engine(request)
    return _json(await engine.run(engine.service.explain, asked))


@router.get("/conditions")
async def conditions(request: Request) -> Response:
    """The conditions of the index, or those that the model knows."""
    engine = _engine(request)
    return _json(await engine.run(engine.service.conditions))


def make_app(engine: Engine, settings: ServeSettings, observe: Observe, door: Door) -> FastAPI:
    """The app of a loaded model."""
    # JSON alone is read, and only where the request says that it is: a browser asks before it sends that elsewhere
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None, "strict_content_type": True}
    paths = {route.path for route in router.routes if isinstance(route, APIRoute)}
    if settings.mcp:
        from raycase.serve.agents import ROUTE, Replayed, mcp_app

        agents = mcp_app(engine)
        options |= {"lifespan": lambda app: agents.router.lifespan_context(agents)}
        options |= {"routes": [Route(ROUTE, Replayed(agents), methods=["POST"])]}
        paths.add(ROUTE)
    app = FastAPI(title="raycase", version=__version__, **options)
    app.state.engine = engine
    app.include_router(router)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestError, _wrong)
    app.add_exception_handler(WorkError, _failed)
    app.add_middleware(Guard, settings=settings, routes=frozenset(paths), observe=observe, door=door)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            allow_private_network=True,  # a browser asks this too before a page of the internet reaches 127.0.0.1
        )
    return app


def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


def _of_index(request: Request) -> Engine:
    """The engine, if it has an index. Raises HTTPException."""
    engine = _engine(request)
    if engine.service.live is None:
        raise HTTPException(404, "this server has no index; start it with --index")
    return engine


def _json(value: Any) -> Response:
    return Response(to_json(value, bytes_mode="base64", inf_nan_mode="null"), media_type="application/json")


def _shown(vector_D: np.ndarray, encoding_format: str | None) -> Any:
    """Numbers, or their bytes: float32, the least significant first."""
    as_bytes = encoding_format == "base64"
    return base64.b64encode(vector_D.astype("<f4").tobytes()).decode() if as_bytes else vector_D.tolist()


# ------------------------------------------------------------------------------------------------------------- errors


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, f"expected JSON, got another body: {first['ctx']['error']} at {first['loc'][1]}")
    name, what = first_problem(error.errors(), 1)
    return problem(422, f"{name}: {what}" if name else what, param=name or None)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, headers=error.headers)


async def _wrong(request: Request, error: Exception) -> Response:
    message = _engine(request).service.for_strangers(error)
    return problem(422, message, param=message.partition(": ")[0] if ": " in message[:30] else None)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("%s: %s", request.url.path, error)
    return problem(500, "the request failed; see the server's log")
