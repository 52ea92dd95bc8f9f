"""Long texts in chunks: what is written of each document, resumed alike, searched and replaced by document."""

import json
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import storing
import torch
from helpers import embed_here, embedded, read_output, read_rejected, sentences, vectors
from indexed import refuse

from raycase.commands.embed import EmbedFlags
from raycase.commands.search import SearchFlags, search
from raycase.encoder.chunks import Chunking
from raycase.encoder.sources import load_tokenizer
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.job import steps
from raycase.job.results import count_defects
from raycase.job.verify import verify
from raycase.models.registry import resolve_embedder

CONDITIONS = ("color", "number of people")
CUT = {"chunk": 12, "overlap": 4}


def documents_of(count, seed=0):
    """Of one to six sentences."""
    texts, chance = sentences(count * 6, seed), random.Random(seed)
    written = [". ".join(texts[6 * i : 6 * i + chance.randint(1, 6)]) + "." for i in range(count)]
    return [{"id": i, "text": text, "year": i % 5} for i, text in enumerate(written)]


@pytest.fixture(scope="module")
def home(tmp_path_factory, tiny_model):
    """`out`: 40 documents in chunks under two conditions, of which one is rejected; `index`: of it."""
    home = tmp_path_factory.mktemp("documents")
    rows = documents_of(40)
    rows[7]["text"] = "\u200b\n\u200b"
    settings = {"conditions": CONDITIONS, "keep_columns": ("text", "year"), "max_rejected": 1, **CUT}
    storing.indexed(home / "i.lance", embedded(home, tiny_model, rows, output=str(home / "out"), **settings))
    return home, rows


def files(folder):
    return {f.name: f.read_bytes() for f in sorted(Path(folder, "embeddings").iterdir())}


def test_a_chunk_is_whole_sentences_as_they_stand_and_no_text_is_lost(tiny_model):
    spec = resolve_embedder(str(tiny_model)).encoder
    texts = ["One dog. Two cats run! Three\nmen sit? " * 20, "  ", "x" * 3000, "a \u200b. " * 50, "日本語。犬。" * 40]
    texts += ["".join(map(chr, random.Random(seed).choices(range(32, 0x3000), k=400))) for seed in range(10)]
    count = lambda text: len(load_tokenizer(spec).tokenizer.encode(text, add_special_tokens=False))  # noqa: E731
    for text in texts:
        for chunking in (Chunking(tokens=9), Chunking(tokens=9, overlap=4), Chunking(tokens=1)):
            spans = list(chunking.cut(spec, text))
            covered = {i for start, end in spans for i in range(start, end)}
            assert all(text[i].isspace() or not text[i].isprintable() for i in set(range(len(text))) - covered)
            assert all(count(text[a:b]) <= chunking.tokens and text[a:b] == text[a:b].strip() for a, b in spans)
            assert all(a < c < d and b < d for (a, b), (c, d) in pairwise(spans))
    ends = [texts[0][b - 1] for _, b in Chunking(tokens=12).cut(spec, texts[0])]
    assert len(ends) > 10 and set(ends) <= set(".!?")


def test_a_giant_document_is_cut_in_parts_of_bounded_size(tiny_model, monkeypatch):
    spec, text = resolve_embedder(str(tiny_model)).encoder, "A dog runs. Two men sit on a ball. " * 400
    whole = list(Chunking(tokens=10).cut(spec, text))
    monkeypatch.setattr("raycase.encoder.chunks.AT_ONCE", 300)
    assert list(Chunking(tokens=10).cut(spec, text)) == whole
    assert list(Chunking(tokens=10).cut(spec, "x" * 1000 + " y" * 9))[-1][1] == 1018


