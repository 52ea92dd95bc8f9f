"""What the routes and the tools of agents answer: vectors are those of the model, answers those of the newest index."""

import asyncio
import base64
import json
import subprocess
import sys
import threading
from contextlib import contextmanager
from functools import partial

import httpx2
import numpy as np
import pytest
import storing
import uvicorn
from helpers import cosines
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from served import app_of, client_of, refusal

import raycase
from raycase.commands.teach import TeachFlags, teach
from raycase.errors import WorkError
from raycase.index.index import Index
from raycase.serve import service as module
from raycase.serve.schema import SearchRequest
from raycase.serve.service import LiveIndex, Service
from raycase.serve.settings import ServeFlags, check_serve, free_port

TEXTS = ["a red dress", "two people play with a dog", "a red dress"]


def vectors_of(answer):
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)


def embed(client, **asked):
    return client.post("/v1/embeddings", json=asked)


@pytest.mark.parametrize("condition", [None, "color", ["color", "number of people", "color"]])
def test_vectors_are_those_of_encode(client, model, condition):
    answer = embed(client, input=TEXTS, condition=f" {condition}\n" if condition == "color" else condition)
    found, expected = vectors_of(answer), model.encode(TEXTS, condition)
    assert found.shape == expected.shape == (3, 32 if condition is None else 11)
    assert np.allclose(found, expected, atol=1e-5)
    said = answer.json()
    assert [item["index"] for item in said["data"]] == [0, 1, 2]
    assert (said["object"], said["model"], said["data"][0]["object"]) == ("list", "model", "embedding")
    assert said["usage"] == {"prompt_tokens": said["usage"]["total_tokens"], "total_tokens": tokens(model, condition)}


def tokens(model, condition):
    conditions = [condition] * 3 if isinstance(condition, str) else condition or []
    return sum(len(model.encoder.tokenize.tokenizer.encode(text).ids) for text in (*TEXTS, *conditions))


def test_one_text_a_cut_and_unit_length(client, home, model):
    cut = raycase.load(home / "model", dim=6).encode(TEXTS, "color")
    assert np.allclose(vectors_of(embed(client, input=TEXTS, condition="color", dimensions=6)), cut, atol=1e-5)
    [unit] = vectors_of(embed(client, input=TEXTS[0], condition="color", dimensions=6, normalize=True))
    assert cosines(unit[None], cut[:1]) > 0.9999 and np.linalg.norm(unit) == pytest.approx(1)
    [plain] = vectors_of(embed(client, input=TEXTS[0], dimensions=32))
    assert np.allclose(plain, model.encode(TEXTS[0]), atol=1e-5)


def test_base64_holds_the_same_numbers_whatever_a_proxy_adds(client):
    numbers = vectors_of(embed(client, input=TEXTS, condition="color"))
    added = {"user": "a", "metadata": {"key": ["b"]}, "input_type": "query", "truncate": "END", "encoding_format": None}
    assert np.array_equal(vectors_of(embed(client, input=TEXTS, condition="color", **added)), numbers)
    answer = embed(client, input=TEXTS, condition="color", encoding_format="base64").json()
    found = [np.frombuffer(base64.b64decode(item["embedding"]), "<f4") for item in answer["data"]]
    assert np.array_equal(np.stack(found), numbers)


def test_a_text_that_loses_tokens_says_so(client):
    answer = embed(client, input=["dog " * 2000, "dog"], condition="color").json()
    assert [item["truncated"] for item in answer["data"]] == [True, False]
    refused = embed(client, input=["dog", "dog " * 2000], condition="color", truncate="NONE")
    assert "text 1: expected a text that model can embed, got: more tokens than it reads" in refusal(refused, 422)


def test_the_model_has_a_name_and_no_place(client, home):
    [model] = client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"]) == ("model", "model")
    assert vectors_of(embed(client, input="a", model="model")).shape == (1, 32)
    assert client.get("/v1/models/model").json() == client.get("/v1/models/").json()["data"][0] == model
    for refused in (embed(client, input="a", model="o/b"), client.get("/v1/models/o%2Fb")):
        assert refusal(refused, 404) == "model: expected model, got 'o/b'"
        assert (refused.json()["error"]["param"], refused.json()["error"]["code"]) == ("model", "model_not_found")


def test_a_wrong_column_of_documents_names_the_flag_that_makes_one(client):
    said = refusal(client.post("/search", json={"queries": "dog", "per": "nope"}), 422)
    assert said.endswith("got 'nope'; chunk of `raycase embed` writes the column document")


