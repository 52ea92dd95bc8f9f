"""The Ray that raycase starts itself is for this machine and this user alone."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from raycase.distributed.cluster import own_token_file


@pytest.mark.cluster
def test_it_listens_on_127_0_0_1_and_its_token_is_its_owners(tmp_path):
    program = """
        import psutil, ray
        from raycase.distributed.cluster import start_ray
        start_ray()
        ray.get(ray.remote(lambda: 1).remote())
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            for connection in process.net_connections("inet"):
                if connection.status == "LISTEN":
                    print(connection.laddr.ip.removeprefix("::ffff:"))
    """
    # no address: it looks for a Ray in its own temporary folder, finds none and starts one
    keep = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
    environment = {name: value for name in keep if (value := os.environ.get(name))}
    environment |= {"HOME": str(tmp_path), "RAY_TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == {"127.0.0.1"}, done.stdout
    assert stat.S_IMODE((tmp_path / ".ray" / "auth_token").stat().st_mode) == 0o600


def test_a_token_that_all_could_read_is_closed_and_kept(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    file = tmp_path / "auth_token"
    file.write_text("secret")
    file.chmod(0o644)
    own_token_file(file)
    assert file.read_text() == "secret" and stat.S_IMODE(file.stat().st_mode) == 0o600
