"""Who may ask the service, how much, and how many at once; its flags. Bodies of strangers: tests/test_hostile.py."""

import asyncio
import json
import socket
import threading
import time

import pytest
from served import TOKEN, client_of, refusal

from raycase.commands import serve as command
from raycase.errors import RequestError, WorkError
from raycase.serve import guard as guard_module
from raycase.serve import service as service_module
from raycase.serve.guard import Guard
from raycase.serve.service import Engine, public_name
from raycase.serve.settings import ServeFlags, check_serve, free_port, sha256_of

JSON = {"Content-Type": "application/json"}


def post(client, body, route="/v1/embeddings", **headers):
    return client.post(route, content=body, headers=JSON | headers)


def alive(client):
    return client.post("/v1/embeddings", json={"input": "a red dress"}).status_code == 200


@pytest.mark.parametrize(
    ("route", "asked", "said"),
    [
        ("/v1/embeddings", {"input": "a" * 32_769}, "at most 32768 characters"),
        ("/v1/embeddings", {"input": ["a"] * 257, "condition": [f"c{i}" for i in range(257)]}, "at most 256 different"),
        ("/v1/embeddings", {"input": ["a"] * 3, "condition": ["c"] * 2}, "one for each of the 3 texts"),
        ("/search", {"queries": ["a"] * 256, "k": 100}, "10,000 answers to all queries, got 100 for 256"),
        ("/search", {"queries": "a", "condition": "c", "unconditional": True}, "or unconditional, got several"),
        ("/search", {"queries": "a", "condition": "c", "exact_condition": True}, "condition: expected"),
        ("/facets", {"condition": "color", "clusters": 61}, "clusters: expected at most the 60 rows"),
        ("/explain", {"texts": ["a"] * 33, "conditions": ["c", "d"]}, "expected at most 64 texts times conditions"),
        ("/explain", {"texts": "a", "conditions": ["犬" * 900]}, "leaves no room for the sentence"),
    ],
)
def test_what_is_wrong_or_too_much_is_422(client, route, asked, said):
    assert said in refusal(client.post(route, content=json.dumps(asked), headers=JSON), 422)
    assert alive(client)


def test_a_lost_index_tells_no_place(service, home, monkeypatch):
    client, _ = client_of(service)
    for error, status in ((WorkError, 500), (RequestError, 422), (RuntimeError, 500)):

        def fail(*_, error=error):
            raise error(f"{home}/i.lance/data/x.lance: no such file, file://{home}/i.lance, {home}/model, s3://b/k/x")

        monkeypatch.setattr(type(service), "search", fail)
        answer = client.post("/search", json={"queries": "a"})
        assert refusal(answer, status) and str(home) not in answer.text and "s3:" not in answer.text
    monkeypatch.undo()
    assert alive(client)


def test_json_alone_is_read(client):
    """A form, or text, is what a page of another site may send without asking; so is a body of no type."""
    for kind in ("text/plain", "", "multipart/form-data; boundary=x"):
        headers = {"Content-Type": kind} if kind else {}
        refused = refusal(client.post("/v1/embeddings", content=b'{"input": "dog"}', headers=headers), 415)
        assert refused == f"Content-Type: expected application/json, got {kind or 'none'}"
    assert post(client, b'{"input": "dog"}', **{"Content-Type": "application/JSON; charset=utf-8"}).status_code == 200


