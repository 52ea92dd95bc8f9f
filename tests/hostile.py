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
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import conftest  # noqa: F401 (sets the environment)
import pyarrow as pa
import pyarrow.parquet as pq
import storing
from helpers import embed_here, read_output, save_tiny_model

from raycase.cli import main as command_line
from raycase.corpus.materialize import check as check_materialize
from raycase.corpus.run import run
from raycase.data import store_clients
from raycase.errors import WorkError

SECRET = "hunter2secret"


@dataclass
class Case:
    """One command; `texts`: what the output's texts must be, where it ends in 0."""

    group: str
    name: str
    arguments: list
    work: object = None
    texts: list | None = None
    output: str | None = None


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


# --------------------------------------------------------------------------------------------------------------- inputs

CSV = {
    "empty file": b"",
    "header alone": b"id,text\n",
    "byte order mark": b"\xef\xbb\xbfid,text\n1,a dog\n",
    "CRLF": b"id,text\r\n1,a dog\r\n2,a cat\r\n",
    "lone CR": b"id,text\r1,a dog\r",
    "no newline at the end": b"id,text\n1,a dog",
    "unclosed quote": b'id,text\n1,"a dog\n2,a cat\n',
    "quote inside a field": b'id,text\n1,a "dog" here\n',
    "newline inside quotes": b'id,text\n1,"a\ndog"\n2,a cat\n',
    "too many fields": b"id,text\n1,a,dog\n2,a cat\n",
    "too few fields": b"id,text\n1\n2,a cat\n",
    "NUL": b"id,text\n1,a\0dog\n2,a cat\n",
    "invalid UTF-8": b"id,text\n1,caf\xe9\n2,a cat\n",
    "UTF-16": "id,text\n1,a dog\n".encode("utf-16"),
    "a column twice": b"id,text,text\n1,a,b\n",
    "an unnamed column": b"id,text,\n1,a,b\n",
    "no text column": b"id,body\n1,a dog\n",
    "an id twice": b"id,text\n1,a dog\n1,a cat\n",
    "no id": b"id,text\n,a dog\n2,a cat\n",
    "blank lines": b"id,text\n\n1,a dog\n\n\n2,a cat\n",
    "blanks alone": b"id,text\n1,   \n2,\t\n",
    "semicolons": b"id;text\n1;a dog\n",
    "a formula": b"id,text\n1,=cmd|' /C calc'!A0\n",
    "field of two million characters": b"id,text\n1," + b"a " * 10**6 + b"\n2,a cat\n",
    "emoji, right to left, zero width": "id,text\n1,\U0001f469\u200d\U0001f680 \u05e9 \u200e \ufeffx\n".encode(),
    "only a quote": b'id,text\n"',
    "ten thousand columns": b"text," + b",".join(b"c%d" % i for i in range(10**4)) + b"\na" + b",x" * 10**4 + b"\n",
}
JSONL = {
    "empty file": b"",
    "a list": b"[1, 2]\n",
    "a number": b"7\n",
    "null": b"null\n",
    "no object, then one": b'nonsense\n{"text": "a dog"}\n',
    "cut off": b'{"text": "a dog"}\n{"text": "a c',
    "half a surrogate pair in a value": b'{"text": "a \\ud800 dog"}\n{"text": "a cat"}\n',
    "half a surrogate pair in a key": b'{"text": "a dog", "\\ud800": 1}\n{"text": "a cat"}\n',
    "a whole surrogate pair": b'{"text": "a \\ud83d\\ude00 dog"}\n',
    "a key twice": b'{"text": "a", "text": "a dog"}\n',
    "NaN": b'{"text": "a dog", "n": NaN}\n',
    "Infinity as id": b'{"id": Infinity, "text": "a dog"}\n{"id": 2, "text": "a cat"}\n',
    "id beyond 64 bits": b'{"id": 99999999999999999999, "text": "a dog"}\n{"id": 2, "text": "a cat"}\n',
    "a number of 5,000 digits": b'{"text": "a dog", "n": ' + b"9" * 5000 + b'}\n{"text": "a cat"}\n',
    "nested a hundred thousand deep": b"[" * 10**5 + b"\n" + b'{"text": "a cat"}\n',
    "text is a number": b'{"text": 7}\n{"text": "a cat"}\n',
    "text is a list": b'{"text": ["a"]}\n{"text": "a cat"}\n',
    "text is null": b'{"text": null}\n{"text": "a cat"}\n',
    "text is missing": b'{"id": 1}\n{"id": 2, "text": "a cat"}\n',
    "invalid UTF-8": b'{"text": "caf\xe9"}\n{"text": "a cat"}\n',
    "NUL": b'{"text": "a\\u0000dog"}\n',
    "byte order mark": b'\xef\xbb\xbf{"text": "a dog"}\n{"text": "a cat"}\n',
    "CRLF": b'{"text": "a dog"}\r\n{"text": "a cat"}\r\n',
    "blank lines": b'\n\n{"text": "a dog"}\n   \n',
    "line separator in a text": '{"text": "a \u2028 dog"}\n'.encode(),
    "a line of five megabytes": b'{"text": "' + b"dog " * 1_250_000 + b'"}\n{"text": "a cat"}\n',
    "two objects on a line": b'{"text": "a"}{"text": "b"}\n{"text": "a cat"}\n',
    "trailing comma": b'{"text": "a",}\n{"text": "a cat"}\n',
    "a comment": b'// no\n{"text": "a cat"}\n',
}


