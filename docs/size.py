"""Count what the project carries and compare it with the budget in pyproject.toml: python docs/size.py [--trace]

Exit status 1 where a figure is above its budget ([tool.raycase.budget]). Lower a budget with its figure. Only a new
capability raises one, by its own lines.
--trace also runs the everyday commands on the sample, and counts the functions of the package that they enter.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SATELLITES = ("papers", "explore", "integrations")  # rooms that the core does not need
LONG = 60  # lines of a function, without its docstring
SETTINGS = re.compile(r"(Job|Flags|Recipe|Config|Fitting|Runner)$")
EVERYDAY = (  # {0}: a folder of this run
    "embed --any-condition --output {0}/tokens",
    "embed --conditions place people --output {0}/vectors",
    "verify {0}/vectors",
    "index --embeddings {0}/tokens --output {0}/index.lance",
    "search --index {0}/index.lance --query beach --condition place",
)


def sources(folder: str) -> list[Path]:
    """The Python files of a folder that git knows or would add."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", folder]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in names if name.endswith(".py") and (ROOT / name).is_file()]


def lines(file: Path) -> int:
    """The number of lines."""
    return file.read_text(encoding="utf-8").count("\n")


def described(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The lines of a function's docstring: those of the public API have arguments and an example."""
    return len((ast.get_docstring(function, clean=False) or "").splitlines())


def counted() -> dict[str, float]:
    """The figures that reading the files gives."""
    package = sources("raycase")
    rooms: Counter[str] = Counter()
    nodes: list[ast.AST] = []
    for file in package:
        place = file.relative_to(ROOT / "raycase").parts
        rooms[place[0] if len(place) > 1 else "(top)"] += lines(file)
        nodes += ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = next(c["layers"] for c in settings["importlinter"]["contracts"] if c["type"] == "layers")
    flags = (ROOT / "docs" / "flags.md").read_text(encoding="utf-8")
    print(", ".join(f"{room} {n:,}" for room, n in rooms.most_common()))
    return {
        "package-lines": rooms.total(),
        "package-files": len(package),
        "core-lines": rooms.total() - sum(rooms[room] for room in SATELLITES),
        "largest-room": max(rooms.values()),
        "test-lines": sum(map(lines, sources("tests"))),
        "benchmark-lines": sum(map(lines, sources("benchmarks"))),
        "flag-rows": len(re.findall(r"(?m)^\| `--", flags)),
        "layers": len(layers),
        "raises-per-1000-lines": round(1000 * sum(isinstance(n, ast.Raise) for n in nodes) / rooms.total(), 1),
        "long-functions": sum((f.end_lineno or 0) - f.lineno - described(f) >= LONG for f in functions),
        "job-classes": sum(isinstance(n, ast.ClassDef) and bool(SETTINGS.search(n.name)) for n in nodes),
    }


def traced() -> dict[str, float]:
    """The functions that the everyday commands enter, their files, and the modules that `embed` imports."""
    entered: set[str] = set()
    modules = 0
    with tempfile.TemporaryDirectory() as folder:
        for words in EVERYDAY:
            command = [sys.executable, __file__, "--command", *words.format(folder).split()]
            environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
            file = Path(folder) / "entered.json"
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"raycase {words}: {done.stderr.strip()}")
            entry = json.loads(file.read_text())
            entered.update(entry["functions"])
            modules = modules or entry["modules"]
    files = {place.rpartition(":")[0] for place in entered}
    return {"functions-run": len(entered), "files-of-these": len(files), "modules-of-embed": modules}


def trace(words: list[str]) -> None:
    """Run a command in this process and write what it entered to entered.json."""
    import threading

    root, seen = f"{ROOT / 'raycase'}{os.sep}", set()

    def profile(frame, event, argument) -> None:  # type: ignore[no-untyped-def]
        if event == "call" and frame.f_code.co_filename.startswith(root) and not frame.f_code.co_name.startswith("<"):
            seen.add(frame.f_code)

    sys.setprofile(profile)
    threading.setprofile(profile)
    try:
        from raycase.cli import main

        main(words)
    finally:
        sys.setprofile(None)
    bodies = {c for c in seen if c.co_flags & 0x2}  # CO_NEWLOCALS: a function, not the body of a class
    places = sorted(f"{c.co_filename}:{c.co_firstlineno}" for c in bodies)
    modules = sum(name.split(".")[0] == "raycase" for name in sys.modules)
    Path("entered.json").write_text(json.dumps({"functions": places, "modules": modules}))


def main() -> int:
    """Print the figures beside their budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", action="store_true", help="also run the everyday commands")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.command:
        trace(arguments.command)
        os._exit(0)  # as `raycase` ends: threads of libraries that still run can abort Python's own way out
    figures = counted() | (traced() if arguments.trace else {})
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["raycase"]["budget"]
    over = [name for name, value in figures.items() if value > budget[name]]
    for name, value in figures.items():
        print(f"{'OVER' if name in over else '':5}{name:22}{value:>9,}  budget {budget[name]:>9,}")
    if over:
        print(f"{len(over)} of {len(figures)} figures are over the budget in pyproject.toml; take something away")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