def test_chunks_have_the_vectors_of_their_texts_and_count_by_document(home, tiny_model):
    home, rows = home
    table = read_output(str(home / "out"))
    assert table.schema.names[:8] == ["id", "condition", "document", "chunk", "start", "end", "text", "year"]
    assert (table["id"].type, table["document"].type) == (pa.string(), pa.int64())
    for row in table.to_pylist():
        assert row["id"] == f"{row['document']}#{row['chunk']}" and row["year"] == row["document"] % 5
        assert row["text"] == rows[row["document"]]["text"][row["start"] : row["end"]]
    texts = [{"id": i, "text": text} for i, text in enumerate(dict.fromkeys(table["text"].to_pylist()))]
    alone = read_output(embedded(home / "p", tiny_model, texts, conditions=CONDITIONS))
    known, got = (zip(t["text"].to_pylist(), t["condition"].to_pylist(), strict=True) for t in (alone, table))
    wanted = dict(zip(known, vectors(alone), strict=True))
    assert np.allclose(vectors(table), [wanted[pair] for pair in got], atol=1e-5)
    counts = {"rows_in": 40, "rows_out": 39, "rows_rejected": 1, "pairs": len(table), "units": 1}
    assert verify(str(home / "out")) == counts
    config = json.loads(Path(home, "out", "job.json").read_text())["config"]
    assert config["chunk"] == [12, 4]
    assert not list(count_defects(39, table, config))
    without_one = table.filter(pa.array([d != 3 for d in table["document"].to_pylist()]))
    for broken in (table.slice(0, len(table) - 1), without_one):
        assert list(count_defects(39, broken, config))


def test_late_chunks_pool_their_tokens_of_the_whole_document(tiny_model, tmp_path):
    from transformers import AutoModel, AutoTokenizer

    rows = [*documents_of(12, seed=3), {"id": 12, "text": "A dog runs on a red ball today. " * 40, "year": 0}]
    rows.append({"id": 13, "text": "\ufffd", "year": 0})  # a chunk without tokens
    model, apart = f"condition-pooling:{tiny_model}", {"prompt": None, "pooling": None, "chunk": 12, "max_rejected": 1}
    late = apart | {"late_chunking": True}
    embedded(tmp_path / "u", model, rows, output=str(tmp_path / "plain"), unconditional=True, **late)
    table = read_output(str(tmp_path / "plain"))
    encoder, tokenizer = AutoModel.from_pretrained(tiny_model).eval(), AutoTokenizer.from_pretrained(tiny_model)
    states, whole = {}, 0
    for row, vector in zip(table.to_pylist(), vectors(table), strict=True):
        text, document = rows[row["document"]]["text"], row["document"]
        tokens = tokenizer(text, return_tensors="pt", return_offsets_mapping=True, verbose=False)
        chunks = sum(d == document for d in table["document"].to_pylist())
        if chunks > 1 and tokens["input_ids"].shape[1] <= tokenizer.model_max_length:
            offsets = tokens.pop("offset_mapping")[0]
            if document not in states:
                with torch.inference_mode():
                    states[document] = encoder(**tokens).last_hidden_state[0]
            inside = (offsets[:, 0] >= row["start"]) & (offsets[:, 1] <= row["end"]) & (offsets[:, 1] > offsets[:, 0])
            assert np.allclose(vector, states[document][inside].mean(0).numpy(), atol=1e-5)
            whole += 1
    assert whole > 20 and len(states) > 5
    [rejected] = read_rejected(str(tmp_path / "plain"))
    assert (rejected["id"], rejected["reason"]) == ("13", "empty text")
    embedded(tmp_path / "c", model, rows, output=str(tmp_path / "under"), conditions=CONDITIONS, **late)
    embedded(tmp_path / "a", model, rows, output=str(tmp_path / "any"), any_condition=True, **late)
    under, stored = read_output(str(tmp_path / "under")), read_output(str(tmp_path / "any"))
    assert len(under) == len(CONDITIONS) * len(table) and stored["id"] == table["id"]
    assert np.allclose(vectors(stored), vectors(table), atol=1e-6)
    embedded(tmp_path / "b", model, rows, output=str(tmp_path / "apart"), conditions=CONDITIONS, **apart)
    alone = read_output(str(tmp_path / "apart"))
    same = np.isclose(vectors(under), vectors(alone), atol=1e-5).all(1)
    documents = alone["document"].to_pylist()
    single = np.array([documents.count(d) == len(CONDITIONS) for d in documents])
    assert single.any() and same[single].all() and same[~single].mean() < 0.1  # of a window of its own
    assert verify(str(tmp_path / "under"))["rows_out"] == 13
    index = Index.open(storing.indexed(tmp_path / "i.lance", tmp_path / "any"))
    found = index.search(["a dog"], "color", 20, per="document")
    assert sorted(found["document"].to_pylist()) == list(range(13))