def tables():
    """Parquet files by what is odd about them."""
    texts = ["a dog", "a cat"]
    yield "no rows", pa.table({"text": pa.array([], pa.string())})
    yield "all null", pa.table({"text": pa.nulls(3, pa.string())})
    yield "of type null", pa.table({"text": pa.nulls(3)})
    yield "large strings", pa.table({"text": pa.array(texts, pa.large_string())})
    yield "string views", pa.table({"text": pa.array(texts, pa.string_view())})
    yield "dictionary", pa.table({"text": pa.array(texts).dictionary_encode()})
    yield "binary", pa.table({"text": pa.array([b"a", b"\xff"])})
    yield "integers", pa.table({"text": [1, 2]})
    yield "lists", pa.table({"text": [["a"], ["b"]]})
    yield "structs", pa.table({"text": [{"a": 1}, {"a": 2}]})
    yield "id of floats", pa.table({"id": [1.0, float("nan")], "text": texts})
    yield "id of decimals", pa.table({"id": pa.array([1, 2]).cast(pa.decimal128(20)), "text": texts})
    yield "id of times", pa.table({"id": pa.array([1, 2], pa.timestamp("us")), "text": texts})
    yield "id of booleans", pa.table({"id": [True, False], "text": texts})
    yield "id of unsigned 64 bits", pa.table({"id": pa.array([2**64 - 1, 2], pa.uint64()), "text": texts})
    yield "id of binary", pa.table({"id": [b"\xff", b"b"], "text": texts})
    yield "invalid UTF-8", pa.table({"text": pa.array([b"caf\xe9", b"a cat"]).view(pa.string())})
    yield "a column twice", pa.Table.from_arrays([pa.array(texts)] * 2, names=["text", "text"])
    yield "another column twice", pa.Table.from_arrays([pa.array(texts)] * 3, names=["text", "x", "x"])
    yield "a name that is not ASCII", pa.table({"text": texts, "ünï\n\0": [1, 2]})
    yield "a column named embedding", pa.table({"text": texts, "embedding": [1, 2]})
    yield "no text column", pa.table({"body": texts})
    yield "no column", pa.table({})
    yield "a null byte", pa.table({"text": ["a\0dog", "\0"]})
    yield "a thousand columns", pa.table({"text": texts} | {f"c{i}": [1, 2] for i in range(1000)})


def input_cases(home, model):
    """A file of each kind, embedded."""
    folder = home / "inputs"
    folder.mkdir()
    files = [(f"CSV: {name}", ".csv", data, None) for name, data in CSV.items()]
    files += [(f"JSONL: {name}", ".jsonl", data, None) for name, data in JSONL.items()]
    for name, table in tables():
        sink = io.BytesIO()
        pq.write_table(table, sink)
        files.append((f"Parquet: {name}", ".parquet", sink.getvalue(), None))
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a dog"] * 1000}), sink)
    good = sink.getvalue()
    damaged = {"empty file": b"", "text": b"a dog", "its end alone": good[-30:], "cut in the middle": good[:400]}
    damaged |= {
        "a flipped bit": bytes([*good[:60], good[60] ^ 8, *good[61:]]),
        "footer of zeros": good[:-12] + b"\0" * 12,
    }
    files += [(f"Parquet: {name}", ".parquet", data, None) for name, data in damaged.items()]
    exact = [
        "a dog",
        'quote " and , comma',
        "line\nbreak",
        "tab\t",
        " blanks ",
        "日本語",
        "\U0001f600",
        "=1+1",
        "'; drop",
    ]
    exact += ["a\u0301", "\u200b\u200b x", "%s %d {0}", "\\n", "x" * 5000]
    for ending, write in (
        (".csv", lambda: "text\n" + "".join('"' + t.replace('"', '""') + '"\n' for t in exact)),
        (".jsonl", lambda: "".join(json.dumps({"text": t}) + "\n" for t in exact)),
    ):
        files.append((f"{ending}: texts come back as they were", ending, write().encode(), exact))
    for i, (name, ending, data, texts) in enumerate(files):
        file = folder / f"{i}{ending}"
        file.write_bytes(data)
        out = folder / f"out-{i}"
        flags = ["--input", file, "--output", out, "--unconditional", "--model", model, "--max-rejected", "1"]
        flags += ["--prompt", "concat-sc", "--pooling", "mean"]
        yield Case("inputs", name, ["embed", *flags], embed_here, texts, str(out))


