"""The rooms of the house: imports point downwards only, and Ray, pickles and remote code stay where they belong."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import raycase

HOUSE = Path(raycase.__file__).parent
# From the ground up; a module imports from the lines above its own only.
FLOORS = [
    ["schema", "pooling", "packing", "rates", "losses", "metrics", "provenance", "published", "topk"],
    ["prompts", "textfiles", "fit", "plots"],  # still ground: they take their words from schema
    ["storage", "finished", "table", "tokens", "attention"],
    ["engine", "fetch", "lancefiles"],
    ["inputs", "encoders", "projector"],
    ["reading", "rated", "pairs"],
    ["output", "systems.case", "systems.protocols", "projection", "tuned"],
    [
        "graph",
        "inli",
        "finetune",
        "systems.baselines",
        "systems.csr",
        "systems.dualcse",
        "systems.lora",
        "systems.mixsp",
    ],
    ["contrast", "dual", "units", "systems", "model_folder", "cluster", "watch", "verify", "written"],
    ["request", "progress", "index", "search", "join", "rerank"],
    ["plan", "resources"],
    ["handover"],
    ["embed"],
    ["vectors"],
    ["train"],
    ["sweep", "training"],
    ["finetuning"],
    ["rated_jobs", "inference_jobs", "scored_jobs"],
    ["train_jobs"],
    ["sweep_plots", "sweep_report"],
    ["tune"],
    ["scores"],
    ["ablation", "report", "evaluation"],
    ["ranked"],
    ["csts", "csfcube", "attributes", "kgc", "inferences", "sts"],
    ["evaluate"],
    ["estimate", "cli", "check", "queries", "sample"],
    ["reranking"],
]
FLOOR = {module: floor for floor, modules in enumerate(FLOORS) for module in modules}
GROUND = {*FLOORS[0], *FLOORS[1]}
RAY = {"cluster", "resources", "watch", "handover", "embed", "train", "tune", "join", "reranking"}
METHODS = {m for m in FLOOR if m.startswith("systems.") and m != "systems.protocols"}


def module_name(file):
    parts = file.relative_to(HOUSE).with_suffix("").parts
    return ".".join(p for p in parts if p != "__init__")


TREES = {module_name(f): ast.parse(f.read_text(encoding="utf-8")) for f in sorted(HOUSE.rglob("*.py"))}
MODULES = [name for name in TREES if name]  # without raycase/__init__.py, which imports nothing before it is called


def imports(tree):
    """Every module imported anywhere in a file, within functions and for types too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where they point"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_of(module):
    """The modules of raycase that a module imports."""
    names = {name.removeprefix("raycase.") for name in imports(TREES[module]) if name.startswith("raycase.")}
    return {name for name in names if name in TREES} - {module}


def test_every_module_has_its_floor():
    assert set(MODULES) == set(FLOOR)


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_downwards(module):
    upwards = {room for room in rooms_of(module) if FLOOR[room] >= FLOOR[module]}
    assert not upwards


def test_the_ground_floor_knows_schema_alone():
    assert {room for module in GROUND for room in rooms_of(module)} <= {"schema"}


def test_a_method_never_imports_another():
    assert not {(m, room) for m in METHODS for room in rooms_of(m) if room in METHODS}


def test_ray_is_imported_on_the_third_floor_alone():
    found = {module for module, tree in TREES.items() if any(n.split(".")[0] == "ray" for n in imports(tree))}
    assert "embed" in found
    assert found <= RAY


def test_importing_raycase_takes_neither_torch_nor_ray():
    script = "import sys, raycase; print(sorted({'torch', 'ray', 'transformers', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert not done.stderr


@pytest.mark.parametrize("module", ["units", "handover", "watch"])
def test_workers_import_what_they_need_alone(module):
    """A process that writes need not wait for torch; whatever a task or its context names, its worker imports."""
    script = (
        f"import sys, raycase.{module}; print(sorted({{'torch', 'transformers', 'scipy', 's3fs'}} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", TREES)
def test_nothing_is_unpickled_and_no_remote_code_runs(module):
    names = {name.split(".")[0] for name in imports(TREES[module])}
    assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("torch.load", "np.load", "numpy.load", "eval", "exec", "pd.read_pickle")
            options = {k.arg: ast.unparse(k.value) for k in node.keywords}
            assert options.get("trust_remote_code", "False") == "False"
            if called in ("AutoConfig.from_pretrained", "AutoModel.from_pretrained", "AutoTokenizer.from_pretrained"):
                assert "trust_remote_code" in options


@pytest.mark.parametrize("module", TREES)
def test_every_module_says_what_it_is(module):
    assert ast.get_docstring(TREES[module])
