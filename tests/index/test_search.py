"""Searches from the command line: from a file to Parquet, on object storage, by the scripts; wrong ones are refused."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexed import QUERIES, alike, refuse

from raycase.commands.search import SearchFlags, read_queries
from raycase.commands.search import search as answer
from raycase.errors import RequestError
from raycase.index.build import build
from raycase.index.index import Index
from raycase.index.options import EFFORTS, Options
from raycase.io.storage import locate


def test_an_index_on_object_storage_is_that_on_disk(home, index, s3_server):
    uri = "s3://corpus/indices/i.lance"
    job = {"embeddings": (str(home / "out"), str(home / "plain")), "output": uri}
    build(**job)
    assert build(**job)["rows_added"] == 0
    for condition in ("color", None):
        alike(Index.open(uri).search(QUERIES, condition, 5), index.search(QUERIES, condition, 5))
    answer(SearchFlags(index=uri, query=("a red dress",), condition=("color",), output="s3://corpus/answers.parquet"))
    assert len(pq.read_table(pa.BufferReader(locate("s3://corpus/answers.parquet").read()))) == 10
    with pytest.raises(RequestError, match="specified bucket does not exist"):
        Index.open("s3://nobody/i.lance")


@pytest.mark.parametrize("name", [" condition", "Conditions"])
def test_queries_whose_conditions_have_another_name_are_refused(tmp_path, name):
    (tmp_path / "q.csv").write_text(f"text,{name}\na red dress,color\n")
    with pytest.raises(RequestError, match=f"--queries: .*expected the column 'condition', got '{name}'"):
        read_queries(str(tmp_path / "q.csv"))


def test_wrong_searches_are_refused(home, index, tmp_path):
    def ask(words, **options):
        refuse(SearchFlags(**{"index": str(home / "i.lance"), "query": ("a red dress",)} | options), words, answer)

    ask("got no finished one", index=str(tmp_path / "none"))
    ask("^query: expected a text that .* can embed", query=(" ",))
    ask(r"--query: expected text in UTF-8, got '\\udcff'", query=("\udcff",))
    ask(r"--condition: expected text in UTF-8, got '\\udcff'", condition=("\udcff",))
    ask("--memory: expected GiB above 0, at most 1,048,576, got 1e\\+308", memory=1e308)
    ask("-k: expected at least 1", k=0)
    ask("^--condition: expected each condition once, got 'color' twice", condition=("color", " color"))
    ask("^--condition: expected words in every condition, got ' ' at index 0", condition=(" ",))
    ask("expected one of --query, --phrase or --queries, got none", query=())
    ask("expected one of --query, --phrase or --queries, got query and phrase", phrase=("heavy rain",))
    ask("--phrase: expected the --condition that it answers, got none", query=(), phrase=("heavy rain",))
    ask("expected --condition, --unconditional or conditions in --queries", condition=("color",), unconditional=True)
    ask("expected the index's model nowhere", model="nowhere/at/all")


def test_more_effort_looks_at_more_of_an_index():
    low, usual, high, exact = (Options(**EFFORTS[name]) for name in ("low", "usual", "high", "exact"))
    assert [o.nprobes for o in (low, usual, high)] == [2, 10, 40] and exact.exact
    assert [o.candidates(10, 3) for o in (low, usual, high)] == [10, 30, 120]  # never below k
    assert [o.candidates(10, 50, 5000) for o in (low, usual, high)] == [1250, 5000, 20000]
    assert replace(high, refine=2).candidates(10, 50, 5000) == 20
