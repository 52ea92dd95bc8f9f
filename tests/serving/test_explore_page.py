"""The page of `raycase explore` in a service: rows, maps under any condition, marked words, and a browser that asks."""

import asyncio
import contextlib
import json
import re
import shutil
import sys
import tempfile
import threading
from base64 import b64decode
from importlib.util import find_spec

import httpx2
import numpy as np
import pytest
import storing
import uvicorn
from browser import CHROMIUM, Browser
from served import TOKEN, client_of, refusal
from starlette.exceptions import HTTPException

from raycase.search.build import IndexJob, build
from raycase.search.index import Index
from raycase.search.marks import looked_at
from raycase.serving.engine import Engine
from raycase.serving.explore_page import MOST_WAITING, Explorer
from raycase.serving.serve_job import ServeJob, check_serve
from raycase.serving.service import Service

pytestmark = pytest.mark.skipif(find_spec("umap") is None, reason="pip install 'raycase[explore]'")

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HOSTILE = 'the "animal" </script><img src=x onerror=failed=1> \u202e'


@pytest.fixture(scope="module")
def server(service):
    """A service with a token, at a port of this machine; its maps are made by one process for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYCASE_TOKEN", TOKEN)
        app = client_of(service)[0].app
    app.state.explorer.aside.nice = 0
    running = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=running.run)
    thread.start()
    while not running.started:
        assert thread.is_alive()
        thread.join(0.01)
    yield f"http://127.0.0.1:{running.servers[0].sockets[0].getsockname()[1]}"
    running.should_exit = True
    thread.join()
    app.state.explorer.aside.close()


@pytest.fixture(scope="module")
def web(server):
    with httpx2.Client(base_url=server, headers=HEADERS, timeout=120) as web:
        yield web


def ask(web, route, **asked):
    answer = web.post(f"/explore/{route}", json=asked)
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(each, name, kind):
    return np.frombuffer(b64decode(each[name]), kind).reshape(60, -1)


def test_other_requests_are_answered_while_a_map_is_made(web):
    """The first one, for which a process starts that imports PyTorch and UMAP."""
    version, made = ask(web, "rows")["version"], []
    thread = threading.Thread(target=lambda: made.append(ask(web, "map", version=version, condition="color")))
    thread.start()
    for _ in range(3):
        assert web.post("/search", json={"queries": "dog", "condition": "color"}).status_code == 200
    assert not made
    thread.join()
    assert made[0]["condition"] == "color"


def test_a_map_has_the_neighbours_facets_and_words_of_the_index(web, home, service):
    said, index = ask(web, "rows"), Index.open(str(home / "i.lance"))
    texts = [row["text"] for row in storing.texts(60)]
    assert said["texts"] == texts and said["ids"] == [str(i) for i in range(60)] and said["summary"] == "60 rows"
    assert (said["title"], said["conditions"], said["any"], said["neighbours"]) == ("i.lance", [None], True, 8)
    for condition in (None, "what they wear"):
        found = ask(web, "map", version=said["version"], condition=condition)
        vectors = index.vectors_at(condition, np.arange(60))
        every = vectors @ vectors.T
        np.fill_diagonal(every, -np.inf)
        rows, best = numbers(found, "rows", "<u2").astype(int), -np.sort(-every, axis=1)[:, :8]
        np.testing.assert_allclose(np.take_along_axis(every, rows, 1), best, atol=1e-5)
        np.testing.assert_allclose(numbers(found, "cosines", "i1") / 100, best, atol=0.0051)
        assert [facet["rows"] for facet in found["facets"]] == np.bincount(numbers(found, "facet", "u1")[:, 0]).tolist()
        assert all(facet["words"] for facet in found["facets"])
        assert np.ptp(numbers(found, "positions", "<u2"), axis=0).max() > 60_000
        assert ask(web, "map", version=said["version"], condition=condition) == found
    marks = {"version": said["version"], "condition": "color", "rows": [3, 30]}
    words = ask(web, "words", **marks)["words"]
    assert client_of(service)[0].post("/explore/words", json=marks).json()["words"] == words  # another replica
    weighed = index.encoder.word_weights([texts[3], texts[30]], "color")
    assert words == [[end for word in looked_at(each) for end in (word.start, word.end)] for each in weighed]


def test_the_page_holds_nothing_of_the_index_and_may_ask_its_service_alone(server, web):
    page = httpx2.get(f"{server}/", follow_redirects=True)
    assert page.status_code == 200 and page.url.path == "/explore"
    assert re.search(r'<script type="application/json" id="data">(.*?)</script>', page.text)[1] == "null"
    assert "i.lance" not in page.text
    policy = page.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ") and "connect-src 'self'; " in policy and "http" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    for route in ("rows", "map", "words"):
        assert "server's token" in refusal(httpx2.post(f"{server}/explore/{route}", json={}), 401)


@pytest.mark.parametrize(
    ("route", "asked", "status", "said"),
    [
        ("map", {"condition": "c" * 1001}, 413, "at most 1,000 characters"),
        ("map", {"condition": " "}, 422, "condition: expected words"),
        ("map", {"condition": "\ud800"}, 422, "half of a surrogate pair"),
        ("map", {"condition": "犬" * 900}, 422, "expected room for a sentence"),
        ("map", {"condition": "color", "most_rows": 9}, 422, "most_rows: expected no such name"),
        ("map", {"condition": "color", "version": 99}, 409, "load the page again"),
        ("words", {"condition": "color", "rows": [60]}, 422, "rows: expected some of the 60 on the map"),
        ("words", {"condition": "color", "rows": [-1]}, 422, "rows.0: "),
        ("words", {"condition": "color", "rows": [0] * 65}, 422, "rows: "),
    ],
)
def test_wrong_requests(web, route, asked, status, said):
    body = json.dumps({"version": ask(web, "rows")["version"]} | asked)
    answer = web.post(f"/explore/{route}", content=body, headers={"Content-Type": "application/json"})
    assert said in refusal(answer, status)


def test_of_many_rows_a_sample_is_shown_and_of_too_many_none(service, monkeypatch):
    said = client_of(service, most_rows=20)[0].post("/explore/rows", json={}).json()
    assert said["summary"] == "20 of 60 rows, a sample (seed 0)" and len(said["texts"]) == 20
    monkeypatch.setattr("raycase.serving.explore_page.MOST_INDEXED", 59)
    refused = client_of(service)[0].post("/explore/rows", json={})
    assert "at most 59 rows for maps, got 60" in refusal(refused, 422)


def test_what_lacks_for_maps_is_said(home, service, monkeypatch):
    other = client_of(Service.load(check_serve(ServeJob(model=str(home / "model")))))[0]
    assert "started with --index" in refusal(other.get("/explore"), 404)
    monkeypatch.setitem(sys.modules, "umap", None)
    client = client_of(service)[0]
    assert "pip install 'raycase[explore]'" in refusal(client.get("/explore"), 501)
    assert "raycase[explore]" in refusal(client.post("/explore/map", json={"version": 1}), 501)


def test_pages_of_a_former_version_are_told_so(home, tmp_path):
    storing.indexed(tmp_path / "i.lance", str(home / "words"))
    service = Service.load(check_serve(ServeJob(index=str(tmp_path / "i.lance"))))
    service.live.checked_for = -1.0
    client = client_of(service)[0]
    version = client.post("/explore/rows", json={}).json()["version"]
    more = storing.stored(tmp_path / "b", str(home / "model"), storing.texts(5, first=100))
    build(IndexJob(embeddings=(more,), output=str(tmp_path / "i.lance")))
    refused = client.post("/explore/map", json={"version": version, "condition": "color"})
    assert "the index has a new version" in refusal(refused, 409)
    said = client.post("/explore/rows", json={}).json()
    assert said["version"] != version and len(said["texts"]) == 65


def test_few_wait_for_a_map_and_who_leaves_waits_no_more(service):
    async def call():
        explorer = Explorer(Engine(service), 60)
        version = (await explorer.rows())["version"]
        await explorer._making.acquire()
        waiting = [asyncio.create_task(explorer.map(version, f"c {i}")) for i in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(HTTPException, match="at most 8 maps that wait"):
            await explorer.map(version, "color")
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        assert explorer._waiting == 0 and explorer.aside.process is None

    asyncio.run(call())


@pytest.fixture
def page(server):
    folder = tempfile.mkdtemp()
    with contextlib.closing(Browser(folder, 1200, 800)) as browser:
        browser.open(f"{server}/explore")
        yield browser
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium; apt-get install chromium")
def test_a_reader_enters_the_token_and_types_a_condition(page, server):
    for token in ("wrong", TOKEN):
        page.wait("at('door').open && document.activeElement === at('token')")
        page.type(token)
        page.key("Enter", "\r")
    page.wait("document.documentElement.dataset.ready === 'true' && !document.querySelector('main').inert")
    assert page.ask("[at('title').textContent, count, maps.length, at('token').value]") == ["i.lance", 60, 1, ""]
    place = "(([x, y]) => [x, y])(plot.position(20))"
    before = page.ask(place)
    page.ask("at('condition').focus()")
    page.type(HOSTILE)
    page.key("Enter", "\r")
    page.wait("state.map === 1 && !('moving' in document.documentElement.dataset)")
    assert page.ask(place) != before and page.ask("at('asking').hidden && at('condition').value === ''")
    page.ask("choose(20)")
    page.wait("document.querySelectorAll('#text mark').length > 0")
    columns = page.ask(
        "[...document.querySelectorAll('#columns section')].map((c) => [c.querySelector('h3').textContent,"
        " [...c.querySelectorAll('li')].map((li) => li.textContent)])"
    )
    assert [title for title, _ in columns] == ["no condition", HOSTILE.replace("\u202e", r"\u202e")]
    assert [len(rows) for _, rows in columns] == [8, 8] and columns[0][1] != columns[1][1]
    page.ask("document.querySelector('#conditions input').click()")
    page.wait("state.map === 0 && !('moving' in document.documentElement.dataset)")
    assert page.ask("typeof failed") == "undefined" and TOKEN not in page.ask("location.href + document.cookie")
    assert {url.removeprefix(server) for url in page.requests} == {
        *("/explore", "/explore/rows", "/explore/map", "/explore/words"),
        *(url for url in page.requests if url.startswith("data:")),
    }
    assert [said for said in page.console if "401" not in str(said) and "GPU stall" not in str(said)] == []
