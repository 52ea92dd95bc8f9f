"""What no linter checks of the package: its words, the cost of its imports, no pickle, no remote code; its wheel."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from pathlib import Path

import pytest
from helpers import ROOT

import raycase
from raycase.commands import FILES

SLOW = {"torch", "ray", "transformers", "sentence_transformers", "numpy", "pandas", "pyarrow", "pydantic", "lance"}
AT_THE_TOP = {  # room -> what of SLOW its files import at their top; cli, api, commands, names and errors nothing
    "io": {"numpy", "pyarrow"},
    "encoder": {"numpy", "torch"},
    "heads": {"numpy", "torch"},
    "tokens": {"numpy", "pyarrow", "torch"},
    "models": {"numpy", "pyarrow", "torch"},
    "job": {"numpy", "pyarrow"},
    "index": {"numpy", "pyarrow", "torch"},
    "explore": {"numpy", "pyarrow", "torch"},
    "evaluation": {"numpy", "torch"},
    "training": {"numpy", "pandas", "pyarrow", "torch"},
    "papers": {"numpy", "torch"},
    "serve": {"numpy", "pydantic"},
    "ray": {"pyarrow", "ray", "torch"},
    "integrations": {"numpy", "pyarrow", "sentence_transformers", "torch"},
}
OLD_WORDS = {
    *("says", "said", "unsaid", "tells", "telling", "told", "unstated"),  # stated; or shows, names, gives, is
    *("kind", "kinds", "plain", "piece", "pieces"),  # what it is; unconditional; span or unit
}
KEPT = (  # data, names of results, and what is on disk and in answers
    *("kind of dish", "it says on the wall", "arrived in pieces", "results/index_kinds.md"),
    *("`plain`", "word_plain", "`word_codes`", 'kind="stable"', '"--kind"', "`kind`, `licence`"),
)
HOUSE = Path(raycase.__file__).parent


def module_name(file):
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


TREES = {module_name(f): ast.parse(f.read_text(encoding="utf-8")) for f in sorted(HOUSE.rglob("*.py"))}


def imports(tree):
    """Every module imported anywhere in a file, within functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they point"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("raycase", {"torch", "ray", "transformers", "pyarrow"}),
        # a worker imports what its task names: one that writes need not wait for torch
        ("raycase.job.units, raycase.ray.in_flight", {"torch", "transformers", "scipy", "botocore"}),
        ("raycase.ray.shards", {"transformers"}),  # so that one that died is back soon
        ("raycase.models.case", {"torch._dynamo"}),
        ("raycase.job.verify", {"pandas"}),
    ],
)
def test_a_process_imports_no_more_than_it_needs(modules, absent):
    """What commands import: `test_bert.py`."""
    script = f"import sys, {modules}; print(sorted({absent} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_help_is_made_without_what_is_slow():
    """Of `raycase`, of each command, and of train that of a system."""
    asked = [["--help"], *([name, *["condition-pooling"] * (name == "train"), "--help"] for name in FILES)]
    code = f"import sys, raycase.cli as c\nfor words in {asked}:\n try: c.main(words)\n except SystemExit: print(words)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    *printed, modules = done.stdout.splitlines()
    assert [str(words) for words in asked if str(words) not in printed] == []
    assert not {*modules.split()} & SLOW


def test_what_is_slow_is_imported_at_the_top_by_the_table():
    for module, tree in TREES.items():
        room = module.split(".")[0]
        tops = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        slow = {name.split(".")[0] for node in tops for name in imports(node)} & SLOW
        assert slow <= AT_THE_TOP.get(room, set()), module


def test_one_thing_has_one_word():
    """docs/architecture.md has the dictionary; no old word stands in the package and its pages."""
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "flags.md"]  # which is of the package
    found = []
    for file in [*HOUSE.rglob("*.py"), *pages, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]:
        for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
            for kept in KEPT:
                line = line.replace(kept, "")
            line = "" if line.endswith("# on disk") else line
            words = {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", line)} & OLD_WORDS
            words |= {*re.findall(r"class \w+Job\b|StoredWords|word_codes", line)} if file.suffix == ".py" else set()
            if words and not (file.name == "schema.py" and words == {"word_codes"}):
                found.append(f"{file.relative_to(ROOT)}:{number}: {', '.join(sorted(words))}")
    assert not found, "\n".join(found)


def test_modules_have_docstrings_unpickle_nothing_and_run_no_remote_code():
    for module, tree in TREES.items():
        assert ast.get_docstring(tree), module
        names = {name.split(".")[0] for name in imports(tree)}
        assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}, module
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                check_call(module, node)


def check_call(module, node):
    """A call of a module unpickles nothing and runs no code that came with a model."""
    called, where = ast.unparse(node.func), f"{module}, line {node.lineno}"
    assert called not in ("eval", "exec", "pd.read_pickle"), where
    options = {k.arg: ast.unparse(k.value) for k in node.keywords}
    assert called not in ("np.load", "numpy.load") or options.get("allow_pickle") == "False", where
    assert called != "torch.load" or options["weights_only"] == "True", f"{where}: expected tensors and nothing else"
    assert options.get("trust_remote_code", "False") == "False", where
    if called in ("AutoConfig.from_pretrained", "AutoModel.from_pretrained", "AutoTokenizer.from_pretrained"):
        assert "trust_remote_code" in options, where


def test_every_file_of_the_package_is_in_the_wheel(tmp_path):
    """Built from a copy, without the network, by the setuptools that is installed."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "raycase", tmp_path / "raycase", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = tmp_path.glob("dist/*.whl")
    package = [file for file in (ROOT / "raycase").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(file.relative_to(ROOT).as_posix() for file in package)


def test_every_dependency_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pinned = re.findall("^(.+?)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pins = {name.lower().replace("_", "-") for name in pinned}
    tested = {name: rs for name, rs in project["optional-dependencies"].items() if name not in ("gcs", "azure")}
    requirements = project["dependencies"] + [r for rs in tested.values() for r in rs]
    names = {re.split(r"[\[<=>]", r)[0].lower().replace("_", "-") for r in requirements} - {"raycase"}
    assert names <= pins


def test_no_two_modules_define_a_public_class_or_type_of_one_name():
    found = defaultdict(list)
    for module, tree in TREES.items():
        for node in tree.body:
            named = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                named += [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in named:
                if re.fullmatch("[A-Z][a-z]\\w*", name):
                    found[name].append(module)
    assert {name: modules for name, modules in found.items() if len(modules) > 1} == {}
