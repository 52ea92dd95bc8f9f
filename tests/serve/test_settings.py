"""The flags of the service: what is wrong is said before anything starts."""

import socket

import pytest
from served import TOKEN

from raycase.commands import serve as command
from raycase.errors import RequestError
from raycase.serve.service import public_name
from raycase.serve.settings import ServeSettings, check_serve, free_port, sha256_of


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    monkeypatch.delenv("RAYCASE_TOKEN", raising=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"host": "0.0.0.0"}, "expected a token to listen at 0.0.0.0"),
        ({"host": "localhost"}, "expected a token"),
        ({"host": "::"}, "expected a token"),
        ({"port": 70000}, "--port: expected 0 to 65,535"),
        ({"replicas": 0}, "--replicas: expected at least 1"),
        ({"queue": 0}, "--queue: expected at least 1"),
        ({"gpus_per_replica": -1.0}, "--gpus-per-replica: expected 0 or more"),
        ({"gpus_per_replica": float("nan")}, "--gpus-per-replica"),
        ({"memory": 0.0}, "--memory: expected GiB above 0"),
        ({"token_file": "nowhere"}, "--token-file nowhere: expected a file with a token"),
        ({"index": ""}, "--index: expected a path"),
        ({"allow_origin": ("*",)}, "--allow-origin: expected an origin"),
        ({"allow_origin": ("https://example.org/page",)}, "--allow-origin: expected an origin"),
    ],
)
def test_wrong_flags(flags, said):
    with pytest.raises(RequestError, match=f"^{said}") as error:
        check_serve(ServeSettings(**flags))
    assert "\n" not in str(error.value)


def test_without_the_extra_it_says_which(monkeypatch):
    monkeypatch.setattr(command, "find_spec", lambda package: None)
    with pytest.raises(RequestError, match=r"^expected the package fastapi .*pip install 'raycase\[serve\]'$"):
        command.serve(command.ServeFlags())


@pytest.mark.parametrize("token", ["", "short", "a" * 15, "a token with blanks in it", "é" * 20, "a" * 20 + "\n" + "b"])
def test_a_token_that_is_none_is_refused_and_not_shown(token, tmp_path, monkeypatch):
    (tmp_path / "token").write_text(token)
    for flags in ({"token_file": str(tmp_path / "token")}, {}):
        with pytest.raises(RequestError, match="expected a token of 16 or more letters and digits") as error:
            monkeypatch.setenv("RAYCASE_TOKEN", token)
            check_serve(ServeSettings(**flags))
        assert not token or token not in str(error.value)


def test_a_token_is_known_by_its_hash_alone(tmp_path, monkeypatch):
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    settings = check_serve(ServeSettings(host="0.0.0.0", token_file=str(tmp_path / "token")))
    monkeypatch.setenv("RAYCASE_TOKEN", TOKEN)
    assert settings.token_sha256 == check_serve(ServeSettings()).token_sha256 == sha256_of(TOKEN)
    assert TOKEN not in repr(settings)
    monkeypatch.delenv("RAYCASE_TOKEN")
    for flags, said in (({}, "expected a token to listen on a cluster"), ({"port": 0}, "--port: expected the port on")):
        with pytest.raises(RequestError, match=f"^{said}"):
            check_serve(ServeSettings(**flags), on_cluster=True)


def test_a_port_that_something_listens_on_is_refused():
    """Ray would share it, and requests would go to either."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=rf"^--port: expected 127.0.0.1:{port} as .* free, got: "):
            free_port("127.0.0.1", port)
    assert free_port("127.0.0.1", 0) > 0
    with pytest.raises(RequestError, match="expected no such host:1 as "):
        free_port("no such host", 1)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("minilm-conditional", "minilm-conditional"),
        ("BAAI/bge-small-en-v1.5", "BAAI/bge-small-en-v1.5"),
        ("condition-pooling:minilm", "condition-pooling:minilm"),
        ("/srv/models/case/", "case"),
        ("runs/2026/case", "case"),
        ("../case", "case"),
        ("s3://bucket/models/case", "case"),
        ("condition-pooling:/srv/models/bert", "bert"),
        ("package:raycase/models/minilm-conditional", "minilm-conditional"),
    ],
)
def test_a_model_has_a_name_for_strangers(model, name):
    assert public_name(model) == name


def test_a_replica_which_works_elsewhere_gets_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    settings = check_serve(ServeSettings(index="i.lance", model="runs"))
    assert (settings.index, settings.model) == (str(tmp_path / "i.lance"), str(tmp_path / "runs"))
