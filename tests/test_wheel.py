"""The wheel holds the whole package; its requirements have tested versions."""

import re
import tomllib
import zipfile

from helpers import ROOT


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    package = [file for file in (ROOT / "raycase").rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    with zipfile.ZipFile(wheel) as files:
        names = [name for name in files.namelist() if ".dist-info/" not in name]
    assert sorted(names) == sorted(file.relative_to(ROOT).as_posix() for file in package)


def test_every_dependency_has_a_tested_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = {
        line.split("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    tested = {name: rs for name, rs in project["optional-dependencies"].items() if name not in ("gcs", "azure")}
    requirements = project["dependencies"] + [r for rs in tested.values() for r in rs]
    names = {re.split(r"[\[<=>]", r)[0].lower().replace("_", "-") for r in requirements} - {"raycase"}
    assert names <= pins
