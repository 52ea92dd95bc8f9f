"""One name has one meaning in the whole package."""

import ast
import re
from collections import defaultdict

from helpers import ROOT


def test_no_two_modules_define_a_public_class_or_type_of_one_name():
    found = defaultdict(list)
    for file in sorted((ROOT / "raycase").rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            named = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign):
                named += [target.id for target in node.targets if isinstance(target, ast.Name)]
            for name in named:
                if re.fullmatch("[A-Z][a-z]\\w*", name):
                    found[name].append(str(file.relative_to(ROOT)))
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
