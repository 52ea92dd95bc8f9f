"""The wheel holds the whole package, and its command works outside the checkout."""

import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from helpers import ROOT

import raycase


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, without the network, by the setuptools that is installed."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "raycase", source / "raycase", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (file,) = source.glob("dist/*.whl")
    return file


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    package = [file for file in (ROOT / "raycase").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(file.relative_to(ROOT).as_posix() for file in package)


def test_every_dependency_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    requirements = project["dependencies"] + [r for rs in project["optional-dependencies"].values() for r in rs]
    names = {r.split("[")[0].split(">")[0].lower() for r in requirements} - {"raycase"}
    assert names <= pins


@pytest.mark.cluster
def test_the_installed_command_embeds_the_sample_and_verifies_it(wheel, cluster, tmp_path):
    """In a fresh environment, which finds the dependencies by a .pth file.

    The driver runs from the wheel; the session's Ray has workers of the checkout, whose modules are those of the wheel
    (above). CI runs the same with dependencies from the index and a Ray of its own.
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
