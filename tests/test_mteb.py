"""A model of raycase in MTEB: its own mock tasks, and search under the instruction of each query."""

import numpy as np
import pytest
import torch
from helpers import Later

import raycase

mteb, mocks, datasets = Later("mteb"), Later("mteb.mocks.mock_tasks"), Later("datasets")
mteb_model = Later("raycase.integrations.mteb")

DOCUMENTS = [
    ("d1", "", "a red dog runs in the park"),
    ("d2", "Music", "two girls play the guitar"),
    ("d3", "", "a man in a blue shirt sleeps beside a small dog"),
    ("d4", "", "two girls play the guitar"),
    ("d5", "", "three boys in red shirts"),
    ("d6", "", "nobody is at the beach"),
    ("d7", "", "a red dog runs in the park"),
]
TEXTS = [f"{title} {text}".strip() for _, title, text in DOCUMENTS]
QUERIES = [
    ("q1-og", "a dog in red", "color"),
    ("q1-changed", "a dog in red", "number of people"),
    ("q2", "girls with a guitar", "color"),
    ("q3", "boys at the beach", "place"),
]


@pytest.fixture(scope="module")
def pooling():
    return raycase.load(dtype=torch.float32)  # in bfloat16, other batches change more than the last bits


def pairs(folder):
    return raycase.load(folder, prompt="concat-sc", pooling="mean", dtype=torch.float32)


@pytest.fixture(scope="module", params=["condition pooling", "prompts"])
def model(request, pooling, tiny_model):
    """One that encodes texts alone, and one that encodes every pair."""
    return pooling if request.param == "condition pooling" else pairs(tiny_model)


def rows(names, values):
    return datasets.Dataset.from_list([dict(zip(names, value, strict=True)) for value in values])


def search(encoder, queries=QUERIES, **options):
    task = {"task_metadata": mocks.MockInstructionRetrieval.metadata, "encode_kwargs": {}, "num_proc": None}
    task |= {"hf_split": "test", "hf_subset": "default"}
    encoder.index(rows(("id", "title", "text"), DOCUMENTS), **task)
    return encoder.search(rows(("id", "text", "instruction"), queries), **task, **options)


@pytest.mark.cluster
def test_the_mock_tasks_of_mteb_pass(pooling):
    assert isinstance(raycase.to_mteb(pooling), mteb.EncoderProtocol | mteb.SearchProtocol)
    results = mteb.mock_run(raycase.to_mteb(pooling, "color"))
    assert {name: status.exception for name, status in results.items() if hasattr(status, "exception")} == {}
    done = [name for name, status in results.items() if status is not None]
    assert {"MockSTSTask", "MockClusteringTask", "MockRetrievalTask", "MockInstructionReranking"} <= {*done}


def test_search_is_each_query_against_all_documents_under_its_instruction(model):
    encoder = mteb_model.ConditionalEncoder(model, None, pairs_at_once=7)
    pairs = [(model.encode(query, under), model.encode(TEXTS, under)) for _, query, under in QUERIES]
    wanted = np.stack([model.similarity(*each)[0] for each in pairs])  # each under its instruction anew: (Q, N)
    assert not np.allclose(wanted[0], wanted[1], atol=1e-3)  # the same query under another instruction
    found = search(encoder, top_k=100)
    assert list(found) == [name for name, _, _ in QUERIES]
    scores = [[found[query][name] for name, _, _ in DOCUMENTS] for query, _, _ in QUERIES]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    for (query, _, _), cosines in zip(QUERIES, wanted, strict=True):
        best = search(encoder, top_k=3)[query]
        np.testing.assert_allclose(sorted(best.values()), sorted(cosines)[-3:], atol=1e-5)


def test_results_under_another_condition_are_not_taken_from_mtebs_cache(pooling, tmp_path, monkeypatch):
    def embeds(condition):
        encoder, calls = raycase.to_mteb(pooling, condition), []
        encode = encoder.encode
        monkeypatch.setattr(encoder, "encode", lambda *given, **more: calls.append(1) or encode(*given, **more))
        mteb.evaluate(encoder, mocks.MockSTSTask(), cache=mteb.ResultCache(tmp_path), show_progress_bar=False)
        return bool(calls)

    conditions = [None, "place?", "place*"]  # mteb names the folders of both alike
    assert [embeds(condition) for condition in conditions] == [True, True, True]
    assert [embeds(condition) for condition in conditions] == [False, False, False]


def encode(encoder, texts):
    return encoder.encode([{"text": texts}], task_metadata=mocks.MockSTSTask.metadata)


def test_vectors_are_those_of_the_model_at_length_one(model):
    for condition in (None, "color"):
        wanted = model.encode(TEXTS, condition, normalize=True)
        np.testing.assert_allclose(encode(raycase.to_mteb(model, condition), TEXTS), wanted, atol=1e-6)
    assert encode(raycase.to_mteb(model, "color"), []).shape == (0, model.dim)


def test_a_text_without_words_is_like_nothing(pooling, caplog):
    found = encode(raycase.to_mteb(pooling, "color"), ["a red dog", "", "  "])
    np.testing.assert_array_equal(found[1:], np.zeros((2, 512)))
    np.testing.assert_allclose(found[0], pooling.encode("a red dog", "color", normalize=True), atol=1e-6)
    assert "2 of 3 texts have no words" in caplog.text


def test_what_has_no_vector_stops_the_run(tiny_model, pooling):
    encoder = raycase.to_mteb(pairs(tiny_model), "color")
    with pytest.raises(RuntimeError, match="vector not finite: 'poison' under 'color'"):
        encode(encoder, ["a dog", "poison"])
    with pytest.raises(RuntimeError, match="no room for the sentence: 'a dog in red' under 'red red"):
        search(raycase.to_mteb(pooling), [*QUERIES, ("q9", "a dog in red", "red " * 600)], top_k=3)
    with pytest.raises(ValueError, match="no room"):
        raycase.to_mteb(pooling, "red " * 600)


def test_a_wrapper_around_the_model_does_not_lose_the_instructions_of_a_search(pooling):
    wrapper = mteb.models.SearchEncoderWrapper(raycase.to_mteb(pooling))
    with pytest.raises(ValueError, match="without a wrapper"):
        mteb.evaluate(wrapper, mocks.MockInstructionRetrieval(), cache=None)
    mteb.evaluate(wrapper, mocks.MockRetrievalTask(), cache=None)