def test_a_token_is_needed_where_there_is_one(service, monkeypatch, caplog):
    monkeypatch.setenv("RAYCASE_TOKEN", TOKEN)
    client, _ = client_of(service, host="0.0.0.0", mcp="http", base_url="http://example.org")
    for given in (None, TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"):
        headers = {} if given is None else {"Authorization": given.encode()}
        answer = client.post("/v1/embeddings", json={"input": "dog"}, headers=headers)
        assert "server's token" in refusal(answer, 401) and answer.headers["WWW-Authenticate"] == "Bearer"
        assert client.get("/conditions", headers=headers).status_code == 401
        assert client.post("/mcp", headers=headers, json={}).status_code == 401
        assert client.get("/openapi.json", headers=headers).status_code == 401
        assert client.post("/health", headers=headers, content=b"x" * 100).status_code == 401  # its body is not read
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    for given in (f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        assert client.get("/v1/models", headers={"Authorization": given}).status_code == 200
    assert TOKEN not in caplog.text and TOKEN not in repr(check_serve(ServeFlags(host="0.0.0.0")))


def test_routes_and_methods(client):
    """A HEAD is a GET without its body; no such route or method is told as any other problem."""
    for route in ("/health", "/ready"):
        assert client.head(route).status_code == 200
    for method, route, status in (("GET", "/x", 404), ("GET", "/search", 405), ("POST", "/health", 405)):
        assert refusal(client.request(method, route), status)


def test_without_a_token_another_host_is_refused(client):
    """A page whose name was turned to 127.0.0.1 gives its own name."""
    for host in ("example.org", "example.org:8000", "127.0.0.1.example.org", "localhost.example.org:80", ""):
        assert "as Host" in refusal(client.get("/conditions", headers={"Host": host}), 403)
    for host in ("localhost", "LocalHost:80", "127.0.0.1:80", "[::1]:8000", "[::1]"):
        assert client.get("/conditions", headers={"Host": host}).status_code == 200


def test_a_name_given_twice_is_refused(client):
    """A reader would take the last, and a typing error would go unnoticed."""
    for route, body in (
        ("/search", '{"queries": "a", "k": 1, "k": 3}'),
        ("/search", '{"conditions": {"a": 1, "a": 2}}'),
    ):
        assert "each name of an object once, got '" in refusal(post(client, body.encode(), route), 422)
    assert alive(client)


def test_the_page_of_another_origin_is_no_agent(service):
    """The specification of MCP demands it, whatever the token."""
    client, _ = client_of(service, mcp="http", allow_origin=("https://Example.org",))
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    headers = {"Accept": "application/json, text/event-stream"}
    with client:
        for origin in ("http://evil.com", "null", "http://127.0.0.1:9", "https://example.org.evil.com"):
            assert "Origin: expected" in refusal(post(client, asked, "/mcp", Origin=origin, **headers), 403)
        for origin in ("https://example.org", "http://127.0.0.1:8000"):
            assert post(client, asked, "/mcp", Origin=origin, **headers).json()["result"] == {}
    assert post(client, b'{"input": "dog"}', Origin="http://evil.com").status_code == 200  # CORS keeps it from the page


def test_pages_of_allowed_origins_may_ask(service):
    client, _ = client_of(service, allow_origin=("https://example.org",))
    asking = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    asking["Access-Control-Request-Headers"] = "content-type,authorization"
    asking["Access-Control-Request-Private-Network"] = "true"
    allowed = client.options("/search", headers=asking)
    assert allowed.status_code == 200 and allowed.headers["access-control-allow-origin"] == "https://example.org"
    assert allowed.headers["access-control-allow-private-network"] == "true"
    refused = client.options("/search", headers=asking | {"Origin": "https://example.com"})
    assert refused.status_code == 400 and "access-control-allow-origin" not in refused.headers
    answer = client.post("/search", json={}, headers={"Origin": "https://example.org"})
    assert refusal(answer, 422) and answer.headers["access-control-allow-origin"] == "https://example.org"
    assert "access-control-allow-origin" not in client_of(service)[0].get("/health", headers=asking).headers


class Held(Engine):
    """Waits with all embeddings until it is let go."""

    def __init__(self, service):
        super().__init__(service)
        self.waiting, self.go = threading.Semaphore(0), threading.Event()

    async def embed(self, texts, conditions):
        self.waiting.release()
        await asyncio.to_thread(self.go.wait)
        return await super().embed(texts, conditions)


def test_a_full_queue_is_429_and_what_waits_is_answered(service):
    client, _ = client_of(service, queue=2)
    held = client.app.state.engine = Held(service)
    found = []

    def ask():
        found.append(client.post("/v1/embeddings", json={"input": "dog"}).status_code)

    with client:
        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert held.waiting.acquire(timeout=30)
        answer = client.post("/v1/embeddings", json={"input": "dog"})
        assert "at most 2 requests at once" in refusal(answer, 429) and answer.headers["Retry-After"] == "1"
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert client.get("/health").status_code == 200
        held.go.set()
        for thread in threads:
            thread.join(30)
        assert found == [200, 200] and alive(client)


async def call(app, messages, sent, **scope):
    """Call an app with a request of these messages; the last is waited for without end."""
    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), *scope.pop("headers", [])]
    basic = {"type": "http", "method": "POST", "path": "/v1/embeddings", "query_string": b"", "root_path": ""}
    waiting = iter(messages)

    async def receive():
        for message in waiting:
            return message
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    await app({**basic, "headers": headers, **scope}, receive, send)


