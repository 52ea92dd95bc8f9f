"""Models on object storage: fetched once a machine, whole, and equal to the same model here; and what the Hugging Face
hub, and without it its cache, say about a file: here it is, there is none, or nothing."""

import json
import os
import subprocess
import sys

import boto3
import fsspec
import numpy as np
import pytest
from fake_hub import COMMIT, fake_hub
from nested_models import save_case
from s3_proxy import Proxy

import raycase
from raycase.encoder.model_files import fetch, file_of, pinned_uri, remote_identity
from raycase.errors import RequestError
from raycase.io.storage import locate
from raycase.models.registry import resolve

FETCH = "import sys; from raycase.encoder.model_files import fetch; print(fetch(sys.argv[1], large=True))"
WORDS = (["a red dress", "two dogs"], ["color", "number"])


@pytest.fixture
def bucket(request, tiny_model, tmp_path, monkeypatch, s3_server):
    """The tiny model at an s3:// URI, with files beside it that are no part of it; an empty cache."""
    monkeypatch.setenv("RAYCASE_CACHE", str(tmp_path / "cache"))
    uri = f"s3://corpus/models/{request.node.name}"
    s3 = fsspec.filesystem("s3")
    for file in tiny_model.iterdir():
        s3.put(str(file), f"{uri}/{file.name}")
    s3.pipe_file(f"{uri}/pytorch_model.bin", b"a pickle")
    s3.pipe_file(f"{uri}/modeling.py", b"import os")
    return uri


def test_processes_of_a_machine_fetch_a_model_once(bucket, s3_server):
    with Proxy(s3_server) as proxy:
        command = [sys.executable, "-c", FETCH, bucket]
        environment = os.environ | {"AWS_ENDPOINT_URL": proxy.url}
        running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        folders = {process.communicate(timeout=120)[0].strip() for process in running}
        assert all(process.returncode == 0 for process in running)
    [folder] = folders
    names = {name for name in os.listdir(folder) if not name.startswith(".")}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not {"pytorch_model.bin", "modeling.py"} & names
    read = {path: n for (method, path), n in proxy.asked.items() if method == "GET" and path != "/corpus"}
    assert read == {f"{bucket.removeprefix('s3:/')}/{name}": 1 for name in names}, "expected each file once"


@pytest.mark.parametrize(
    "name", ["/{outside}/x.json", "a/../../{outside}/x.json", "a//x.json", "C:/x.json", "a\\x.json"]
)
def test_a_name_that_leads_out_of_the_folder_is_not_fetched(bucket, tmp_path, name):
    """In Python, `folder / "/etc/x"` is `/etc/x`: such a file would be written wherever its key says."""
    outside = tmp_path / "outside"
    outside.mkdir()
    key = f"{bucket.removeprefix('s3://corpus/')}/{name.format(outside=str(outside).strip('/'))}"
    boto3.client("s3").put_object(Bucket="corpus", Key=key, Body=b"{}")
    fetched = [file.name for file in fetch(bucket, large=True).rglob("*")]
    assert "config.json" in fetched and not any("x.json" in name for name in fetched)
    assert not list(outside.iterdir())


def test_a_trained_model_on_object_storage_is_the_one_here(bucket, tiny_model, tmp_path):
    save_case(tmp_path / "case", tiny_model, nested=())
    uri = bucket + "-case"
    fsspec.filesystem("s3").put(f"{tmp_path}/case/*", f"{uri}/")
    here, there = raycase.load(str(tmp_path / "case")), raycase.load(uri)
    assert there.dim == 8 and np.array_equal(there.embed(*WORDS), here.embed(*WORDS))
    assert resolve(uri).describe() == resolve(str(tmp_path / "case")).describe()
    with pytest.raises(RequestError, match=r"--prompt: s3://.* was trained with concat-sc"):
        resolve(uri, prompt="cond")


def test_another_model_at_the_same_place_is_another_copy(bucket):
    before, identity = fetch(bucket, large=True), remote_identity(bucket)
    s3 = fsspec.filesystem("s3")
    values = json.loads(s3.cat_file(f"{bucket}/config.json"))
    s3.pipe_file(f"{bucket}/config.json", json.dumps(values | {"hidden_dropout_prob": 0.2}).encode())
    after = fetch(bucket, large=True)
    assert after != before and remote_identity(bucket) != identity
    assert json.loads((after / "config.json").read_text())["hidden_dropout_prob"] == 0.2
    assert json.loads((before / "config.json").read_text()) == values


def test_a_file_that_comes_in_part_is_not_kept(bucket, monkeypatch, tmp_path):
    def half(source, target):
        with open(target, "wb") as file:
            file.write(b"half")

    monkeypatch.setattr(locate(bucket).fs, "get_file", half)
    with pytest.raises(RequestError, match=r"expected a readable folder at s3://.*4 of .* bytes came"):
        fetch(bucket, large=True)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.suffix != ".lock"] == []


RESOLVE = "/{repo_id}/resolve/{revision}/{filename}"
OFFLINE = r"^--model: expected b.json of me/x on the .* hub .*, got: .*: run this once with the network, or pass"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A folder to be served as `me/x`; this process asks the hub, and keeps what comes in a cache of its own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    pinned_uri.cache_clear()
    (tmp_path / "x").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "x" / name).write_text("{}")
    return tmp_path / "x"


@pytest.fixture
def answer(repository, monkeypatch):
    """`file_of`, from a hub that refuses `b.json`, or offline."""

    def found(*arguments, online=True, **options):
        if not online:
            monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
            return file_of("me/x", *arguments, **options)
        with fake_hub({"me/x": repository}, refused={"b.json"}) as (endpoint, _):
            monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", endpoint + RESOLVE)
            return file_of("me/x", *arguments, **options)

    return found


@pytest.mark.parametrize("revision", [None, COMMIT])
def test_a_hub_that_does_not_answer_is_none_without_the_file(answer, revision):
    assert answer("a.json", revision).read_text() == "{}"
    assert answer("none.json", revision) is None
    with pytest.raises(RequestError, match=r"expected b.json of me/x on .*, got: .*403.*HF_HUB_OFFLINE=1"):
        answer("b.json", revision)


def test_offline_the_cache_says_what_was_asked_for_in_vain(answer):
    answer("a.json", None), answer("none.json", None)
    assert answer("a.json", COMMIT, online=False, sure=True)
    assert answer("none.json", COMMIT, online=False, sure=True) is None
    assert answer("b.json", COMMIT, online=False) is None
    with pytest.raises(RequestError, match=OFFLINE):
        answer("b.json", COMMIT, online=False, sure=True)


def test_without_a_network_the_cache_is_asked_too(answer, monkeypatch):
    """A closed port, not the flag: what is known to be absent is, what is not known is an error."""
    answer("a.json", None), answer("none.json", None)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", f"http://127.0.0.1:1{RESOLVE}")
    monkeypatch.setattr("huggingface_hub.file_download._get_metadata_or_catch_error", _not_reached)
    assert file_of("me/x", "a.json", None).read_text() == "{}"
    assert file_of("me/x", "none.json", None) is None
    with pytest.raises(RequestError, match=r"b.json of me/x on .*, got: .*; try again, or set HF_HUB_OFFLINE=1"):
        file_of("me/x", "b.json", None)


def _not_reached(**arguments):
    return None, None, None, None, None, ConnectionError("not reached")  # at once, not after retries
