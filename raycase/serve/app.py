"""The HTTP service as a FastAPI app: what each route takes and gives.

Shapes: N texts, D dimensions.
"""

import base64
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from raycase import __version__
from raycase.errors import RequestError
from raycase.io.vectors import l2_normalize
from raycase.serve.guard import AGENTS, COUNTED, Guard, Observe, problem
from raycase.serve.schema import EmbeddingRequest, ExplainRequest, FacetsRequest, SearchRequest, first_problem
from raycase.serve.service import Engine, for_strangers
from raycase.serve.settings import ServeFlags

BEGAN = int(time.time())
router = APIRouter()


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


AnyEngine = Annotated[Engine, Depends(_engine)]


async def _engine_of_index(engine: AnyEngine) -> Engine:
    if engine.service.live is None:
        raise HTTPException(404, "this server has no index; start it with --index")
    return engine


WithIndex = Annotated[Engine, Depends(_engine_of_index)]


@router.get("/health")
async def health() -> Response:
    """The server is alive."""
    return _json({"alive": True})


@router.get("/ready")
async def ready(engine: AnyEngine) -> Response:
    """The model is loaded."""
    return _json({"ready": True, "model": engine.service.name})


@router.get("/v1/models")
@router.get("/v1/models/{name:path}")
async def models(engine: AnyEngine, name: str = "") -> Response:
    """The model that is loaded, in a list; alone by its name."""
    model = {"id": engine.service.name, "object": "model", "created": BEGAN, "owned_by": "raycase"}
    if name not in ("", engine.service.name):
        raise HTTPException(404, f"model: expected {engine.service.name}, got {name!r}")
    return _json(model if name else {"object": "list", "data": [model]})


@router.post("/v1/embeddings")
async def embeddings(asked: EmbeddingRequest, request: Request, engine: AnyEngine) -> Response:
    """The vector of each text, under its condition or without one: those of `model.encode`."""
    name, conditions = engine.service.name, asked.conditions
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
    request.scope[COUNTED] = {"texts": len(rows), "tokens": tokens}
    if asked.encoding_format == "base64":  # of float32, the least significant byte first
        shown = [base64.b64encode(vector_D.astype("<f4").tobytes()).decode() for vector_D in vectors_ND]
    else:
        shown = vectors_ND.tolist()
    data = [
        {"object": "embedding", "index": i, "embedding": vector, "truncated": row.truncated}
        for i, (vector, row) in enumerate(zip(shown, rows, strict=True))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return _json({"object": "list", "data": data, "model": name, "usage": usage})


@router.post("/search")
async def search(asked: SearchRequest, engine: WithIndex) -> Response:
    """The rows nearest to each query under its condition."""
    return _json(await engine.run(engine.service.search, asked))


@router.post("/facets")
async def facets(asked: FacetsRequest, engine: WithIndex) -> Response:
    """The rows of the index in clusters under a condition."""
    return _json(await engine.run(engine.service.facets, asked))


@router.post("/explain")
async def explain(asked: ExplainRequest, engine: AnyEngine) -> Response:
    """Which words of each text each condition looks at."""
    return _json(await engine.run(engine.service.explain, asked))


@router.get("/conditions")
async def conditions(engine: AnyEngine) -> Response:
    """The conditions of the index, or those that the model knows."""
    return _json(await engine.run(engine.service.conditions))


def make_app(engine: Engine, settings: ServeFlags, observe: Observe) -> FastAPI:
    """The app of a loaded model."""
    options: dict[str, Any] = {"docs_url": None, "redoc_url": None}
    paths = {route.path for route in router.routes if isinstance(route, APIRoute)}
    if settings.mcp:
        from raycase.serve.agents import mcp_app

        agents = mcp_app(engine)
        options |= {"lifespan": lambda app: agents.router.lifespan_context(agents)}
        options |= {"routes": [Route(AGENTS, agents, methods=["POST"])]}
        paths.add(AGENTS)
    app = FastAPI(title="raycase", version=__version__, **options)
    app.state.engine = engine
    app.include_router(router)
    for error in (RequestValidationError, HTTPException, RequestError):
        app.add_exception_handler(error, _refused)
    app.add_middleware(Guard, settings=settings, routes=frozenset(paths), observe=observe, engine=engine)
    if settings.allow_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.allow_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            allow_private_network=True,  # a browser asks this too before a page of the internet reaches 127.0.0.1
        )
    return app


def _json(value: Any) -> Response:
    return Response(to_json(value, bytes_mode="base64", inf_nan_mode="null"), media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to a wrong request; all other errors are `Guard`'s."""
    if isinstance(error, HTTPException):
        param = "model" if error.detail.startswith("model: ") else None
        return problem(error.status_code, error.detail, param=param, headers=error.headers)
    if not isinstance(error, RequestValidationError):
        message = for_strangers(error, request.app.state.engine.service.hidden)
        return problem(422, message, param=message.partition(": ")[0] if ": " in message[:30] else None)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(400, f"expected JSON, got another body: {first['ctx']['error']} at {first['loc'][1]}")
    name, what = first_problem(error.errors(), 1)
    return problem(422, f"{name}: {what}" if name else what, param=name or None)
