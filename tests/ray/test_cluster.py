"""A cluster is joined where one is named and answers. The Ray that raycase starts itself is for one command, on this
machine, and for this user alone."""

import json
import logging
import os
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace

import psutil
import pytest
from helpers import ROOT, Later, embed_here, flags_of, small_job, wait_for
from ray._private import ray_constants
from ray.serve._private import replica

from raycase.errors import RequestError, WorkError
from raycase.ray.cluster import join, named_cluster, own_token_file, start_ray
from raycase.ray.private import listen_locally, serve_locally

serve = Later("raycase.ray.serve")


@pytest.mark.parametrize(
    ("environment", "address"),
    [
        ({}, None),
        ({"RAY_ADDRESS": ""}, None),
        ({"RAY_ADDRESS": "local"}, None),
        ({"RAY_ADDRESS": "auto"}, "auto"),
        ({"RAY_ADDRESS": "10.0.0.1:6379"}, "10.0.0.1:6379"),
        ({"RAY_ADDRESS": "10.0.0.1:6379", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, "10.0.0.1:6379"),
        ({"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}, "auto"),
    ],
)
def test_only_an_address_or_a_ray_job_names_a_cluster(environment, address, monkeypatch):
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert named_cluster() == address


def test_sigterm_while_ray_starts_ends_as_at_any_other_time(monkeypatch):
    """Ray's own handler, which it sets first, calls sys.exit(15)."""
    told = []
    monkeypatch.setattr("ray.init", lambda *args, **options: sys.exit(signal.SIGTERM))
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    before = signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    with pytest.raises(SystemExit):
        start_ray()
    signal.signal(signal.SIGTERM, before)
    assert told == [signal.SIGTERM]


@pytest.mark.parametrize(
    "address", ["rubbish", "a:b:c", ":1", "127.0.0.2:port", "127.0.0.2:1", "no host:6379", "two\nlines:1"]
)
def test_what_is_no_address_or_does_not_answer_is_an_error_in_one_line_after_seconds(address, capfd):
    began = time.monotonic()
    with pytest.raises(WorkError, match=r"^RAY_ADDRESS=.*: expected a cluster to join, got: .*unset RAY_ADDR") as error:
        join(address, seconds=0.5)
    assert time.monotonic() - began < 5 and "\n" not in str(error.value) and capfd.readouterr().err == ""


def test_the_address_of_another_server_of_ray_is_a_wrong_request():
    for address in ("http://127.0.0.1:8265", "ray://127.0.0.1:10001"):
        with pytest.raises(RequestError, match=rf"expected host:port of a cluster.* got {address}; .*ray job submit"):
            join(address)


def test_what_is_changed_in_rays_own_modules_is_there(monkeypatch):
    """A Ray that renames it is noticed here."""
    asked = []
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(replica, "add_port_to_grpc_server", lambda server, at: asked.append((server, at)))
    listen_locally()
    serve_locally()
    replica.add_port_to_grpc_server("a server", "[::]:0")
    assert asked == [("a server", "127.0.0.1:0")] and ray_constants.ENABLE_RAY_CLUSTER is False


def test_a_ray_that_does_not_start_is_said_in_one_line(monkeypatch):
    def init(*_, **__):
        raise Exception("The current node timed out during startup.\nThis could happen because ...")

    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", True)  # set back after the test
    with pytest.raises(
        WorkError, match=r"^expected Ray to start for this command, got: The .*; run the same .*"
    ) as error:
        start_ray()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("verbose", [False, True])
def test_ray_is_mute_unless_it_is_asked_to_speak(verbose, monkeypatch):
    given = {}
    for name in ("RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR", "RAYCASE_VERBOSE"):
        monkeypatch.delenv(name, raising=False)
    if verbose:
        monkeypatch.setenv("RAYCASE_VERBOSE", "1")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda *_, **options: given.update(options))
    monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", True)  # set back after the test
    logger = logging.getLogger("ray.data")
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    start_ray()
    assert given["log_to_driver"] == given["include_dashboard"] == verbose == (given["logging_level"] == logging.INFO)
    assert (logger.level == logging.CRITICAL) != verbose


def command(*arguments, **environment):
    """`raycase` in a process that knows no Ray but what `environment` says."""
    base = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    words, pipe = [sys.executable, "-m", "raycase", *map(str, arguments)], subprocess.PIPE
    environment = base | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True)


@pytest.mark.cluster
def test_two_commands_at_once_have_a_ray_each_and_leave_nothing(tiny_model, cluster, tmp_path):
    """Beside them the run's own Ray is there to be joined; with the token of a new home they could not."""
    job = small_job(tmp_path, tiny_model)
    with tempfile.TemporaryDirectory(prefix="rc", dir="/tmp", ignore_cleanup_errors=True) as folder:  # short: sockets
        environment = {"HOME": str(tmp_path), "RAY_TMPDIR": folder}
        jobs = [replace(job, output=str(tmp_path / name)) for name in ("a", "b")]
        running = [command("embed", *flags_of(job), "--ray", **environment) for job in jobs]
        for process in running:
            said, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert json.loads(said.splitlines()[-1])["rows_out"] == 500
        wait_for(lambda: not any(folder in " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])))


@pytest.mark.cluster
def test_a_token_that_the_cluster_does_not_know_is_an_error_after_seconds(cluster, job):
    embed_here(job)
    environment = {"RAY_ADDRESS": cluster.address_info["gcs_address"], "RAY_AUTH_MODE": "token"}
    process = command("verify", job.output, RAY_AUTH_TOKEN=secrets.token_hex(32), **environment)
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (1, "")
    where, *_, line = errors.splitlines()
    assert where == "Running on Ray: RAY_ADDRESS"
    assert f"RAY_ADDRESS={environment['RAY_ADDRESS']}: expected a cluster to join, got: " in line


def test_a_token_is_its_owners_and_one_that_all_could_read_is_closed_and_kept(tmp_path):
    file = tmp_path / ".ray" / "auth_token"
    own_token_file(file)
    assert len(token := file.read_text()) == 64 and stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    own_token_file(file)
    assert file.read_text() == token and stat.S_IMODE(file.stat().st_mode) == 0o600
