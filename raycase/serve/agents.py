"""The service as tools for agents by the Model Context Protocol (MCP): a route beside the others, or over stdio."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.message import SessionMessage
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.applications import Starlette

from raycase import __version__
from raycase.errors import RequestError, first_line
from raycase.serve.schema import MOST_BODY, Body, ExplainRequest, FacetsRequest, SearchRequest, first_problem, once
from raycase.serve.service import Engine, Service, for_strangers
from raycase.serve.settings import ServeFlags

log = logging.getLogger(__name__)
OF_INDEX = ("search", "facets")
OF_ROUTE = ("title", "description")  # parts of a request's schema
TOOLS: dict[str, tuple[type[Body], Callable[..., Any], str]] = {
    "search": (
        SearchRequest,
        Service.search,
        'Find the texts nearest to each query. condition names what to compare, such as "reason for the complaint"; '
        "without it whole texts are compared. where filters by id and columns, in SQL.",
    ),
    "facets": (FacetsRequest, Service.facets, "Group the texts by what they state about a condition."),
    "explain": (ExplainRequest, Service.explain, "Weigh the words of texts by how much a condition looks at them."),
    "conditions": (
        Body,
        lambda service, asked: service.conditions(),
        'List the stored conditions. If "any" is true or "conditions" is null, every other condition works too.',
    ),
}


def mcp_server(engine: Engine) -> Server[Any]:
    """A server whose tools take what the routes of the same names take, under the same limits."""
    names = [name for name in TOOLS if engine.service.live is not None or name not in OF_INDEX]

    async def list_tools(context: Any, asked: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(
                name=name,
                description=TOOLS[name][2],
                input_schema={k: v for k, v in TOOLS[name][0].model_json_schema().items() if k not in OF_ROUTE},
                annotations=types.ToolAnnotations(read_only_hint=True),
            )
            for name in names
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(context: Any, asked: Any) -> types.CallToolResult:
        try:
            if asked.name not in names:
                raise RequestError(f"expected one of the tools {', '.join(names)}, got {asked.name!r}")
            request, work, _ = TOOLS[asked.name]
            found = await engine.run(work, engine.service, request.model_validate(asked.arguments or {}))
            return _answer(to_json(found, bytes_mode="base64", inf_nan_mode="null").decode())
        except ValidationError as error:
            return _answer(": ".join(filter(None, first_problem(error.errors()))), is_error=True)
        except RequestError as error:
            return _answer(for_strangers(error, engine.service.hidden), is_error=True)
        except Exception:
            log.exception("%s failed", asked.name)
            return _answer("the server could not do it now; see the server's log", is_error=True)

    return Server("raycase", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _answer(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)


def mcp_app(engine: Engine) -> Starlette:
    """The server's route, /mcp. It keeps no sessions, so any replica answers; `Guard` checks what it is sent."""
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return mcp_server(engine).streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=MOST_BODY, transport_security=security
    )


def serve_over_stdio(settings: ServeFlags) -> None:
    """Answer an agent that started this process, until it closes standard input."""
    server = mcp_server(Engine(Service.load(settings)))
    wire = os.fdopen(os.dup(0), encoding="utf-8", errors="surrogateescape")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # nothing else reads the agent's lines

    async def run() -> None:
        async def messages() -> AsyncIterator[str]:
            """The lines that are messages; the SDK would leave the others without an answer."""
            async for line in anyio.wrap_file(wire):
                try:
                    json.loads(line, object_pairs_hook=once)
                    types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    yield line
                    continue
                except ValidationError as error:
                    wrong = types.ErrorData(code=types.INVALID_REQUEST, message=first_problem(error.errors())[1])
                except (ValueError, RecursionError) as error:
                    wrong = types.ErrorData(code=types.PARSE_ERROR, message=first_line(error))
                if line.strip():
                    await write.send(SessionMessage(types.JSONRPCError(jsonrpc="2.0", id=None, error=wrong)))

        given: Any = messages()
        async with stdio_server(given) as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())
