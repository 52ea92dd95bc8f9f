"""What the routes answer, without Ray: vectors are those of the model, answers those of the index."""

import base64
import json

import numpy as np
import pytest
from helpers import cosines
from served import client_of, refusal

import raycase
from raycase.index.index import Index
from raycase.serve.schema import EmbeddingRequest
from raycase.serve.service import Service
from raycase.serve.settings import ServeSettings, check_serve

TEXTS = ["a red dress", "two people play with a dog", "a red dress"]


def vectors_of(answer):
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float32)


def embed(client, **asked):
    return client.post("/v1/embeddings", json=asked)


@pytest.mark.parametrize("condition", [None, "color", ["color", "number of people", "color"]])
def test_vectors_are_those_of_encode(client, model, condition):
    answer = embed(client, input=TEXTS, condition=condition)
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


def test_a_condition_has_its_normal_form():
    assert EmbeddingRequest(input="a", condition=" the\u00a0color\n").conditions == ["the color"]


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
    for refused in (
        embed(client, input="a", model="o/b"),
        client.get("/v1/models/o/b"),
        client.get("/v1/models/o%2Fb"),
    ):
        assert refusal(refused, 404) == "model: expected model, got 'o/b'"
        assert (refused.json()["error"]["param"], refused.json()["error"]["code"]) == ("model", "model_not_found")


def test_an_integer_may_have_a_point(client):
    """To JSON Schema, 3.0 is an integer."""
    [three] = client.post("/search", json={"queries": "dog", "k": 3.0}).json()["answers"]
    assert len(three) == 3 and vectors_of(embed(client, input="a", condition="c", dimensions=6.0)).shape == (1, 6)
    assert len(client.post("/facets", json={"condition": "color", "clusters": 2.0}).json()["clusters"]) == 2
    for wrong in (3.5, True, "3", 1e300):
        assert refusal(client.post("/search", json={"queries": "dog", "k": wrong}), 422).startswith("k: ")
    schema = client.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"]["k"]
    assert schema == {"default": 10, "maximum": 1000, "minimum": 1, "title": "K", "type": "integer"}


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
    for wrong in ({"color": True}, {"color": "2"}, {"color": [1, "red"]}, {}, {" ": 1}, {"color": 1e999}):
        body = json.dumps({"queries": "a", "conditions": wrong}).replace("Infinity", "1e999")
        assert client.post("/search", content=body, headers={"content-type": "application/json"}).status_code == 422
    zeros = client.post("/search", json={"queries": "a", "conditions": {"color": 0}})
    assert zeros.status_code == 422 and "expected a weight other than 0" in zeros.json()["error"]["message"]
    schema = client.get("/openapi.json").json()["components"]["schemas"]["SearchRequest"]["properties"]["conditions"]
    assert schema["anyOf"][0]["additionalProperties"]["anyOf"][0] == {"type": "number"}
    words = {"match": "red", "hybrid": True, "k": 2}
    [hybrid] = client.post("/search", json={"queries": "dog", "condition": "color", **words}).json()["answers"]
    rows = Index.open(str(home / "i.lance")).search("dog", "color", **words).to_pylist()
    ranks = [(a["row"]["id"], a["vector_rank"], a["text_rank"]) for a in hybrid]
    assert ranks == [(row["id"], row["vector_rank"], row["text_rank"]) for row in rows] and len(rows) == 2
    plain = client.post("/search", json={"queries": "a red dress", "unconditional": True, "k": 1}).json()["answers"]
    assert plain[0][0]["condition"] is None and not plain[0][0]["pooled"]
    none = client.post("/search", json={"queries": "dog", "condition": "color", "where": "year > 9999"})
    assert none.json() == {"answers": [[]]}


def test_words_and_clusters(client, home, model):
    said = client.post("/explain", json={"texts": "a red dress", "conditions": ["color", "dog"]}).json()["weights"]
    expected = model.word_weights(["a red dress"] * 2, ["color", "dog"])
    assert [(each["text"], each["condition"]) for each in said] == [("a red dress", "color"), ("a red dress", "dog")]
    for each, words in zip(said, expected, strict=True):
        assert [word["word"] for word in each["words"]] == ["a", "red", "dress"]
        assert [word["weight"] for word in each["words"]] == pytest.approx([word.weight for word in words], abs=1e-5)
    found = client.post("/facets", json={"condition": "color", "clusters": 3, "where": "year < 2010"}).json()
    assert sum(cluster["rows"] for cluster in found["clusters"]) == found["rows"] == 30
    assert len(found["clusters"]) == 3 and found["clusters"][0]["words"][0]["score"] > 0
    assert found["clusters"][0]["examples"][0]["text"]


def test_without_an_index_its_routes_say_so(home):
    service = Service.load(check_serve(ServeSettings(model=str(home / "model"))))
    client, _ = client_of(service)
    assert vectors_of(embed(client, input="a red dress", condition="color")).shape == (1, 11)
    for route, asked in (("/search", {"queries": "a"}), ("/facets", {"condition": "color"}), ("/search", {})):
        assert "start it with --index" in refusal(client.post(route, json=asked), 404)
    assert client.get("/conditions").json() == {"conditions": None}
    assert client.get("/ready").json() == {"ready": True, "model": "model"}


def test_a_vector_that_is_not_finite_is_no_answer(tiny_model):
    client, _ = client_of(Service.load(check_serve(ServeSettings(model=str(tiny_model)))))
    answer = embed(client, input=["a red dress", "poison"])
    assert refusal(answer, 422) == "input: text 1: expected a text that tiny0 can embed, got: vector not finite"


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