# --------------------------------------------------------------------------------------------------------------- places


def place_cases(home, model):
    """Paths, names and URIs, as input and as output."""
    source = home / "places"
    source.mkdir()
    (source / "in.csv").write_text("text\na dog\n")
    flags = ["--unconditional", "--model", model, "--prompt", "concat-sc", "--pooling", "mean"]
    secrets = [
        f"s3://key:{SECRET}@bucket/x",
        f"s3://{SECRET}@bucket/x",
        f"s3://key:{SECRET}/x@bucket/y",
        f"s3://a:{SECRET}@b@c/x",
        f"https://host/x?sig={SECRET}",
        f"http://user:{SECRET}@host/x",
        f"gs://{SECRET}@bucket/x",
        f"az://user:{SECRET}@container/x",
        f"abfs://container:{SECRET}@account/x",
        f"ftp://user:{SECRET}@host/x",
        f"simplecache::s3://key:{SECRET}@bucket/x",
    ]
    odd = ["", " ", "nothing-there", "/", "s3://", "s3:///x", "nope://x", "file://", "memory://x", "~nobody/x", "a\nb"]
    odd += [
        "*",
        "[",
        "**/*.csv",
        "in.csv/deeper",
        "\udcff",
        "a" * 300,
        "::",
        "http://127.0.0.1:1/x.csv",
        "data:,x",
        "-",
    ]
    for uri in [*secrets, *odd]:
        shown = uri.replace(SECRET, "SECRET")
        yield Case(
            "places", f"--input {shown!r}", ["embed", "--input", uri, "--output", source / "o", *flags], embed_here
        )
        given = ["embed", "--input", source / "in.csv", "--output", uri, *flags]
        if uri not in ("/", "~nobody/x", " ", "*", "[", "-", "a\nb", "nothing-there", "memory://x", "**/*.csv"):
            yield Case("places", f"--output {shown!r}", given, embed_here)
    for i, name in enumerate(["a b.csv", "a'b.csv", 'a"b.csv', "a%20b.csv", "ä.csv", "a#b.csv", "a?b.csv", "a\nb.csv"]):
        folder = source / f"names-{i}"
        folder.mkdir()
        (folder / name).write_text("text\na dog\n")
        out = str(folder / "out")
        given = ["embed", "--input", folder, "--output", out, *flags]
        yield Case("places", f"a file named {name!r}", given, embed_here, ["a dog"], out)
    strange = source / "strange"
    strange.mkdir()
    Path(os.fsdecode(os.fsencode(strange) + b"/\xff.csv")).write_text("text\na dog\n")
    yield Case(
        "places",
        "a name that is not UTF-8",
        ["embed", "--input", strange, "--output", source / "o2", *flags],
        embed_here,
    )
    (source / "file").write_text("x")
    (source / "loop").symlink_to(source / "loop")
    for name in ("file", "file/x", "loop", "in.csv"):
        given = ["embed", "--input", source / "in.csv", "--output", source / name, *flags]
        yield Case("places", f"--output is {name}", given, embed_here)
    given = ["embed", "--input", source / "loop", "--output", source / "o3", *flags]
    yield Case("places", "--input is a loop of links", given, embed_here)
    for values in (
        ["a.txt", "b.txt"],
        ["", "x"],
        ["color", "color"],
        [" "],
        ["\udcff"],
        ["nothing.txt"],
        ["x" * 10**5],
    ):
        given = ["embed", "--input", source / "in.csv", "--output", source / "o4", *flags[1:], "--conditions", *values]
        yield Case("places", f"--conditions {str(values)[:40]}", given, embed_here)
    for name, content in {
        "empty.txt": b"",
        "blank.txt": b"\n\n",
        "latin.txt": b"caf\xe9\n",
        "twice.csv": b"condition,condition\na,b\n",
        "none.csv": b"a,b\n1,2\n",
        "ragged.csv": b"condition\na,b\n",
        "bad.parquet": b"PAR1",
        "nul.txt": b"a\0b\n",
        "same.txt": b"color\ncolor\n",
        "bom.txt": b"\xef\xbb\xbfcolor\n",
    }.items():
        (source / name).write_bytes(content)
        given = ["embed", "--input", source / "in.csv", "--output", source / f"o-{name}", *flags[1:], "--conditions"]
        yield Case("places", f"a file of conditions: {name}", [*given, source / name], embed_here)


