"""A paper can be deleted: without papers/mixsp/ and its line of the table, the package has its command, loads condition
pooling, embeds, and passes tests of the core."""

import os
import shutil
import subprocess
import sys

from helpers import ROOT

CORE = ("io/test_claim.py", "io/test_vectors.py", "models/test_pairs.py", "training/test_losses.py")
SCRIPT = """
import sys, pytest, raycase
from raycase.cli import main
from raycase.errors import RequestError

assert raycase.__file__.startswith(sys.argv[1]), raycase.__file__

def said(call, *given, **options):
    try:
        call(*given, **options)
    except (RequestError, SystemExit) as error:
        return error

assert said(main, ["--help"]).code == 0
assert "system: expected one of case, " in str(said(raycase.train, "mixsp", output="out"))
assert "RequestError: system: expected one of case, " in str(said(raycase.load, sys.argv[3]))
assert raycase.load("condition-pooling:" + sys.argv[2]).encode(["a dog", "a red dress"], "color").shape == (2, 32)
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *sys.argv[4:]]))
"""


def test_a_package_without_a_paper_is_whole(tiny_model, tmp_path):
    shutil.copytree(ROOT / "raycase", tmp_path / "raycase", ignore=shutil.ignore_patterns("mixsp"))
    table = tmp_path / "raycase" / "papers" / "__init__.py"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if "mixsp" not in line))
    assert len(lines) - table.read_text().count("\n") == 1
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "raycase.json").write_text('{"system": "mixsp", "encoder": {}}')
    words = [tmp_path, tiny_model, tmp_path / "saved", *(ROOT / "tests" / name for name in CORE)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, words)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
