"""The command of the installed wheel works outside the checkout."""

import json
import os
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import raycase


@pytest.mark.cluster
def test_the_installed_command_embeds_the_sample_and_verifies_it(wheel, cluster, tmp_path):
    """In a fresh environment, which finds the dependencies by a .pth file.

    The driver runs from the wheel; the session's Ray has workers of the checkout, whose modules are those of the wheel
    (tests/test_wheel.py). CI runs the same with dependencies from the index and a Ray of its own.
    """
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(site.getsitepackages()))

    def run(command, *arguments):
        return subprocess.run(
            [str(environment / "bin" / command), *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            | {
                "HOME": str(tmp_path),
                "RAY_ADDRESS": cluster.address_info["gcs_address"],
                "RAY_AUTH_TOKEN_PATH": os.path.expanduser("~/.ray/auth_token"),
            },
            capture_output=True,
            text=True,
        )

    imported = run("python", "-c", "import raycase; print(raycase.__file__)").stdout.strip()
    assert Path(imported).is_relative_to(packages)
    assert run("raycase", "--version").stdout == f"raycase {raycase.__version__}\n"
    embedded = run("raycase", "embed", "--limit", "20")
    assert embedded.returncode == 0, embedded.stderr
    assert json.loads(embedded.stdout.splitlines()[-1])["rows_out"] == 20
    verified = run("raycase", "verify", str(tmp_path / "raycase" / "out"))
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout.splitlines()[-1])["verified"] is True
    shown = run("raycase", "demo")
    assert shown.returncode == 0, shown.stderr
    assert "Three skiers share a chairlift" in shown.stdout and "(green 0.68)" in shown.stdout