def test_answers_are_those_of_the_index(client, home):
    asked = {"k": 3, "where": "year > 2010"}
    found = client.post("/search", json={"queries": TEXTS, "condition": "color", **asked}).json()["answers"]
    rows = Index.open(str(home / "i.lance")).search(TEXTS, "color", **asked).to_pylist()
    for query, answers in enumerate(found):
        expected = [row for row in rows if row["query"] == query]
        assert [(a["row"]["id"], a["row"]["text"], a["rank"], a["pooled"]) for a in answers] == [
            (row["id"], row["text"], row["rank"], True) for row in expected
        ]
        assert [a["score"] for a in answers] == pytest.approx([row["score"] for row in expected], abs=1e-5)
        assert all(a["row"]["year"] > 2010 for a in answers)
    weights = {"color": 2, "dog": ["red", -0.5]}
    weighted = client.post("/search", json={"queries": TEXTS, "conditions": weights}).json()["answers"]
    rows = Index.open(str(home / "i.lance")).search(TEXTS, weights).to_pylist()
    found_parts = [(i, a["row"]["id"], a["score"], a["parts"]) for i, each in enumerate(weighted) for a in each]
    assert found_parts == [(row["query"], row["id"], row["score"], row["parts"]) for row in rows] != []
    for wrong in ({"color": True}, {"color": [1, "red"]}, {}, {"color": 1e999}):
        body = json.dumps({"queries": "a", "conditions": wrong}).replace("Infinity", "1e999")
        assert client.post("/search", content=body, headers={"content-type": "application/json"}).status_code == 422
    zeros = client.post("/search", json={"queries": "a", "conditions": {"color": 0}})
    assert zeros.status_code == 422 and "expected a weight other than 0" in zeros.json()["error"]["message"]
    words = {"match": "red", "hybrid": True, "k": 2}
    [hybrid] = client.post("/search", json={"queries": "dog", "condition": "color", **words}).json()["answers"]
    rows = Index.open(str(home / "i.lance")).search("dog", "color", **words).to_pylist()
    ranks = [(a["row"]["id"], a["vector_rank"], a["text_rank"]) for a in hybrid]
    assert ranks == [(row["id"], row["vector_rank"], row["text_rank"]) for row in rows] and len(rows) == 2
    none = client.post("/search", json={"queries": "dog", "condition": "color", "where": "year > 9999"})
    assert none.json() == {"answers": [[]]}


def test_words_and_clusters(client, home, model):
    said = client.post("/explain", json={"texts": "a red dress", "conditions": ["color", "dog"]}).json()["weights"]
    expected = model.word_weights(["a red dress"] * 2, ["color", "dog"])
    assert [(each["text"], each["condition"]) for each in said] == [("a red dress", "color"), ("a red dress", "dog")]
    for each, words in zip(said, expected, strict=True):
        assert [word["word"] for word in each["words"]] == ["a", "red", "dress"]
        assert [word["weight"] for word in each["words"]] == pytest.approx([word.weight for word in words], abs=1e-5)
    found = client.post("/facets", json={"condition": "color", "clusters": 3.0, "where": "year < 2010"}).json()
    assert sum(cluster["rows"] for cluster in found["clusters"]) == found["rows"] == 30
    assert len(found["clusters"]) == 3 and found["clusters"][0]["words"][0]["score"] > 0
    assert found["clusters"][0]["examples"][0]["text"]


def test_without_an_index_its_routes_say_so(home):
    service = Service.load(check_serve(ServeFlags(model=str(home / "model"))))
    client, _ = client_of(service)
    assert vectors_of(embed(client, input="a red dress", condition="color")).shape == (1, 11)
    for route, asked in (("/search", {"queries": "a"}), ("/facets", {"condition": "color"}), ("/search", {})):
        assert "start it with --index" in refusal(client.post(route, json=asked), 404)
    assert client.get("/conditions").json() == {"conditions": None}
    assert client.get("/ready").json() == {"ready": True, "model": "model"}


def test_a_vector_that_is_not_finite_is_no_answer(tiny_model):
    client, _ = client_of(Service.load(check_serve(ServeFlags(model=str(tiny_model)))))
    answer = embed(client, input=["a red dress", "poison"])
    assert refusal(answer, 422) == "input: text 1: expected a text that tiny0 can embed, got: vector not finite"


def test_to_json_schema_a_number_with_a_point_is_an_integer(client):
    for wrong in (True, "3", 1e300):
        assert refusal(client.post("/search", json={"queries": "dog", "k": wrong}), 422).startswith("k: ")
    schema = client.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"]["k"]
    assert schema == {"default": 10, "maximum": 1000, "minimum": 1, "title": "K", "type": "integer"}


def test_what_is_counted(service):
    client, told = client_of(service)
    used = embed(client, input=TEXTS).json()["usage"]["total_tokens"]
    embed(client, input=3)
    client.get("/.env")
    embedded = ("/v1/embeddings", 200, {"texts": 3, "tokens": used})
    assert told == [embedded, ("/v1/embeddings", 422, {}), ("other", 404, {})]