def asgi(app, messages, **scope):
    """What an app sends."""
    sent = []
    asyncio.run(call(app, messages, sent, **scope))
    return sent


NAMES = ",".join(f'"{i}":1' for i in range(740_000))
MANY = {"at most 64 names": NAMES, "at most 2048 items": '"input":[' + "[]," * 2**21 + "[]]"}


@pytest.mark.parametrize("said", MANY)
def test_a_million_names_or_lists_get_a_short_answer_within_seconds(client, said):
    began = time.perf_counter()
    assert said in refusal(post(client, f"{{{MANY[said]}}}".encode()), 422)
    assert time.perf_counter() - began < 3


def test_an_engine_that_hangs_is_told_and_replaced(service, monkeypatch):
    client, _ = client_of(service)
    engine, begun, go = client.app.state.engine, threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(engine.run(lambda: begun.set() or go.wait())))
    thread.start()
    assert begun.wait(30) and client.get("/health").status_code == client.get("/ready").status_code == 200
    monkeypatch.setattr(service_module, "STUCK", 0.0)
    for route in ("/health", "/ready"):
        assert "the server hangs" in refusal(client.get(route), 503)
    assert engine.stuck()  # what Ray Serve asks
    go.set()
    thread.join(30)
    assert client.get("/health").status_code == client.get("/ready").status_code == 200


def part(body, more=True):
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_that_is_slow_or_ends_early_takes_no_place(service, monkeypatch):
    monkeypatch.setattr(guard_module, "BODY_SECONDS", 0.05)
    client, counted = client_of(service, queue=1)
    assert asgi(client.app, [part(b'{"inp')])[0]["status"] == 408
    assert asgi(client.app, [part(b'{"inp'), {"type": "http.disconnect"}]) == []
    assert counted == [("/v1/embeddings", 408, {}), ("/v1/embeddings", 499, {})] and alive(client)


def test_a_body_ends_at_the_limit_and_a_length_beyond_it_is_refused_at_once(service):
    for length in (b"8388609", b"9" * 5000, b"-1"):
        start, body = asgi(client_of(service)[0].app, [], headers=[(b"content-length", length)])
        assert start["status"] == 413 and b'"code":"too_large"' in body["body"]
    endless = iter(range(100))
    start, _ = asgi(client_of(service)[0].app, (part(b" " * 2**20) for _ in endless))
    assert start["status"] == 413 and next(endless) == 9


