"""Hostile and clumsy cases through the command line, one by one: what was tried, how it ended, what it printed.

    python tests/hostile.py [--markdown results/hostile.md] [--only GROUP]

A case ends well where it ends in status 0 with rows that add up (and texts as they were given), or in 1 or 2 with one
line on standard error, without a traceback, and without a secret that it was given. Jobs run in this process, without
Ray, on tiny random models. Prints a table of the groups and one JSON object; exit status 1 where one did not end well.
"""

import argparse
import contextlib
import copy
import io
import json
import os
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import conftest  # noqa: F401 (sets the environment)
import storing
from helpers import read_output, save_tiny_model
from hostile_cases import columns, flags, indexes, inputs, models, outputs, places, prompts, training, written
from hostile_cases.case import SECRET

from raycase.cli import main as command_line
from raycase.data import store_clients


@dataclass
class Ended:
    """How a case ended."""

    status: int | str
    line: str
    well: bool


def play(case):
    """Run a case."""
    said, printed = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        try:
            command_line([str(argument) for argument in case.arguments], work=case.work)
        except SystemExit as stop:
            status = stop.code or 0
        except BaseException:
            return Ended("traceback", traceback.format_exc().splitlines()[-1], False)
    lines = said.getvalue().splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    explained = status == 2 and not errors and "For full helptext" in said.getvalue()
    well = status == 0 or explained or (status in (1, 2) and len(errors) == 1)
    line = errors[0] if errors else "the flag is explained" if explained else ""
    if SECRET in said.getvalue() + printed.getvalue():
        return Ended(status, "the secret was printed", False)
    if status == 0:
        result = {}
        with contextlib.suppress(ValueError, IndexError):  # help, a version
            result = json.loads(printed.getvalue().splitlines()[-1])
        line = f"{result['rows_out']} rows out, {result['rows_rejected']} rejected" if "rows_out" in result else "done"
        if "rows_out" in result and result["rows_in"] != result["rows_out"] + result["rows_rejected"]:
            well, line = False, f"{line} of {result['rows_in']}"
        if case.texts is not None:
            found = read_output(case.output)["text"].to_pylist()
            if found != case.texts:
                well, line = False, f"other texts: {found!r}"
    return Ended(status, line, well)


def cases(home, only):
    """All cases; files are made as they are asked for."""
    model = str(save_tiny_model(home / "tiny"))
    pooled = storing.model_folder(home)
    groups = {
        "inputs": lambda: inputs.input_cases(home, model),
        "places": lambda: places.place_cases(home, model),
        "written": lambda: written.written_cases(home, pooled),
        "flags": lambda: flags.flag_cases(home, model),
        "models": lambda: models.model_cases(home, model),
        "prompts": lambda: prompts.prompt_cases(home, model),
        "outputs": lambda: outputs.output_cases(home, pooled),
        "columns": lambda: columns.column_cases(home, model, pooled),
        "indexes": lambda: indexes.index_cases(home, pooled),
        "training": lambda: training.training_cases(home, model),
    }
    for name, made in groups.items():
        if only in (None, name):
            yield from made()


def shown(text, home, length=150):
    """A line for a table, without this run's folders."""
    line = copy.copy(text).replace(str(home), "HOME").encode("utf-8", "backslashreplace").decode()
    line = "".join(c if c.isprintable() else "?" for c in line).replace("|", "\\|")
    return line if len(line) <= length else line[:length] + "..."


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", help="write a table with a row for each case")
    parser.add_argument("--only", help="one group")
    options = parser.parse_args()
    os.environ["AWS_ENDPOINT_URL"] = "http://127.0.0.1:1"  # no store is there
    store_clients.TRYING_S = 2
    rows, tried, well = [], Counter(), Counter()
    with tempfile.TemporaryDirectory(prefix="hostile") as home, contextlib.chdir(home):
        for case in cases(Path(home), options.only):
            ended = play(case)
            tried[case.group] += 1
            well[case.group] += ended.well
            rows.append((case.group, shown(case.name, home, 80), ended.status, shown(ended.line, home)))
            if not ended.well:
                print(f"NOT WELL: {case.group}: {rows[-1][1]}: {ended.status}: {rows[-1][3]}", file=sys.stderr)
    print("| group | tried | ended well |\n|---|---|---|")
    for group in tried:
        print(f"| {group} | {tried[group]} | {well[group]} |")
    if options.markdown:
        table = "".join(f"| {group} | {name} | {status} | {line} |\n" for group, name, status, line in rows)
        head = "# Hostile and clumsy cases\n\nMade by `python tests/hostile.py`; see [faults.md](faults.md).\n\n"
        Path(options.markdown).write_text(f"{head}| group | case | status | printed |\n|---|---|---|---|\n{table}")
    print(json.dumps({"tried": tried.total(), "well": well.total()}))
    sys.exit(tried.total() != well.total())


if __name__ == "__main__":
    main()