def test_an_encoder_that_fails_is_no_fault_of_the_texts(client, service, monkeypatch):
    def fail(prepared):
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(service.encoder, "encode_prepared", fail)
    assert "see the server's log" in refusal(embed(client, input=TEXTS), 500)


@pytest.fixture
def live(home, tmp_path, monkeypatch):
    storing.indexed(tmp_path / "i.lance", str(home / "words"))
    monkeypatch.setattr(module, "CHECKED", -1.0)
    return LiveIndex(partial(Index.open, str(tmp_path / "i.lance")))


def rows(index):
    return index.metadata.rows


def test_a_new_version_is_taken_once_in_a_while_with_the_model_that_is_loaded(live, home, tmp_path, monkeypatch):
    encoder = live.on(lambda index: index.encoder)
    monkeypatch.setattr(module, "CHECKED", 3600.0)
    more = storing.stored(tmp_path / "more", str(home / "model"), storing.texts(5, first=1000))
    storing.indexed(tmp_path / "i.lance", more)
    assert live.on(rows) == 60
    monkeypatch.setattr(module, "CHECKED", 0.0)
    assert live.on(rows) == 65 and live.on(lambda index: index.encoder) is encoder
    ask = lambda index: index.search(["dog"], "color", 65)["id"].to_pylist()  # noqa: E731 said in one line
    assert live.on(ask) == ask(Index.open(str(tmp_path / "i.lance")))


def test_what_the_index_is_taught_and_forgets_is_known_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKED", -1.0)
    model = storing.model_folder(tmp_path, **storing.TEACHABLE)
    index = storing.indexed(tmp_path / "i.lance", storing.stored(tmp_path / "a", model, storing.texts(120)))
    service = Service.load(check_serve(ServeFlags(index=index)))
    asked = SearchRequest(queries=["a red dress"], condition="What they wear", k=120)

    def found():
        scores = [each["score"] for each in service.search(asked)["answers"][0]]
        return scores, service.embed(["a red dress"], ["what they wear"])[0].vector

    by_words, vector = found()
    texts, labels = storing.answers(120)
    lines = [json.dumps({"text": text, "label": label}) for text, label in zip(texts, labels, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    flags = {"index": index, "condition": "what they wear"}
    assert teach(TeachFlags(**flags, answers=str(tmp_path / "a.jsonl")))["gained"]
    taught, taught_vector = found()
    assert taught != by_words and np.abs(taught_vector - vector).max() > 0.01
    own = Index.open(index).search(["a red dress"], "what they wear", 120)["score"].to_pylist()
    assert taught == pytest.approx(own, abs=1e-6)
    teach(TeachFlags(**flags, forget=True))
    assert found()[0] == pytest.approx(by_words, abs=1e-6) and (found()[1] == vector).all()


def test_what_cannot_be_opened_is_not_taken(live, home, tmp_path, capsys, monkeypatch):
    other = storing.model_folder(tmp_path, heads=2)
    storing.indexed(tmp_path / "i.lance", storing.stored(tmp_path / "c", other, storing.texts(5)), overwrite=True)
    assert live.newest().metadata.rows == 60
    assert "still using the open version" in (said := capsys.readouterr().err) and "restart the service" in said

    def lost():
        raise WorkError("a store that does not answer")

    monkeypatch.setattr(live, "open", lost)
    assert live.newest().metadata.rows == 60 and "a store that does not answer" in capsys.readouterr().err


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


def said_by(result, *, wrong=False):
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
        for tool in tools.values():  # what is said_by of it stands in its description
            assert not {"title", "description"} & {*tool.input_schema} and tool.description
        found = said_by(await client.call_tool("search", ASKED))
        assert said_by(await client.call_tool("conditions", {}))["any"] is True
        words = said_by(await client.call_tool("explain", {"texts": "a red dress", "conditions": "color"}))["weights"]
        assert [word["word"] for word in words[0]["words"]] == ["a", "red", "dress"]
        assert said_by(await client.call_tool("facets", {"condition": "color", "clusters": 2}))["rows"] == 60
        calls = [("search", ASKED | more) for more in ({"colour": "red"}, {"k": 3.5}, {"where": "no_column = 1"})]
        calls.append(("delete", {}))
        wrong = [said_by(await client.call_tool(name, asked), wrong=True) for name, asked in calls]
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


@pytest.mark.cluster
def test_over_stdio(home):
    words = ["-m", "raycase", "serve", "--mcp", "stdio", "--index", str(home / "i.lance")]
    tools, found, wrong = asyncio.run(looked_up(StdioServerParameters(command=sys.executable, args=words)))
    assert len(tools) == 4 and len(ids(found)) == 3 and len(wrong) == 4