def test_a_cancelled_request_gives_its_place_back_and_the_end_waits_for_others():
    """Ray cancels a request when the client hangs up."""

    async def run():
        go, begun, sent = asyncio.Event(), asyncio.Event(), []

        async def app(scope, receive, send):
            begun.set()
            await go.wait()

        settings, engine = check_serve(ServeFlags(queue=1)), Engine(None)
        guard = Guard(app, settings=settings, routes=frozenset(), observe=lambda *_, **__: None, engine=engine)
        body = [part(b"{}", more=False)]
        task = asyncio.create_task(call(guard, body, []))
        await begun.wait()
        assert (guard.working, engine.requests) == (1, 1)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() and guard.working == engine.requests == 0

        begun.clear()
        first = asyncio.create_task(call(guard, body, []))
        await begun.wait()
        ending = asyncio.create_task(engine.close(60))
        await asyncio.sleep(0)
        await call(guard, body, sent)
        assert sent[0]["status"] == 503 and (b"retry-after", b"1") in sent[0]["headers"] and not ending.done()
        assert b'{"error":{"message":"the server is shutting down; try again"' in sent[1]["body"]
        go.set()
        await asyncio.gather(first, ending)
        assert guard.working == engine.requests == 0

    asyncio.run(run())


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("RAYCASE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"host": "0.0.0.0"}, "expected a token to listen at 0.0.0.0"),
        ({"port": 70000}, "--port: expected 0 to 65,535"),
        ({"replicas": 0}, "--replicas: expected at least 1"),
        ({"gpus_per_replica": -1.0}, "--gpus-per-replica: expected at least 0"),
        ({"memory": 0.0}, "--memory: expected GiB above 0"),
        ({"token_file": "nowhere"}, "--token-file nowhere: expected a file with a token"),
        ({"index": ""}, "--index: expected a path"),
        ({"allow_origin": ("*",)}, "--allow-origin: expected an origin"),
    ],
)
def test_wrong_flags(flags, said):
    with pytest.raises(RequestError, match=f"^{said}") as error:
        check_serve(ServeFlags(**flags))
    assert "\n" not in str(error.value)


def test_without_the_extra_it_says_which(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    with pytest.raises(RequestError, match=r"^expected the package fastapi .*pip install 'raycase\[serve\]'$"):
        command.serve(command.ServeFlags())


@pytest.mark.parametrize("token", ["", "a" * 15, "a token with blanks in it"])
def test_a_token_that_is_none_is_refused_and_not_shown(token, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(token)
    for flags in ({"token_file": str(tmp_path / "token")}, {}):
        with pytest.raises(RequestError, match="expected a token of 16 or more letters and digits") as error:
            monkeypatch.setenv("RAYCASE_TOKEN", token)
            check_serve(ServeFlags(**flags))
        assert not token or token not in str(error.value)


def test_a_token_is_known_by_its_hash_alone(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    settings = check_serve(ServeFlags(host="0.0.0.0", token_file=str(tmp_path / "token")))
    monkeypatch.setenv("RAYCASE_TOKEN", TOKEN)
    assert settings.token_sha256 == check_serve(ServeFlags()).token_sha256 == sha256_of(TOKEN)
    assert TOKEN not in repr(settings)
    monkeypatch.delenv("RAYCASE_TOKEN")
    for flags, said in (({}, "expected a token to listen on a cluster"), ({"port": 0}, "--port: expected the port on")):
        with pytest.raises(RequestError, match=f"^{said}"):
            check_serve(ServeFlags(**flags), on_cluster=True)


def test_a_port_that_something_listens_on_is_refused():
    """Ray would share it, and requests would go to either."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=rf"^--port: expected 127.0.0.1:{port} as .* free, got: "):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", 0) > 0
    with pytest.raises(RequestError, match="expected no such host:1 as "):
        free_port("no such host", 1)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("BAAI/bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
        ("/srv/models/case/", "case"),
        ("../case", "case"),
        ("condition-pooling:/srv/models/bert", "bert"),
        ("package:raycase/models/minilm-conditional-v3", "minilm-conditional-v3"),
    ],
)
def test_a_model_has_a_name_for_strangers(model, name):
    assert public_name(model) == name


def test_a_replica_which_works_elsewhere_gets_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    settings = check_serve(ServeFlags(index="i.lance", model="runs"))
    assert (settings.index, settings.model) == (str(tmp_path / "i.lance"), str(tmp_path / "runs"))
