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
    assert all(found["versions"][name] == version(name) for name in ("raycase", "ray", "torch", "transformers"))
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["date"])) < timedelta(minutes=1)
