"""The real service: its server, replicas, batches and end, by real clients."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest import mock

import numpy as np
import openai
import psutil
import pytest
import requests
import storing
from clusters import free_ports
from helpers import ROOT, cosines, read_output, vectors, wait_for
from ray import serve as ray_serve
from served import TOKEN

import raycase
from raycase.errors import RequestError
from raycase.ray.serve import application, serve
from raycase.serve.settings import ServeFlags

pytestmark = pytest.mark.cluster
QUEUE = 4
HEAVY = {"input": [f"dog {i}" for i in range(2000)], "condition": "color"}  # seconds
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """`words`: the output of a tiny model over 60 rows; `i.lance`: an index of it; `token`."""
    home = tmp_path_factory.mktemp("service")
    storing.stored(home / "a", storing.model_folder(home), storing.texts(60), output=str(home / "words"))
    storing.indexed(home / "i.lance", str(home / "words"))
    (home / "token").write_text(f"{TOKEN}\n")
    return home


class Server:
    """`raycase serve` in a process and with a Ray of its own."""

    def __init__(self, home, *flags, **environment):
        self.folder = tempfile.TemporaryDirectory(prefix="rc", dir="/tmp", ignore_cleanup_errors=True)  # short: sockets
        base = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RAYCASE_"))}
        base |= {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": self.folder.name, "HOME": str(home), "RAY_worker_niceness": "0"}
        words = [sys.executable, "-m", "raycase", "serve", *map(str, flags)]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(words, env=base | environment, text=True, start_new_session=True, **pipes)
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.told = json.loads(line)
        self.url = self.told["url"]
        self.address = ("127.0.0.1", int(self.url.rpartition(":")[2]))
        self.children = psutil.Process(self.process.pid).children(recursive=True)

    def post(self, route, asked, **options):
        return requests.post(self.url + route, json=asked, headers=BEARER, timeout=120, **options)

    def alive(self):
        return self.post("/v1/embeddings", {"input": "dog"}).status_code == 200

    def end(self, number=signal.SIGTERM):
        """Its status, what it printed, and its errors; nothing is left running."""
        self.process.send_signal(number)
        said, errors = self.process.communicate(timeout=120)
        wait_for(lambda: not any(child.is_running() for child in self.children))
        return self.process.returncode, said, errors

    def kill(self):
        for process in (self.process, *self.children):
            with suppress(psutil.NoSuchProcess):  # Popen knows by itself
                process.kill()
        self.process.communicate()
        self.folder.cleanup()


@contextmanager
def started(home, *flags, **environment):
    server = Server(home, *flags, **environment)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def server(home):
    flags = ("--index", home / "i.lance", "--token-file", home / "token", "--queue", QUEUE, "--port", 0)
    with started(home, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def model(home):
    return raycase.load(home / "model")


def test_the_client_of_openai_gets_the_vectors_of_the_model_and_of_the_job(server, home, model):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=0)
    texts = ["a red dress", "two people play"]
    for condition in (None, "color", ["color", "number of people"]):
        extra = {} if condition is None else {"condition": condition}
        for given in ({}, {"encoding_format": "float"}):  # base64 is what it asks for by itself
            found = client.embeddings.create(model="model", input=texts, extra_body=extra, **given)
            expected = model.encode(texts, condition)
            assert np.allclose([each.embedding for each in found.data], expected, atol=1e-5)
            assert found.usage.prompt_tokens > 0 and found.model == "model"
    assert [each.id for each in client.models.list()] == ["model"]
    written = read_output(str(home / "words"))
    found = client.embeddings.create(model="model", input=written["text"].to_pylist())
    of_job = cosines(np.array([each.embedding for each in found.data]), vectors(written))
    assert of_job.min() > 0.999  # the job computed in fp32, the model perhaps in bf16
    with pytest.raises(openai.UnprocessableEntityError, match="valid string") as refused:
        client.embeddings.create(model="model", input=[[1, 2]])
    assert refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="expected model, got 'gpt'"):
        client.embeddings.create(model="gpt", input="a")
    with pytest.raises(openai.AuthenticationError, match="server's token"):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="another", max_retries=0).models.list()


def raw(server, *sent, seconds=20):
    """What comes back for bytes."""
    with socket.create_connection(server.address, timeout=seconds) as connection:
        for each in sent:
            connection.sendall(each)
        parts = []
        try:
            while part := connection.recv(2**16):
                parts.append(part)
                if b"\r\n\r\n" in b"".join(parts):
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return b"".join(parts)


def head(*lines, length):
    """The beginning of a request with a body of so many bytes."""
    first = ["POST /v1/embeddings HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {TOKEN}"]
    return "\r\n".join([*first, "Content-Type: application/json", f"Content-Length: {length}", *lines, "", ""]).encode()


def test_raw_bytes(server):
    with socket.create_connection(server.address) as half:  # stays while all others are answered
        half.sendall(b"POST /v1/embeddings HT")
        assert b"400" in raw(server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200).split(b"\r\n")[0]
        assert b"400" in raw(server, b"GET / HTTP/9.9\r\n\r\n\r\n").split(b"\r\n")[0]
        assert server.alive()
        assert b" 413 " in raw(server, head(length=10**12))
        large = head("X: " + "x" * 2**20, length=2)
        assert raw(server, large + b"{}").split(b"\r\n")[0].split()[1:2] in ([b"431"], [b"422"], [])
        assert b" 401 " in raw(server, head(length=2).replace(TOKEN.encode(), b"\xff\xfe") + b"{}")
        assert b" 400 " in raw(server, head(length=4), b"\xff\xfe\xfd\xfc")
        body = b'{"input": "dog"}'
        slow = [bytes([byte]) for byte in body]
        assert b" 200 " in raw(server, head(length=len(body)), *slow)
        assert server.alive()


def crowd(server):
    """What 64 requests get of which 32 come at once."""
    with ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda _: server.post("/v1/embeddings", {"input": ["dog"] * 300}), range(64)))


def test_too_many_at_once_get_429_and_come_again(server):
    found = crowd(server)
    statuses = {answer.status_code for answer in found}
    assert statuses == {200, 429}
    refused = next(answer for answer in found if answer.status_code == 429)
    assert refused.headers["Retry-After"] == "1" and refused.json()["error"]["code"] == "rate_limit_exceeded"
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=TOKEN, max_retries=50)  # which waits as it is told
    with ThreadPoolExecutor(16) as pool:
        ask = lambda _: client.embeddings.create(model="model", input=["dog"] * 50)  # noqa: E731 one line
        assert len(list(pool.map(ask, range(32)))) == 32


def test_a_new_version_drops_no_request(server, home):
    found, ended = [], threading.Event()

    def ask():
        while not ended.is_set():
            asked = {"queries": "a red dress 9000", "condition": "color", "k": 60, "where": "id >= 0"}
            found.append(server.post("/search", asked))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for version in range(3):  # the second removes the first
        rows = storing.texts(5, first=1000 + 5 * version)
        storing.indexed(home / "i.lance", storing.stored(home / f"b{version}", str(home / "model"), rows))
        seen = len(found)
        wait_for(lambda seen=seen: len(found) > seen + 4)
    newest = {"queries": "dog", "condition": "color", "where": "id = 1014"}
    wait_for(lambda: server.post("/search", newest).json()["answers"][0])
    ended.set()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in found} == {200}
    counts = [len(answer.json()["answers"][0]) for answer in found]
    assert set(counts) <= {60} and len(found) > 12


def test_metrics_of_prometheus_and_no_token_in_the_logs(server):
    [url] = server.told["metrics"]
    assert url.startswith("http://127.0.0.1:")
    crowd(server)

    def counted():
        text = requests.get(url, timeout=20).text
        refused = re.search(r'^ray_raycase_requests_total{.*route="/v1/embeddings".*,status="429"', text, re.MULTILINE)
        return refused and "ray_raycase_request_seconds_bucket" in text

    wait_for(counted)  # Ray writes them every 10 s
    logs = [file for file in Path(server.folder.name).rglob("*") if file.is_file()]
    assert any("serve" in str(file) for file in logs)
    assert not any(TOKEN.encode() in file.read_bytes() for file in logs)
    assert not any(TOKEN in " ".join(child.cmdline()) for child in server.children if child.is_running())


def test_everything_listens_on_127_0_0_1(server):
    ends = [end for child in server.children if child.is_running() for end in child.net_connections("inet")]
    assert {end.laddr.ip.removeprefix("::ffff:") for end in ends if end.status == "LISTEN"} == {"127.0.0.1"}


def test_the_end_answers_what_is_under_way_and_nothing_new(server):
    heavy, late = [], ([], [])

    def work():
        while not heavy or heavy[-1].status_code == 429:  # the places were taken by those of `_working`
            heavy.append(server.post("/v1/embeddings", HEAVY))

    def ask(found):
        with suppress(requests.ConnectionError):  # there is no server any more
            while True:
                found.append(server.post("/v1/embeddings", {"input": "dog"}))

    threads = [threading.Thread(target=work), *(threading.Thread(target=ask, args=(found,)) for found in late)]
    threads[0].start()
    wait_for(lambda: _working(server))
    for thread in threads[1:]:
        thread.start()
    status, said, errors = server.end()
    for thread in threads:
        thread.join()
    assert heavy[-1].status_code == 200
    for found in late:
        statuses = [answer.status_code for answer in found]
        assert {503} <= {*statuses} <= {200, 429, 503}, statuses  # 200, 429: before the signal
        for answer in found[statuses.index(503) :]:
            assert (answer.status_code, answer.headers.get("Retry-After")) == (503, "1"), answer.text
            assert answer.json()["error"]
    assert (status, said) == (128 + signal.SIGTERM, "")
    assert "stopping" in errors and "Traceback" not in errors and TOKEN not in errors
    with pytest.raises(OSError):
        socket.create_connection(server.address, timeout=5)


def test_a_signal_to_the_group_which_ends_ray_too_ends_the_service(home):
    with started(home, "--model", home / "model", "--port", 0) as server:
        os.killpg(server.process.pid, signal.SIGTERM)
        assert server.process.wait(timeout=40) == 128 + signal.SIGTERM  # Ray itself: 1, after 60 s


def _working(server):
    """Whether the heavy request has a place: as many more as there are places do not all get one."""
    with ThreadPoolExecutor(QUEUE) as pool:
        found = pool.map(lambda _: server.post("/v1/embeddings", {"input": ["dog"] * 500}), range(QUEUE))
        return any(answer.status_code == 429 for answer in found)


def test_a_cluster_that_is_named_gets_the_application(home, cluster):
    """By the command, an index in shards by a process for each; and as KubeRay's config imports it."""
    uri = storing.indexed(home / "s.lance", home / "words", shards=2)
    expected = raycase.Index.open(uri).search(["a red dress"], "color", 5)["id"].to_pylist()
    environment = {"RAY_ADDRESS": cluster.address_info["gcs_address"], "HOME": os.environ["HOME"]}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
    [port] = free_ports(1)
    flags = ("--index", home / "s.lance", "--token-file", home / "token", "--port", port)
    with started(home, *flags, **environment) as server:
        assert server.url == f"http://127.0.0.1:{port}"
        found = server.post("/v1/embeddings", {"input": "a red dress", "condition": "color"})
        assert found.status_code == 200 and requests.get(f"{server.url}/v1/models", timeout=60).status_code == 401
        [answers] = server.post("/search", {"queries": "a red dress", "condition": "color", "k": 5}).json()["answers"]
        assert [answer["row"]["id"] for answer in answers] == expected
        below = psutil.Process().children(recursive=True)  # the cluster's processes, too
        assert sum("ray::ShardActor" in " ".join(process.cmdline()) for process in below) == 2
        status, _, errors = server.end(signal.SIGINT)
        assert status == 128 + signal.SIGINT and "Traceback" not in errors
    assert not ray_serve.status().proxies, "expected Ray Serve to end with the service"
    with mock.patch.dict(os.environ, {"RAYCASE_TOKEN": TOKEN}):
        bound = application({"model": str(home / "model"), "queue": 8})
    [port] = free_ports(1)
    try:
        ray_serve.start(http_options={"host": "127.0.0.1", "port": port})
        ray_serve.run(bound, name="raycase", route_prefix="/")
        url = f"http://127.0.0.1:{port}"
        assert requests.get(f"{url}/ready", timeout=60).json() == {"ready": True, "model": "model"}
        assert requests.get(f"{url}/v1/models", headers=BEARER, timeout=60).status_code == 200
        there = mock.patch.dict(os.environ, environment | {"RAYCASE_TOKEN": TOKEN})
        with there, pytest.raises(RequestError, match=r"^expected no Ray Serve on the cluster, got one"):
            serve(ServeFlags(model=str(home / "model"), port=port))
    finally:
        ray_serve.shutdown()