def test_units_are_bounded_by_chunks_and_a_stopped_job_resumes_to_equal_files(home, tiny_model, tmp_path, monkeypatch):
    _, rows = home
    rows = [*rows[:20], {"id": 99, "text": "A dog runs on a red ball today. " * 300, "year": 0}, *rows[20:]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = {"input": str(tmp_path / "in.jsonl"), "output": str(tmp_path / "a"), "model": str(tiny_model)}
    settings = {"prompt": "concat-sc", "pooling": "mean", "dtype": "float32", "unit_rows": 20, "max_rejected": 1}
    job = EmbedFlags(conditions=CONDITIONS, **places, **settings, **CUT)
    monkeypatch.setattr(steps, "PAIRS_OF_UNIT", 40)
    result = embed_here(job)
    assert result["rows_in"] == 41 and verify(str(tmp_path / "a"))["rows_out"] == 40
    table, units = read_output(str(tmp_path / "a")), files(tmp_path / "a")
    assert len(units) > 8 and table["document"].to_pylist().count(99) > 400  # one unit, of this document alone
    names = sorted(units)
    for name in names[1::2]:
        Path(tmp_path, "a", "embeddings", name).unlink()
    assert embed_here(job)["units_done"] == len(names[1::2]) and files(tmp_path / "a") == units


@pytest.mark.parametrize("conditions", ["color", {"color": 2, "number of people": -1}])
def test_a_search_per_document_is_brute_force(home, conditions):
    home, rows = home
    index = Index.open(str(home / "i.lance"))
    for where in (None, "year < 2", "document = 5"):
        every = index.search(["a red dress"], conditions, 10_000, where).to_pylist()
        best = {}
        for row in every:
            best.setdefault(row["document"], row)
        for k in (1, 5, 39, 50):
            found = index.search(["a red dress"], conditions, k, where, per="document").to_pylist()
            wanted = [(r["id"], r["score"], i) for i, r in enumerate(list(best.values())[:k], 1)]
            assert [(r["id"], r["score"], r["rank"]) for r in found] == wanted
            assert all(r["text"] == rows[r["document"]]["text"][r["start"] : r["end"]] for r in found)
    with pytest.raises(RequestError, match=r"per: expected a column of texts or whole numbers .* got 'pages'"):
        index.search(["a"], "color", per="pages")


def test_a_changed_document_leaves_no_chunk_behind(home, tmp_path, tiny_model, capsys):
    home, _ = home
    uri, kept = storing.indexed(tmp_path / "i.lance", home / "out"), {"keep_columns": ("text", "year")}
    kept |= {"conditions": CONDITIONS}
    old = Index.open(uri)
    chunks = {d: old.dataset.count_rows(f"document = {d}") for d in range(7)}
    assert max(chunks.values()) > 2
    new = [{"id": d, "text": "A short one.", "year": 1} for d in (0, 1, 2)]
    embedded(tmp_path / "n", tiny_model, new, output=str(tmp_path / "new"), **kept, **CUT)
    job = {"embeddings": (str(tmp_path / "new"),), "output": uri}
    refuse(job, "expected rows that are new to the index, got id '[012]#0'")
    result = build(**dict(job, replace=True))
    assert (result["rows_deleted"], result["rows_added"]) == (sum(chunks[d] for d in (0, 1, 2)), 6)
    index = Index.open(uri)
    assert index.dataset.count_rows() == index.metadata.rows == old.metadata.rows - result["rows_deleted"] + 6
    assert index.dataset.count_rows("document < 3") == 6
    assert build(output=uri, delete="document = 3")["rows_deleted"] == chunks[3]
    two = next(d for d, count in chunks.items() if d > 3 and count > 2)
    build(output=uri, delete=f"document = {two} AND chunk = 0")  # what is left is of the former text
    changed = embedded(tmp_path / "x", tiny_model, [{"id": two, "text": "Dogs.", "year": 1}], **kept, **CUT)
    refuse({"embeddings": (changed,), "output": uri}, f"new to the index, got id '{two}#[1-9]'")
    for number, chunk in enumerate(({"chunk": 9}, {})):
        other = embedded(tmp_path / f"o{number}", tiny_model, new, **kept, **chunk)
        refuse({"embeddings": (other,), "output": uri, "replace": True}, "expected the index's --chunk")
    capsys.readouterr()
    search(SearchFlags(index=uri, query=("a short one",), condition=("color",), k=3, per="document"))
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split("[")[1] for line in lines if "short one." in line) == ["0 0:12]", "1 0:12]", "2 0:12]"]


