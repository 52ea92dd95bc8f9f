"""Where a result comes from: the fields, the commit of the tree that raycase runs from, and no secret."""

import json
import os
import shlex
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version

from raycase.io.provenance import provenance


def test_every_field_is_there_and_no_secret_of_the_environment(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "RAY_AUTH_TOKEN", "PASSWORD"):
        monkeypatch.setenv(name, f"hidden-{name}")
    monkeypatch.setattr(sys, "argv", ["jobs/train.py", "case", "--train", "two words.csv", "--output", "it's"])
    found = provenance()
    assert set(found) == {"command", "commit", "versions", "machine", "date"}
    assert json.loads(json.dumps(found)) == found and "hidden-" not in json.dumps(found)
    assert f", {os.cpu_count()} cores, " in found["machine"] and found["machine"].endswith(" GiB")
    assert shlex.split(found["command"]) == ["python", *sys.argv]
    assert set(found["versions"]) >= {"raycase", "ray", "torch", "transformers", "numpy"}
    assert all(value == version(name) for name, value in found["versions"].items())
    date = datetime.fromisoformat(found["date"])
    assert date.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - date) < timedelta(minutes=1)
