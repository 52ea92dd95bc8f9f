"""Finished and unfinished outputs with one thing wrong."""

import json
import os
import shutil
from pathlib import Path

import storing
from helpers import embed_here
from hostile_cases.case import Case
from hostile_cases.columns import checked


def output_cases(home, pooled):
    """A finished output with one thing wrong: verified, resumed, and its words pooled."""
    whole = storing.stored(home / "whole", pooled, storing.texts(12), unit_rows=5)
    documents = {}
    for name in ("job.json", "manifest.json"):
        values = json.loads((Path(whole) / name).read_text())
        for key in values:
            documents[f"{name} without {key}"] = (name, {k: v for k, v in values.items() if k != key})
            documents[f"{name}: {key} is a list"] = (name, values | {key: [[]]})
    changes = {
        name: lambda f, file=file, value=value: (f / file).write_text(json.dumps(value))
        for name, (file, value) in documents.items()
    }
    first = min(os.listdir(f"{whole}/embeddings"))
    print8 = first[:8]

    def flip(file):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 4
        file.write_bytes(bytes(data))

    def text(file):
        file.write_text("x")

    def swap(folder):
        a, b = sorted((folder / "embeddings").iterdir())[:2]
        data = a.read_bytes()
        a.write_bytes(b.read_bytes())
        b.write_bytes(data)

    def units(folder):
        return folder / "embeddings"

    def named(folder, numbers):
        (units(folder) / f"{print8}-{numbers}-5-0.parquet").write_text("")

    changes |= {
        "a unit is gone": lambda f: (units(f) / first).unlink(),
        "a unit is empty": lambda f: (units(f) / first).write_bytes(b""),
        "a unit is cut off": lambda f: os.truncate(units(f) / first, 900),
        "a bit of a unit is flipped": lambda f: flip(units(f) / first),
        "two units are swapped": swap,
        "a unit is there twice": lambda f: shutil.copy(units(f) / first, units(f) / ("0" * 8 + first[8:])),
        "all units are gone": lambda f: shutil.rmtree(units(f)),
        "the table of files is gone": lambda f: (f / "manifest_files.parquet").unlink(),
        "a bit of the table of files is flipped": lambda f: flip(f / "manifest_files.parquet"),
        "the table of files is text": lambda f: text(f / "manifest_files.parquet"),
        "the spans are text": lambda f: text(f / "spans.parquet"),
        "a bit of the spans is flipped": lambda f: flip(f / "spans.parquet"),
        "the basis is gone": lambda f: (f / "word_basis.safetensors").unlink(),
        "a bit of the basis is flipped": lambda f: flip(f / "word_basis.safetensors"),
        "no manifest": lambda f: (f / "manifest.json").unlink(),
        "no job.json": lambda f: (f / "job.json").unlink(),
        "saved lines are text": lambda f: [(f / "manifest_lines").mkdir(), text(f / "manifest_lines" / "1.parquet")],
        "a stranger's file": lambda f: (units(f) / "notes.txt").write_text("mine"),
        "a unit of a million rows": lambda f: named(f, f"00000-{10**15:012d}"),
        "a unit of no file": lambda f: named(f, "99999-000000000000"),
        "numbers beyond 64 bits": lambda f: named(f, f"00000-{10**25}"),
        "a folder in place of a unit": lambda f: [(units(f) / first).unlink(), (units(f) / first).mkdir()],
    }
    unfinished = {name: change for name, change in changes.items() if "manifest" not in name and "table of" not in name}
    for i, (name, change) in enumerate([*changes.items(), *unfinished.items()]):
        begun = i >= len(changes)
        for what in ("resume",) if begun else ("verify", "resume", "materialize"):
            folder = home / f"out-{i}-{what}"
            shutil.copytree(whole, folder)
            if begun:
                (folder / "manifest.json").unlink(missing_ok=True)
            change(folder)
            if what == "verify":
                case = Case("outputs", f"verify: {name}", ["verify", folder])
            elif what == "resume":
                flags = ["--input", f"{home}/whole/in.parquet", "--output", folder, "--any-condition", "--word-bytes"]
                flags += [storing.ENOUGH, "--model", pooled, "--compute", "float32", "--dtype", "float32"]
                flags += ["--unit-rows", "5", "--keep-columns", "text", "year"]
                case = Case("outputs", f"resume{' unfinished' if begun else ''}: {name}", ["embed", *flags], embed_here)
            else:
                flags = ["--words", folder, "--conditions", "color", "--output", f"{folder}-new"]
                case = Case("outputs", f"materialize: {name}", ["materialize", *flags], checked)
            yield case
            shutil.rmtree(folder, ignore_errors=True)