def test_stored_tokens_of_chunks_are_searched_and_pooled_as_chunks(tmp_path):
    model = storing.model_folder(tmp_path)
    texts = [row["text"] for row in storing.texts(30)]
    rows = [{"id": str(i), "text": " . ".join(texts[3 * i : 3 * i + 3])} for i in range(10)]
    words = storing.stored(tmp_path / "a", model, rows, keep_columns=("text",), **CUT)
    index, table = Index.open(storing.indexed(tmp_path / "i.lance", words)), read_output(words)
    assert index.metadata.with_tokens == len(table) > 20
    found = index.search(["a dog"], "number of people", 10, per="document")
    assert sorted(found["document"].to_pylist()) == [str(i) for i in range(10)]
    pooled = EmbedFlags(input=words, output=str(tmp_path / "p"), conditions=("color",), keep_columns=())
    embed_here(pooled)
    assert verify(str(tmp_path / "p"))["pairs"] == len(table)
    assert build(embeddings=(str(tmp_path / "p"),), output=str(tmp_path / "p.lance"))["rows"] == len(table)
    assert read_output(str(tmp_path / "p"))["document"].to_pylist() == table["document"].to_pylist()
    with pytest.raises(RequestError, match=r"stored tokens in .*, got --chunk beside them"):
        embed_here(replace(pooled, chunk=9))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunk": 0}, "--chunk: expected at least 1 token, and fewer in --overlap, got 0"),
        ({"chunk": 9, "overlap": 9}, "--chunk: .* got 9 and --overlap 9"),
        ({"late_chunking": True}, "--chunk: expected at least 1 token, .* got none"),
        ({"chunk": 9, "late_chunking": True}, "--late-chunking: expected a condition-pooling model"),
        ({"chunk": 600}, "--chunk: expected chunks that .* reads whole"),
        ({"chunk": 9, "keep_columns": ("chunk",)}, "--keep-columns: 'chunk' is a column of the output"),
        ({"text_column": "condition"}, "'condition' is a column of the output; .* pass --keep-columns without it"),
    ],
)
def test_what_is_refused(tmp_path, tiny_model, changes, words):
    rows = [{"id": 1, "text": "A dog.", "chunk": 1, "condition": "place"}]
    with pytest.raises(RequestError, match=words):
        embedded(tmp_path, tiny_model, rows, output=str(tmp_path / "out"), **{"conditions": ("color",)} | changes)
