"""Tools for agents by the client of the protocol's own SDK: over HTTP beside the other routes, and over stdio."""

import asyncio
import json
import subprocess
import sys
import threading
from contextlib import contextmanager

import httpx2
import pytest
import uvicorn
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from served import TOKEN, app_of

from raycase.index.index import Index
from raycase.serve.settings import free_port

ASKED = {"queries": ["a red dress"], "condition": "color", "k": 3.0, "where": "year > 2010"}


@contextmanager
def listening(app):
    """The address of an app in a thread of this process."""
    port = free_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.should_exit = True
        thread.join()


def said(result, *, wrong=False):
    assert bool(result.is_error) == wrong, result
    [part] = result.content
    return part.text if wrong else json.loads(part.text)


def ids(found):
    return [answer["row"]["id"] for answer in found["answers"][0]]


async def looked_up(connection):
    """What an agent is told: names of tools, answers, and what is wrong with some calls."""
    async with Client(connection) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["search"].input_schema["additionalProperties"] is False
        for tool in tools.values():  # what is said of it stands in its description
            assert not {"title", "description"} & {*tool.input_schema} and tool.description
        found = said(await client.call_tool("search", ASKED))
        assert said(await client.call_tool("conditions", {}))["any"] is True
        words = said(await client.call_tool("explain", {"texts": "a red dress", "conditions": "color"}))["weights"]
        assert [word["word"] for word in words[0]["words"]] == ["a", "red", "dress"]
        assert said(await client.call_tool("facets", {"condition": "color", "clusters": 2}))["rows"] == 60
        calls = [("search", ASKED | more) for more in ({"colour": "red"}, {"k": "3"}, {"where": "no_column = 1"})]
        calls.append(("delete", {}))
        wrong = [said(await client.call_tool(name, asked), wrong=True) for name, asked in calls]
    return set(tools), found, wrong


def test_over_http_as_the_other_routes(home, service):
    app, counted = app_of(service, index=str(home / "i.lance"), mcp="http")
    with listening(app) as url:
        tools, found, wrong = asyncio.run(looked_up(url))
        assert httpx2.get(url).status_code == 405  # no stream that would never end
        assert httpx2.post(url, json={}, headers={"host": "example.org"}).status_code == 403
    assert tools == {"search", "facets", "explain", "conditions"}
    rows = Index.open(str(home / "i.lance")).search(["a red dress"], "color", k=3, where="year > 2010")
    assert ids(found) == rows["id"].to_pylist()
    assert wrong[0] == "colour: Extra inputs are not permitted" and wrong[1].startswith("k: ")
    assert "no_column" in wrong[2] and str(home) not in wrong[2]
    assert wrong[3] == "expected one of the tools search, facets, explain, conditions, got 'delete'"
    assert {route for route, status, _ in counted if status == 200} == {"/mcp"}


def test_a_token_is_needed_here_too(tmp_path, service):
    (tmp_path / "token").write_text(TOKEN)

    async def tools(url, token):
        http = httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"})
        async with http, Client(streamable_http_client(url, http_client=http)) as client:
            return await client.list_tools()

    with listening(app_of(service, token_file=str(tmp_path / "token"), mcp="http")[0]) as url:
        assert len(asyncio.run(tools(url, TOKEN)).tools) == 4
        with pytest.raises(ExceptionGroup):
            asyncio.run(tools(url, TOKEN[::-1]))


def test_a_line_that_is_no_message_is_answered_over_stdio(home):
    words = [sys.executable, "-m", "raycase", "serve", "--mcp", "stdio", "--index", str(home / "i.lance")]
    ping = '{"jsonrpc": "2.0", "id": 1, "method": "ping"%s}'
    wrong = ["{", "[]", '{"id": 1}', ping % ', "params": {"a": "\\ud800"}', ping % ', "id": 2', "[" * 10_000]
    lines = "\n".join([*wrong, "", ping % ""]) + "\n"
    done = subprocess.run(
        words,
        input=b"{\xe9}\n" + ping.encode() % b', "params": {"a": "\xe9"}' + b"\n" + lines.encode(),
        capture_output=True,
        timeout=60,
        check=True,
    )
    *answers, pong = map(json.loads, done.stdout.splitlines())
    codes = [-32700, -32600, -32700, -32600, -32600, -32600, -32700, -32700]
    assert [(each["id"], each["error"]["code"]) for each in answers] == [(None, code) for code in codes]
    assert all(each["error"]["message"] for each in answers) and pong["id"] == 1 and "result" in pong


def test_over_stdio(home):
    words = ["-m", "raycase", "serve", "--mcp", "stdio", "--index", str(home / "i.lance")]
    tools, found, wrong = asyncio.run(looked_up(StdioServerParameters(command=sys.executable, args=words)))
    assert len(tools) == 4 and len(ids(found)) == 3 and len(wrong) == 4
