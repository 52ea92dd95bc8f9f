"""Where a result comes from: the fields, the commit of the tree that raycase runs from, and no secret."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from raycase.data import provenance as room
from raycase.data.provenance import command_line, provenance


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """The same code in a folder of its own, and that folder."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "package").mkdir()
    file = shutil.copy(room.__file__, tmp_path / "package" / "provenance.py")
    spec = spec_from_file_location("copied_provenance", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, tmp_path


def test_every_field_is_there_and_no_secret_of_the_environment(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN", "PASSWORD"):
        monkeypatch.setenv(name, f"hidden-{name}")
    monkeypatch.setattr(sys, "argv", ["jobs/train.py", "case", "--train", "two words.csv", "--output", "it's"])
    found = provenance()
    assert set(found) == {"command", "commit", "versions", "machine", "date"}
    assert json.loads(json.dumps(found)) == found and "hidden-" not in json.dumps(found)
    processor, cores, memory = found["machine"].rsplit(", ", 2)
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    assert processor and cores == f"{os.cpu_count()} cores" and memory.endswith(" GiB")
    assert int(memory.removesuffix(" GiB")) == pytest.approx(held, abs=0.6)
    assert shlex.split(found["command"]) == ["python", *sys.argv]
    assert set(found["versions"]) >= {"raycase", "ray", "torch", "transformers", "numpy"}
    assert all(value == version(name) for name, value in found["versions"].items())
    date = datetime.fromisoformat(found["date"])
    assert date.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=1)


def test_the_commit_and_a_plus_for_changes(copied, monkeypatch):
    module, folder = copied
    assert module.commit() is None and module.provenance()["commit"] is None  # no work tree
    git(folder, "init")
    (folder / "theirs.txt").write_text("theirs")
    git(folder, "add", "theirs.txt")
    git(folder, "commit", "-m", "theirs")
    assert module.commit() is None  # somebody else's, as around a virtual environment
    git(folder, "add", ".")
    git(folder, "commit", "-m", "first")
    head = git(folder, "rev-parse", "HEAD")
    assert module.commit() == head[:7]
    (folder / "new.txt").write_text("new")
    assert module.commit() == head[:7] + "+"
    git(folder, "add", ".")
    git(folder, "commit", "-m", "second")
    assert module.commit() == git(folder, "rev-parse", "HEAD")[:7] != head[:7]
    monkeypatch.setenv("PATH", "")
    assert module.commit() is None  # no git


@pytest.mark.parametrize("word", ["a b", "a\nb\tc", "it's \\ 1\n"])
def test_a_command_can_be_given_again(word):
    line = command_line(["raycase", word])
    said = subprocess.run(["bash", "-c", f"printf %s {line.removeprefix('raycase ')}"], capture_output=True, check=True)
    assert said.stdout.decode("utf-8", "surrogateescape") == word