# ---------------------------------------------------------------------------------------------------------------- flags

WORDS = ["nan", "inf", "-1", "0", "1e400", "9" * 30, "²", "", "x", "\udcff", "None", "[1]"]


def stopped(*_, **__):
    """In place of what runs the work: everything before it was checked."""
    raise WorkError("the work begins")


def flag_cases(home, model):
    """Each number of `embed` and of other commands with words that are none."""
    (home / "flags.csv").write_text("text\na dog\n")
    embed = [
        "embed",
        "--input",
        home / "flags.csv",
        "--output",
        home / "flags",
        "--conditions",
        "color",
        "--model",
        model,
    ]
    work = lambda job: run(job, prepare=stopped)  # noqa: E731
    for flag in ("batch-tokens", "unit-rows", "actors", "gpus-per-actor", "patience", "limit", "max-rejected", "dim"):
        for word in WORDS:
            yield Case("flags", f"embed --{flag} {word!r}", [*embed, f"--{flag}={word}"], work)
    others = {
        "search --index x --query a": ("k", "refine", "memory"),
        "facets --index x --condition c": ("clusters", "memory"),
        "join --queries a --vectors b --output c": ("k", "patience"),
        "rerank --answers a --queries b --model c --output d": ("k", "patience"),
    }
    for command, flags in others.items():
        for flag in flags:
            dashes = "-" if len(flag) == 1 else "--"
            for word in ("nan", "-1", "²", "9" * 30, ""):
                yield Case(
                    "flags", f"{command.split()[0]} {dashes}{flag} {word!r}", [*command.split(), dashes + flag, word]
                )
    for arguments in (
        [],
        ["embeds"],
        ["embed", "--nope"],
        ["--version"],
        ["train"],
        ["embed", "--input"],
        ["tune", "nope"],
    ):
        yield Case("flags", f"raycase {' '.join(arguments)}", arguments)


# --------------------------------------------------------------------------------------------------------------- models

ODD = ["x", -1, [], None]


def model_cases(home, model):
    """A model folder with each name of its configuration gone or odd, and files that are not what they seem."""
    (home / "model.csv").write_text("text\na dog\n")
    config = json.loads((Path(model) / "config.json").read_text())
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "model_type", "architectures")
    changes = {f"config.json without {name}": {k: v for k, v in config.items() if k != name} for name in sizes}
    changes |= {f"config.json: {name} is {value!r}": config | {name: value} for name in sizes for value in ODD}
    changes["config.json asks for remote code"] = config | {"auto_map": {"AutoModel": "evil.Model"}}
    documents = {name: json.dumps(value).encode() for name, value in changes.items()}
    documents |= {f"config.json is {data[:20]!r}": data for data in (b"", b"[", b"7", b"\xff", b"[" * 10**5)}

    def embed(folder):
        flags = ["--input", home / "model.csv", "--output", f"{folder}-out", "--unconditional", "--model", folder]
        return ["embed", *flags, "--prompt", "concat-sc", "--pooling", "mean"]

    for i, (name, data) in enumerate(documents.items()):
        folder = home / f"model-{i}"
        shutil.copytree(model, folder)
        (folder / "config.json").write_bytes(data)
        if "remote" in name:
            (folder / "evil.py").write_text("raise SystemExit('remote code ran')")
        yield Case("models", name, embed(folder), embed_here)
    for i, (name, change) in enumerate(
        {
            "no weights": lambda f: (f / "model.safetensors").unlink(),
            "weights of another size": lambda f: (f / "model.safetensors").write_bytes(
                b"\x08" + b"\0" * 7 + b"{}      "
            ),
            "weights cut off": lambda f: os.truncate(f / "model.safetensors", 5000),
            "weights are text": lambda f: (f / "model.safetensors").write_text("no"),
            "weights are a pickle": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "no tokenizer": lambda f: [p.unlink() for p in f.glob("*token*")] + [p.unlink() for p in f.glob("vocab*")],
            "tokenizer is text": lambda f: (f / "tokenizer.json").write_text("no"),
            "raycase.json is text": lambda f: (f / "raycase.json").write_text("no"),
            "raycase.json of no system": lambda f: (f / "raycase.json").write_text('{"system": "nope"}'),
            "raycase.json: an encoder elsewhere": lambda f: (f / "raycase.json").write_text(
                '{"system": "case", "encoder": {"source": "package:os.system"}, "subtract": true}'
            ),
            "a folder without files": lambda f: [shutil.rmtree(f), f.mkdir()],
            "a file": lambda f: [shutil.rmtree(f), f.write_text("x")],
        }.items()
    ):
        folder = home / f"files-{i}"
        shutil.copytree(model, folder)
        change(folder)
        yield Case("models", name, embed(folder), embed_here)
    for name in ("", " ", "nope", "../..", "a/b/c", "package:os.system", "condition-pooling:", "\udcff", "x" * 300):
        yield Case("models", f"--model {name[:30]!r}", embed(name), embed_here)


