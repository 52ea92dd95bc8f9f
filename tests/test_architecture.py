"""What a linter cannot say of the package: the cost of its imports, no pickle, no remote code."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import raycase

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


def test_importing_raycase_takes_neither_torch_nor_ray():
    script = "import sys, raycase; print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not done.stderr


@pytest.mark.parametrize(
    "module",
    ["corpus.write_step", *(f"distributed.{n}" for n in ("in_flight", "packs", "ray_internals", "prometheus"))],
)
def test_workers_import_what_they_need_alone(module):
    """A process that writes need not wait for torch; whatever a task or its context names, its worker imports."""
    heavy = {"torch", "transformers", "scipy", "botocore"}
    script = f"import sys, raycase.{module}; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_process_of_a_shard_imports_no_encoder():
    """So that one that died is back soon."""
    script = "import sys, raycase.distributed.shard_actor; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize("module", TREES)
def test_a_module_says_what_it_is_unpickles_nothing_and_runs_no_remote_code(module):
    assert ast.get_docstring(TREES[module])
    names = {name.split(".")[0] for name in imports(TREES[module])}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("np.load", "numpy.load", "eval", "exec", "pd.read_pickle")
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert called != "torch.load" or options["weights_only"] == "True", "expected tensors and nothing else"
            assert options.get("trust_remote_code", "False") == "False"
            if called in ("AutoConfig.from_pretrained", "AutoModel.from_pretrained", "AutoTokenizer.from_pretrained"):
                assert "trust_remote_code" in options
