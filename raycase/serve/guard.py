"""What every request passes before a route sees it: limits, the token, the count of requests; and how errors look."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raycase.errors import MOST_SHOWN, visible
from raycase.serve.schema import MOST_BODIES, MOST_BODY
from raycase.serve.serve_job import ServeSettings, is_token

log = logging.getLogger(__name__)
BODY_SECONDS = 30.0  # within which a whole body arrives
AGAIN = {"Retry-After": "1"}  # seconds after which a client that was turned away may try again
OPEN = ("/health", "/ready")  # for everybody
LOCAL = ("127.0.0.1", "localhost", "[::1]")
BODY, TOLD = "raycase.body", "raycase.told"  # keys of a request's scope: bytes; what its route tells `Observe`
Observe = Callable[..., None]  # counts an answer: (route, status, seconds, texts=, tokens=), of what it embedded


class ClientGoneError(Exception):
    """The client hung up before its request was whole."""


def problem(status: int, message: str, *, param: str | None = None, headers: Any = None) -> JSONResponse:
    """An error in one line, in the shape of OpenAI's API."""
    kinds = {401: "invalid_api_key", 404: "not_found", 413: "too_large", 429: "rate_limit_exceeded"}
    error = {
        "message": visible(message, MOST_SHOWN),
        "type": "invalid_request_error" if status < 500 else "server_error",
        "param": param,
        "code": kinds.get(status),
    }
    return JSONResponse({"error": error}, status, headers)


@dataclass
class Door:
    """Lets requests in until it is closed, and knows how many are within; none where `stuck` says so."""

    stuck: Callable[[], bool]
    closed: bool = False
    within: int = 0

    async def close(self, seconds: float) -> None:
        """Let nothing more in; return when all that is within is answered, or after so many seconds."""
        self.closed, end = True, time.monotonic() + seconds
        while self.within and time.monotonic() < end:
            await asyncio.sleep(0.05)


class Guard:
    """Around an app: refuses what it need not see, and reads the whole body, so that a slow client takes no place."""

    def __init__(
        self, app: ASGIApp, *, settings: ServeSettings, routes: frozenset[str], observe: Observe, door: Door
    ) -> None:
        """routes: the paths that are counted by their names."""
        self.app, self.settings, self.routes, self.observe, self.door = app, settings, routes, observe, door
        self.working = 0  # requests
        self.held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 499

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, sent, lambda: status != 499)
        finally:
            route = scope["path"] if scope["path"] in self.routes else "other"
            self.observe(route, status, time.perf_counter() - began, **scope.get(TOLD, {}))

    async def _answer(self, scope: Scope, receive: Receive, send: Send, begun: Callable[[], bool]) -> None:
        if self.door.closed or self.door.stuck():
            said = "the server is shutting down" if self.door.closed else "the server hangs and is being replaced"
            await problem(503, f"{said}; try again", headers=AGAIN)(scope, receive, send)
            return
        self.door.within += 1
        try:
            self._check_headers(scope)
            if scope["method"] != "POST":
                method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server leaves its body out
                await self.app({**scope, "method": method}, receive, send)
                return
            body = scope[BODY] = await self._body(Headers(scope=scope), receive)
            try:
                await self._work(scope, receive, send)
            finally:
                self.held -= len(body)
        except HTTPException as refused:
            await problem(refused.status_code, refused.detail, headers=refused.headers)(scope, receive, send)
        except ClientGoneError:
            return
        except Exception:
            log.exception("%s failed", scope["path"] if scope["path"] in self.routes else "a request")
            if not begun():
                await problem(500, "the server failed; see the server's log")(scope, receive, send)
        finally:
            self.door.within -= 1

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises HTTPException beyond the queue."""
        if self.working >= self.settings.queue:
            raise _too_many(f"{self.settings.queue:,} requests")
        self.working += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self.working -= 1

    def _check_headers(self, scope: Scope) -> None:
        """Raise HTTPException for headers without the token, or with the name of another host, by which a stranger's
        page sends a browser here (DNS rebinding)."""
        headers, expected = Headers(scope=scope), self.settings.token_sha256
        if expected is None:
            host = headers.get("host", "")
            if (host if host.endswith("]") else host.rpartition(":")[0] or host) not in LOCAL:
                raise HTTPException(403, f"expected one of {', '.join(LOCAL)} as Host, because no token is set")
        elif scope["path"] not in OPEN or scope["method"] not in ("GET", "HEAD"):  # these alone have no body
            kind, _, token = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not is_token(token.strip(), expected):
                said = "expected the server's token (Authorization: Bearer TOKEN)"
                raise HTTPException(401, said, {"WWW-Authenticate": "Bearer"})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """The whole body, which counts as held. Raises ClientGoneError, and HTTPException for one that is too
        long or too slow, or comes beside too many others."""
        said, parts, size, more = headers.get("content-length", "0"), [b""], 0, True
        large = not said.isdecimal() or int(said[:20]) > MOST_BODY
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more and not large:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGoneError
                    parts.append(message.get("body", b""))
                    size, more = size + len(parts[-1]), message.get("more_body", False)
                    self.held += len(parts[-1])
                    large = size > MOST_BODY
                    if self.held > MOST_BODIES:
                        raise _too_many(f"{MOST_BODIES:,} bytes of bodies")
            if large:
                raise HTTPException(413, f"expected a body of at most {MOST_BODY:,} bytes, got more")
            return b"".join(parts)
        except BaseException as error:  # also where the request is cancelled
            self.held -= size
            if isinstance(error, TimeoutError):
                raise HTTPException(
                    408, f"expected a whole body within {BODY_SECONDS:g} s, got a part of it"
                ) from error
            raise


def _too_many(most: str) -> HTTPException:
    return HTTPException(429, f"expected at most {most} at once, got more; try again", AGAIN)
