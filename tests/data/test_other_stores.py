"""A small job on Azure and on Google Cloud, as far as they can be had on one machine.

Azure is Azurite (`npm install -g azurite`), where it is installed. Google Cloud is the S3 server of the tests: obstore
speaks Google's XML API, which is S3's; the emulators that Python packages bring know the JSON API alone.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from email.utils import formatdate

import pytest
import requests
from helpers import embed_here, same_output, stop_after
from s3_proxy import Proxy

from raycase.corpus.verify import verify
from raycase.data import store_clients
from raycase.data.inputs import find_input
from raycase.data.storage import locate
from raycase.data.store_clients import open_store
from raycase.errors import RequestError

ACCOUNT, KEY = "raycase", base64.b64encode(b"of the emulator of these tests").decode()


@pytest.fixture(scope="module")
def azurite():
    """Azurite's URL, with the container `corpus`; it lives as long as the tests of this file."""
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("expected azurite-blob, got none; install it with: npm install -g azurite@3.35")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    environment = os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    command = [command, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(port, server)
            make_container(f"http://127.0.0.1:{port}/{ACCOUNT}/corpus")
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def wait_for(port, server):
    """Until the port listens."""
    while server.poll() is None:
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise AssertionError(f"expected a server, got exit status {server.returncode}")


def make_container(url):
    """Ask for a container, signed with the account's key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    signed = "PUT" + "\n" * 12 + lines + f"/{ACCOUNT}/{ACCOUNT}/corpus\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    answer = requests.put(
        url, params={"restype": "container"}, headers=headers | {"Authorization": f"SharedKey {ACCOUNT}:{signature}"}
    )
    assert answer.status_code == 201, answer.text


@pytest.fixture(params=["az", "gs"])
def store(request, monkeypatch):
    """A store: `place`, an empty folder's URI; `url`, its server; `through(url)` sends requests to another one."""
    server = request.getfixturevalue({"az": "azurite", "gs": "s3_server"}[request.param])

    class Here:
        url = server
        place = f"{request.param}://corpus/{request.node.name}"

        def through(self, url):
            open_store.cache_clear()
            account = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url}/{ACCOUNT}"
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", account)
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)

    monkeypatch.setattr(store_clients, "TIMEOUT", 2.0)
    here = Here()
    here.through(server)
    yield here
    open_store.cache_clear()


def test_what_is_put_is_listed_read_and_removed(store):
    folder = locate(store.place)
    odd = ["a+b.parquet", "a b.parquet", "ä&<x>.parquet", "50%25.parquet"]
    for name in [*odd, "in/b.parquet", ".hidden"]:
        (folder / name).put(b"first")
    (folder / "large").put(bytes(5 * 2**20))
    (folder / odd[0]).put(b"second")
    assert (folder / odd[0]).read() == b"second" and folder.fs.cat_file((folder / odd[0]).path, 1, 3) == b"ec"
    assert folder.list() == dict.fromkeys(odd, 5) | {odd[0]: 6, "large": 5 * 2**20}
    before = {file.uri: file for file in find_input(store.place)}
    assert sorted(before) == sorted(f"{store.place}/{name}" for name in [*odd, "in/b.parquet"])
    (folder / odd[1]).put(b"other")
    changed = [file.uri for file in find_input(store.place) if before[file.uri] != file]
    assert changed == [f"{store.place}/{odd[1]}"], "expected a mark that changes with the content"
    folder.remove()
    folder.remove()
    assert not folder.exists() and folder.list() == {}


def test_a_large_file_goes_up_in_parts(store):
    file = locate(store.place) / "large"
    content = bytes(65 * 2**20)
    file.put(content)
    assert file.read() == content


def test_a_job_resumes_and_gives_what_it_gives_here(store, job):
    assert embed_here(job)["rows_out"] == 500
    job, here = replace(job, output=f"{store.place}/out"), job

    with pytest.raises(KeyboardInterrupt):
        embed_here(job, execute=stop_after(2))
    result = embed_here(job)
    assert (result["units_resumed"], result["rows_out"]) == (2, 500)
    same_output(job.output, here.output)


@pytest.mark.cluster
def test_requests_that_fail_now_and_then_are_made_again(store, job):
    faults = ((500, "InternalError"), (503, "ServerBusy"), "reset", "cut", "stall")
    with Proxy(store.url, failing=0.1, faults=faults, seed=1) as proxy:
        store.through(proxy.url)
        assert embed_here(replace(job, output=f"{store.place}/out"))["rows_out"] == 500
    assert len(proxy.failed) > 2
    store.through(store.url)
    verify(f"{store.place}/out")


@pytest.mark.parametrize("fault", [(403, "AuthenticationFailed"), (400, "ExpiredToken"), (401, "Unauthorized")])
def test_what_no_retry_helps_is_said_early_in_one_line(store, job, fault):
    with Proxy(store.url, failing=1.0, faults=(fault,)) as proxy:
        store.through(proxy.url)
        began = time.monotonic()
        with pytest.raises(RequestError, match=r"--output: expected a readable folder at .*: on purpose") as error:
            embed_here(replace(job, output=f"{store.place}/out"))
        assert time.monotonic() - began < 5 and "\n" not in str(error.value)
    store.through(store.url)
    with pytest.raises(RequestError, match=r"expected a place to write at .*does not exist"):
        embed_here(replace(job, output=store.place.replace("corpus", "missing")))