# -------------------------------------------------------------------------------------------------------------- outputs


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
        "the table of files is text": lambda f: (f / "manifest_files.parquet").write_text("x"),
        "the spans are text": lambda f: (f / "spans.parquet").write_text("x"),
        "a bit of the spans is flipped": lambda f: flip(f / "spans.parquet"),
        "the basis is gone": lambda f: (f / "word_basis.safetensors").unlink(),
        "a bit of the basis is flipped": lambda f: flip(f / "word_basis.safetensors"),
        "no manifest": lambda f: (f / "manifest.json").unlink(),
        "no job.json": lambda f: (f / "job.json").unlink(),
        "saved lines are text": lambda f: [
            (f / "manifest_lines").mkdir(),
            (f / "manifest_lines" / "1.parquet").write_text("x"),
        ],
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
                flags += [
                    storing.ENOUGH,
                    "--model",
                    pooled,
                    "--compute",
                    "float32",
                    "--unit-rows",
                    "5",
                    "--dtype",
                    "float32",
                ]
                flags += ["--keep-columns", "text", "year"]
                case = Case("outputs", f"resume{' unfinished' if begun else ''}: {name}", ["embed", *flags], embed_here)
            else:
                flags = ["--words", folder, "--conditions", "color", "--output", f"{folder}-new"]
                case = Case(
                    "outputs",
                    f"materialize: {name}",
                    ["materialize", *flags],
                    lambda job: {"conditions": len(check_materialize(job)[1])},
                )
            yield case
            shutil.rmtree(folder, ignore_errors=True)


# -------------------------------------------------------------------------------------------------------------- indexes


def index_cases(home, pooled):
    """Questions to an index, and an index with one thing wrong."""
    whole = storing.stored(home / "indexed", pooled, storing.texts(40), unit_rows=10)
    index = storing.indexed(home / "index", whole)
    for query in (
        "",
        " ",
        "\udcff",
        "a\0b",
        "dog " * 10**5,
        chr(0x202E),
        "-",
        "'; drop table",
        "[MASK] [SEP]",
        "\U0001f600",
    ):
        given = ["search", "--index", index, f"--query={query}", "--condition", "color"]
        yield Case("indexes", f"--query {query[:20]!r}", given)
        given = ["search", "--index", index, "--query", "a dog", f"--condition={query}"]
        yield Case("indexes", f"--condition {query[:20]!r}", given)
    for where in ("", "nope", "year >", "1=1; drop", "year = 'x'", "year > 2000) OR (1=1", "\udcff", "("):
        given = ["search", "--index", index, "--query", "a dog", "--condition", "color", f"--where={where}"]
        yield Case("indexes", f"--where {where!r}", given)
    names = sorted(str(p.relative_to(index)) for p in Path(index).rglob("*") if p.is_file())
    for i, name in enumerate(names[:24]):
        for change in ("gone", "cut off"):
            folder = home / f"index-{i}-{change[:3]}"
            shutil.copytree(index, folder)
            if change == "gone":
                (folder / name).unlink()
            else:
                os.truncate(folder / name, (folder / name).stat().st_size // 2)
            kind = Path(name).parts[0] + "/" + Path(name).suffix
            given = ["search", "--index", folder, "--query", "a dog", "--condition", "color"]
            yield Case("indexes", f"a file of the index is {change}: {kind} {i}", given)


def cases(home, only):
    """All cases; files are made as they are asked for."""
    model = str(save_tiny_model(home / "tiny"))
    pooled = storing.model_folder(home)
    groups = {
        "inputs": lambda: input_cases(home, model),
        "places": lambda: place_cases(home, model),
        "flags": lambda: flag_cases(home, model),
        "models": lambda: model_cases(home, model),
        "outputs": lambda: output_cases(home, pooled),
        "indexes": lambda: index_cases(home, pooled),
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
