"""No room names a paper: without its folder and its line in the table, nothing is left of it."""

import ast
import re

from helpers import ROOT

from raycase.models.registry import SYSTEMS
from raycase.papers import PAPERS

OF_THE_FIELD = {"bi-encoder", "cross-encoder"}  # what such models are called everywhere
LEFT = {"training/loop.py"}  # the title of a metric
NAMES = {name for adds in PAPERS.values() for column in adds for name in column.split()}


def named(text, names):
    """The names in the strings of a module, but for its documentation, which may cite a paper and list what it adds."""
    tree = ast.parse(text)
    shown = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in shown)
    pattern = rf"(?<![\w-])(?:{'|'.join(names)})(?![\w-])"
    return {found for value in strings if isinstance(value, str) for found in re.findall(pattern, value)}


def test_no_room_names_what_a_paper_adds():
    names = NAMES - SYSTEMS.keys() - OF_THE_FIELD
    assert {"csr", "lora", "tri-encoder", "dualcse", "simcse", "mixsp", "rte", "sts"} == names
    package = ROOT / "raycase"
    files = [file for file in sorted(package.rglob("*.py")) if "papers" not in file.parts]
    found = {str(file.relative_to(package)): of for file in files if (of := named(file.read_text(), names))}
    assert found.keys() <= LEFT, found
