"""A copy of the package that was changed: a command, a pooling, a loss over ratings, an endpoint and a type of index
are added in one file each, and a paper is deleted with its folder and its line. The rest, and tests of the core, work
as before.

Formats of input and systems that are added: `test_new_format.py`, `test_new_system.py`.
"""

import os
import shutil
import subprocess
import sys

import pytest
from helpers import ROOT

CHANGES = {  # file -> what is added behind which line
    "encoder/pooling.py": {
        "class Pooling(StrEnum):\n": '    LAST_WORD = "last-word"\n',
        "    match pooling:\n": "        case Pooling.LAST_WORD:\n            return end_B - 1, end_B\n",
    },
    "training/recipe.py": {
        "class Loss(StrEnum):\n": '    ABSOLUTE = "absolute"\n',
        "LOSSES = {": "Loss.ABSOLUTE: lambda cosines_B, targets_B: (cosines_B - targets_B).abs().mean(), ",
    },
    "serve/app.py": {
        "router = APIRouter()\n": """
@router.post("/count")
async def count(asked: SearchRequest):
    return {"queries": len(asked.queries)}
"""
    },
    "index/options.py": {
        'VectorIndexType = Literal["auto", ': '"ivf-flat", ',
        "APPROXIMATE: dict[str, dict[str, Any]] = {": '"ivf-flat": {"index_type": "IVF_FLAT"}, ',
    },
}
COMMAND = """
from dataclasses import dataclass

EXAMPLE = "raycase hello"

@dataclass(frozen=True)
class HelloFlags:
    'Greet.'

def hello(flags: HelloFlags):
    'Greet.'
    return {}
"""
CORE = ("io/test_storage.py", "tokens/test_stored.py", "models/test_pairs.py", "training/test_losses.py")
SCRIPT = """
import sys, lance, pandas as pd, pytest, raycase
from helpers import cosines, read_output, vectors
from raycase.cli import main
from raycase.errors import RequestError
from raycase.serve.service import Service
from served import client_of

package, model, rated, *core = sys.argv[1:]
assert raycase.__file__.startswith(package), raycase.__file__

def run(*words):
    main([*words, *("--no-ray",) * (words[0] != "index")])

pd.DataFrame({"id": range(300), "text": [f"a dog {i} red" for i in range(300)]}).to_csv("in.csv", index=False)
encoder = ["--model", model, "--prompt", "concat-sc", "--compute", "float32", "--pooling"]
run("embed", "--input", "in.csv", "--conditions", "number", "--output", "out", *encoder, "last-word")
written = vectors(read_output("out"))[7:8]
for pooling in ("last-word", "mean"):
    found = raycase.load(model, prompt="concat-sc", pooling=pooling).embed(["a dog 7 red"], "number")
    assert (cosines(written, found) > 0.999) == (pooling == "last-word")

run("index", "--embeddings", "out", "--output", "i.lance", "--vector-index", "ivf-rq", "--exact-below", "10")
run("index", "--embeddings", "out", "--output", "i.lance", "--vector-index", "ivf-flat")
assert "IVF_FLAT" in {index.index_type for index in lance.dataset("i.lance").describe_indices()}
index = raycase.Index.open("i.lance")
flat, exact = (index.search("a dog 7 red", "number", exact=e) for e in (False, True))
assert flat["id"].to_pylist() == exact["id"].to_pylist(), (flat, exact)

pairs = ["--train", f"{rated}/train.csv", "--validation", f"{rated}/validation.csv", "--epochs", "1"]
run("train", "case", *pairs, "--loss", "absolute", "--output", "fit", *encoder, "mean")

main(["hello"])

client, _ = client_of(Service(name="m", loaded=None, live=None))
assert client.post("/count", json={"queries": ["a", "b"]}).json() == {"queries": 2}

with pytest.raises(SystemExit, match="0"):
    main(["--help"])
for call in (lambda: raycase.train("mixsp", output="out"), lambda: raycase.load("saved")):
    with pytest.raises(RequestError, match="system: expected one of case, "):
        call()
assert raycase.load("condition-pooling:" + model).encode(["a dog", "a red dress"], "color").shape == (2, 32)
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *core]))
"""


@pytest.mark.cluster
def test_each_change_is_one_file_and_a_deleted_paper_leaves_nothing(tiny_model, rated, tmp_path):
    shutil.copytree(ROOT / "raycase", tmp_path / "raycase", ignore=shutil.ignore_patterns("*.safetensors", "mixsp"))
    table = tmp_path / "raycase" / "papers" / "__init__.py"
    lines = table.read_text().splitlines(keepends=True)
    table.write_text("".join(line for line in lines if "mixsp" not in line))
    assert len(lines) - table.read_text().count("\n") == 1
    (tmp_path / "raycase" / "commands" / "hello.py").write_text(COMMAND)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "raycase.json").write_text('{"system": "mixsp", "encoder": {}}')
    for name, changes in CHANGES.items():
        file = tmp_path / "raycase" / name
        text = file.read_text()
        for line, added in changes.items():
            assert text.count(line) == 1, f"{name}: {line!r}"
            text = text.replace(line, line + added)
        file.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, (tmp_path, tiny_model, rated, *(ROOT / "tests" / c for c in CORE)))],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
