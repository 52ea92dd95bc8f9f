"""What every request passes before a route sees it: limits, the token, the count of requests; and how errors look."""

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raycase.errors import MOST_SHOWN, RequestError, visible
from raycase.serve.schema import MOST_BODY, once
from raycase.serve.service import Engine
from raycase.serve.settings import ServeFlags, sha256_of

log = logging.getLogger(__name__)
BODY_SECONDS = 30.0  # within which a whole body arrives
AGAIN = {"Retry-After": "1"}  # seconds after which a client that was turned away may try again
OPEN = ("/health", "/ready")  # for everybody
LOCAL = ("127.0.0.1", "localhost", "[::1]")
AGENTS = "/mcp"  # the route of the Model Context Protocol
JSON = re.compile(r"application/([\w.-]+\+)?json\s*(;.*)?", re.IGNORECASE)
COUNTED = "raycase.counted"  # key of a request's scope: what its route has `Observe` count
Observe = Callable[..., None]  # counts an answer: (route, status, seconds, texts=, tokens=), of what it embedded


def problem(status: int, message: str, *, param: str | None = None, headers: Any = None) -> JSONResponse:
    """An error in one line, in the shape of OpenAI's API."""
    codes = {401: "invalid_api_key", 404: "not_found", 413: "too_large", 429: "rate_limit_exceeded"}
    error = {
        "message": visible(message, MOST_SHOWN),
        "type": "invalid_request_error" if status < 500 else "server_error",
        "param": param,
        "code": "model_not_found" if (status, param) == (404, "model") else codes.get(status),
    }
    return JSONResponse({"error": error}, status, headers)


class Guard:
    """Around an app: refuses what it need not see, and reads the whole body, so that a slow client takes no place."""

    def __init__(
        self, app: ASGIApp, *, settings: ServeFlags, routes: frozenset[str], observe: Observe, engine: Engine
    ) -> None:
        self.app, self.settings, self.routes, self.observe, self.engine = app, settings, routes, observe, engine
        self.working = 0  # requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self.routes else "other"
        began, status = time.perf_counter(), 499  # the client hung up

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, sent)
        except HTTPException as refused:
            await problem(refused.status_code, refused.detail, headers=refused.headers)(scope, receive, sent)
        except ClientDisconnect:
            return
        except Exception:
            log.exception("%s failed", route)
            if status == 499:
                await problem(500, "the server failed; see the server's log")(scope, receive, sent)
        finally:
            self.observe(route, status, time.perf_counter() - began, **scope.get(COUNTED, {}))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is not refused, and count it while it is under way."""
        if self.engine.closed or self.engine.stuck():
            state = "is shutting down" if self.engine.closed else "hangs and is being replaced"
            raise HTTPException(503, f"the server {state}; try again", AGAIN)
        self.engine.requests += 1
        try:
            self._check_headers(scope)
            if scope["method"] == "POST":
                await self._post(scope, receive, send)
            else:
                method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server leaves its body out
                await self.app({**scope, "method": method}, receive, send)
        finally:
            self.engine.requests -= 1

    async def _post(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._check_room()  # also before 8 MiB are read
        body = [await _body(Request(scope, receive))]
        self._check_room()

        async def read() -> Message:
            return {"type": "http.request", "body": body.pop()} if body else await receive()

        self.working += 1
        try:
            await self.app(scope, read, send)
        finally:
            self.working -= 1

    def _check_room(self) -> None:
        """Raise HTTPException where as many requests as may be are under way."""
        if self.working >= self.settings.queue:
            most = f"expected at most {self.settings.queue:,} requests at once, got more; try again"
            raise HTTPException(429, most, AGAIN)

    def _check_headers(self, scope: Scope) -> None:
        """Refuse headers without the token, or with the name of another host, as a stranger's page sends by a browser
        (DNS rebinding); for agents also with the origin of such a page, as MCP demands."""
        headers, expected = Headers(scope=scope), self.settings.token_sha256
        host = headers.get("host", "").lower()
        own = {f"http://{host}", f"https://{host}", *map(str.lower, self.settings.allow_origin)}
        if scope["path"].endswith(AGENTS) and not own.issuperset(map(str.lower, headers.getlist("origin"))):
            raise HTTPException(403, "Origin: expected this server's, or one of --allow-origin, got another")
        if expected is None:
            if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in LOCAL:
                raise HTTPException(403, f"expected one of {', '.join(LOCAL)} as Host, because no token is set")
        elif scope["path"] not in OPEN or scope["method"] not in ("GET", "HEAD"):  # these alone have no body
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(sha256_of(token.strip()), expected):
                expected_token = "expected the server's token (Authorization: Bearer TOKEN)"
                raise HTTPException(401, expected_token, {"WWW-Authenticate": "Bearer"})


async def _body(request: Request) -> bytes:
    """The whole body; refused if too long or slow, with a name twice, or with another content type, which a browser
    sends without asking. What is no JSON is for the routes."""
    too_long = HTTPException(413, f"expected a body of at most {MOST_BODY:,} bytes, got more")
    length, body = request.headers.get("content-length", "0"), bytearray()
    if not length.isdecimal() or int(length[:20]) > MOST_BODY:
        raise too_long
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise too_long
    except TimeoutError as error:
        raise HTTPException(408, f"expected a whole body within {BODY_SECONDS:g} s, got a part of it") from error
    media = request.headers.get("content-type", "none")
    if body and not JSON.fullmatch(media):
        raise HTTPException(415, f"Content-Type: expected application/json, got {media}")
    try:
        json.loads(body or b"0", object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise HTTPException(422, str(error)) from error
    return bytes(body)
