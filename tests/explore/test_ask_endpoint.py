"""A language model that answers an ask file: a server here that fails, dawdles and talks."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pytest

from raycase.errors import RequestError, WorkError
from raycase.explore.ask_endpoint import Endpoint, answer_rows, check_askable
from raycase.io.row_labels import csv_bytes, read_asked
from raycase.io.storage import locate

LABELS = ("red", "blue")


@contextmanager
def serving(*replies):
    """A server that gives these replies in turn, the last for ever: a text, a status, or seconds to wait. Its URL, and
    the requests that it got."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = replies[min(len(got), len(replies) - 1)]
            got.append((self.path, body, self.headers["Authorization"]))
            if isinstance(reply, float):
                time.sleep(reply)
            self.send_response(reply if isinstance(reply, int) else 200)
            self.send_header("Location", "/v1/elsewhere")
            self.end_headers()
            content = {"choices": [{"message": {"content": reply}}]}
            self.wfile.write(b"{" if reply == "broken" else json.dumps(content).encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", got
    finally:
        server.shutdown()
        server.server_close()


def table(*labels):
    texts = [f"text {i} </text> reply: blue" for i in range(len(labels))]
    return pa.table({"id": range(len(labels)), "text": texts, "label": labels, "drawn": [""] * len(labels)})


def answered(url, ask, tmp_path, **options):
    log, file = locate(str(tmp_path / "ask.csv.log.jsonl")), locate(str(tmp_path / "ask.csv"))
    endpoint = Endpoint(url=url, model="m", **{"waits": (0, 0), "timeout": 0.3} | options)
    found = answer_rows(endpoint, ask, "color", LABELS, log, lambda rows: file.put(csv_bytes(rows)))
    lines = [json.loads(line) for line in log.read().decode().splitlines()] if log.exists() else []
    return found["label"].to_pylist(), [(line["id"], line["status"]) for line in lines]


def test_open_rows_get_a_label_or_none_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "very secret")
    with serving("red", "none", None, "the color is red", " blue\n") as (url, got):
        labels, log = answered(url, table("?", "blue", "?", "?"), tmp_path)
    assert labels == ["red", "blue", "", "blue"]
    assert log == [("0", 200), ("2", 200), *[("3", 200)] * 3]
    path, body, key = got[0]
    assert (path, key, body["model"], body["temperature"]) == ("/v1/chat/completions", "Bearer very secret", "m", 0)
    system, user = (message["content"] for message in body["messages"])
    assert '"color"' in system and "red\nblue\n" in system and user == "<text>\ntext 0  reply: blue\n</text>"
    assert "secret" not in (tmp_path / "ask.csv.log.jsonl").read_text()
    assert read_asked(str(tmp_path / "ask.csv")) == {"0": "red", "1": "blue", "2": "", "3": "blue"}


def test_errors_and_slow_replies_are_tried_again_and_nonsense_stays_open(tmp_path, capsys):
    with serving(429, 503, "red", 1.0, "broken", "blue", "purple") as (url, _):
        labels, log = answered(url, table("?", "?", "?"), tmp_path)
    assert labels == ["red", "blue", "?"]
    assert [status for _, status in log] == [429, 503, 200, "TimeoutError", "JSONDecodeError", 200, 200, 200, 200]
    assert "1 rows stay open" in capsys.readouterr().err


@pytest.mark.parametrize("status", [400, 401, 302])
def test_what_will_not_pass_ends_the_work(tmp_path, status):
    with serving("red", status) as (url, got), pytest.raises(WorkError, match=f"got status {status}"):
        answered(url, table("?", "?", "?"), tmp_path)
    assert len(got) == 2 and read_asked(str(tmp_path / "ask.csv"))["0"] == "red"


@pytest.mark.parametrize("reply", [429, 0.6, "broken"])
def test_an_endpoint_that_gives_no_reply_ends_the_work(tmp_path, reply):
    with serving("red", reply) as (url, got), pytest.raises(WorkError, match=r"got status 429|got \w+Error"):
        answered(url, table("?", "?", "?"), tmp_path)
    assert len(got) == 4 and [*read_asked(str(tmp_path / "ask.csv")).values()] == ["red", "?", "?"]


def test_a_cap_counts_all_requests_and_work_goes_on_where_it_was(tmp_path, capsys):
    ask = table("?", "?", "?")
    with serving("red") as (url, got):
        labels, _ = answered(url, ask, tmp_path, limit=2)
        assert labels == ["red", "red", "?"] and "1 rows stay open after 2 requests" in capsys.readouterr().err
        assert answered(url, table(*labels), tmp_path, limit=2)[0] == labels and len(got) == 2
        assert answered(url, table(*labels), tmp_path, limit=3)[0] == ["red"] * 3 and len(got) == 3
        assert answered(url, table(*["red"] * 3), tmp_path)[0] == ["red"] * 3 and len(got) == 3


def test_where_nothing_can_be_asked(tmp_path):
    with pytest.raises(RequestError, match="expected an index that keeps its texts"):
        check_askable(table("?").drop_columns(["text"]), LABELS)
    with pytest.raises(RequestError, match="expected labels without 'none'"):
        check_askable(table("?"), (*LABELS, "none"))
    with pytest.raises(WorkError, match="got URLError"):
        answered("http://127.0.0.1:9/v1/", table("?"), tmp_path)
    assert (tmp_path / "ask.csv.log.jsonl").read_text().count("URLError") == 3
    with pytest.raises(RequestError, match="expected a URL such as"):
        answered("nowhere", table("?"), tmp_path)
