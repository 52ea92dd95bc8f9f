"""What strangers and clumsy hands give: each gets one line that says what was expected, or rejected rows with a reason.

Jobs run in this process, without Ray, on tiny random models.
"""

import contextlib
import io
import json
import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import storing
from altered import alter, with_column
from helpers import change_json, embed_here, read_output, read_rejected, save_tiny_model
from served import client_of, refusal

from raycase.cli import main
from raycase.io import lance_dataset, s3
from raycase.serve.service import Service
from raycase.serve.settings import ServeFlags, check_serve

SECRET = "hunter2secret"  # must never be printed
MODEL = ["--model", "model", "--prompt", "concat-sc", "--pooling", "mean"]
EMBED = ["embed", "--input", "in.csv", "--output", "NEW", "--unconditional", *MODEL]
UNDER = ["embed", "--input", "in.csv", "--output", "NEW", "--model", "model", "--pooling", "mean"]
SEARCH = ["search", "--index", "i.lance", "--query", "a dog", "--condition", "color"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A model, one that stores words, an output of it with its index, and files of texts."""
    home = tmp_path_factory.mktemp("hostile")
    save_tiny_model(home / "model")
    (home / "in.csv").write_text("text\na dog\n")
    (home / "in.taught").write_text("text\na dog\n")
    (home / "s").mkdir()
    words = storing.stored(home / "s", storing.model_folder(home / "s"), storing.texts(40), unit_rows=10)
    os.rename(words, home / "words")
    storing.indexed(home / "i.lance", str(home / "words"))
    (home / "loop").symlink_to(home / "loop")
    return home


@pytest.fixture
def answer(home, tmp_path, monkeypatch):
    """Run a command in `home`, NEW being a folder that is not there: status, standard error, and its last line."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")  # no store is there
    monkeypatch.setattr(lance_dataset, "TRYING_S", 0.1)
    monkeypatch.setattr(s3, "ATTEMPTS", 1)

    def ask(words):
        said, printed, status = io.StringIO(), io.StringIO(), 0
        given = [str(word).replace("NEW", str(tmp_path / "new")) for word in words]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
            try:
                main(given, work=embed_here if given[0] == "embed" else None)
            except SystemExit as stop:
                status = stop.code or 0
        assert SECRET not in said.getvalue() + printed.getvalue()
        lines = said.getvalue().splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        explained = status == 2 and not errors and "For full helptext" in said.getvalue()
        assert status == 0 or explained or (status in (1, 2) and len(errors) == 1), (status, lines)
        return status, said.getvalue() if explained else "".join(errors), printed.getvalue()

    return ask


def refused(answer, words, status, said):
    found, line, _ = answer(words)
    assert found == status and said in line, (found, line)


REQUESTS = {
    "a limit that is no number": ([*EMBED, "--limit=nan"], "Error parsing --limit"),
    "a limit beyond 64 bits": ([*EMBED, "--limit", "9" * 30], "expected a number of at most 64 bits"),
    "a secret": ([*EMBED, "--input", f"nope://user:{SECRET}@host/x"], "nope://...: expected a URI without c"),
    "a pooling of another encoder": ([*EMBED, "--pooling", "latent-end"], "expected an NV-Embed, got a bert at"),
    "answers as what was taught": (
        [*UNDER, "--conditions", "in.taught"],
        "expected a condition that `raycase teach` w",
    ),
    "a filter without end": ([*SEARCH, "--where", "(" * 10**4 + "year > 1" + ")" * 10**4], "it is nested too deeply"),
}


@pytest.mark.parametrize("case", REQUESTS)
def test_a_request(answer, case):
    words, said = REQUESTS[case]
    refused(answer, words, 2, said)


EXACT = ["a dog", 'quote " and , comma', "line\nbreak", "tab\t", " blanks ", "日本語", "\U0001f600", "=1+1", "a\u0301"]
EXACT += ["'; drop", "%s %d {0}", "\\n", "\u202eabc", "NA", "x" * 5000]
QUOTED = "text\n" + "".join('"' + text.replace('"', '""') + '"\n' for text in EXACT)
MOST = ["--max-rejected", "0.4"]
LONG = b"\x28\xb5\x2f\xfd\0\xa8\x29\0\0text\n"  # a frame whose window has 2 GiB
INPUTS = {  # a file, further flags, and how the job ends: with a message, with the texts, or with rejected rows
    "UTF-16": ("x.csv", "id,text\n1,a dog\n".encode("utf-16"), [], "text in UTF-16; convert it: iconv -f UTF-16 "),
    "UTF-16 without a mark": ("x.jsonl", '{"text": "a"}\n'.encode("utf-16-le"), [], "iconv -f UTF-16LE -t UTF-8"),
    "Latin-1": ("x.csv", b"id,text,caf\xe9\n1,a,b\n", [], "convert another encoding, as: iconv -f LATIN1 -t UTF-8"),
    "rows of Latin-1": ("x.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n', MOST, "; text is read as UTF-8, convert"),
    "an array": ("x.jsonl", b'\n[\n{"text": "a"}]\n', [], "a JSON array, and no object on each line; convert it: jq"),
    "Macintosh": ("x.csv", b"id,text\r1,a\r", [], "its lines end in CR alone, convert them: tr"),
    "a long window": ("x.csv.zst", LONG, [], "compress it again, without `zstd --long`"),
    "a long text": ("x.csv", b"id,text\n1," + b"a " * 10**5 + b"\n2,a cat\n", [], []),
    "texts of CSV": ("x.csv", QUOTED.encode(), ["--on-unknown", "embed"], EXACT),
    "numbers that no float holds": (
        "x.jsonl",
        b"".join(b'{"text": "a", "t": %s}\n' % t for t in (b"1.5", b"2", b"1700000000000000001", b"9" * 30)),
        ["--keep-columns", "text", "t"],
        ["wrong type"] * 2,
    ),
    "half a pair": ("x.jsonl", b'{"text": "a"}\n{"text": "a \\ud83d dog"}\n', [], ["invalid UTF-8"]),
    "no rows": ("x.parquet", pa.table({"text": pa.array([], pa.string())}), [], "expected rows, got none in 1 files"),
}


@pytest.mark.parametrize("case", INPUTS)
def test_an_input(answer, tmp_path, case):
    name, content, flags, wanted = INPUTS[case]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        pq.write_table(content, tmp_path / name)
    words = [*EMBED, "--input", tmp_path / name, "--max-rejected", "1", *flags]
    if isinstance(wanted, str):
        return refused(answer, words, 1 if flags == MOST else 2, wanted)
    status, line, printed = answer(words)
    assert (status, line) == (0, "")
    counts = json.loads(printed.splitlines()[-1])
    assert counts["rows_in"] == counts["rows_out"] + counts["rows_rejected"]
    if wanted == EXACT:
        assert read_output(str(tmp_path / "new"))["text"].to_pylist() == wanted
    elif wanted:
        assert sorted(row["reason"] for row in read_rejected(str(tmp_path / "new"))) == wanted
    else:
        assert not counts["rows_rejected"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"template": "{sentence!r:>1000000} {condition}", "pool": "last"}', "expected {sentence} and {condition}"),
        ("[" * 10**5, "expected JSON, got: objects nested too deeply"),
    ],
)
def test_a_prompt(answer, tmp_path, content, said):
    (tmp_path / "p.json").write_text(content)
    refused(answer, [*UNDER, "--conditions", "color", "--prompt", tmp_path / "p.json"], 2, said)


def text(name, content):
    """The file has this text instead."""
    return lambda folder: (folder / name).write_text(content)


def config(**values):
    """config.json has these values, too."""

    def change(folder):
        (folder / "evil.py").write_text("raise SystemExit('remote code ran')")
        change_json(folder / "config.json", **values)

    return change


def elsewhere(folder):
    """An index of weights names a file outside the folder."""
    (folder / "model.safetensors").unlink()
    text("model.safetensors.index.json", '{"weight_map": {"a": "../x.safetensors"}}')(folder)


MODELS = {
    "remote code": (config(auto_map={"AutoModel": "evil.Model"}, model_type="evil"), "expected a readable encoder at"),
    "weights elsewhere": (elsewhere, "expected readable weights at"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_model(answer, home, tmp_path, case):
    change, said = MODELS[case]
    shutil.copytree(home / "model", tmp_path / "m")
    change(tmp_path / "m")
    refused(answer, [*EMBED, "--model", tmp_path / "m"], 2, said)


def test_an_output(answer, home, tmp_path):
    shutil.copytree(home / "words", tmp_path / "f")
    codes = with_column("word_codes", lambda table: pa.array([b"x"] * len(table), pa.large_binary()))
    alter(tmp_path / "f", codes)
    refused(answer, ["verify", tmp_path / "f"], 1, "stored tokens: expected 31 numbers a token")


DEEP = 10**5
BODIES = {
    "nested": ("/v1/embeddings", b"[" * DEEP + b"]" * DEEP, 400, "error parsing the body"),
    "no JSON": ("/v1/embeddings", b'{"input": ', 400, "expected JSON, got another body: Expecting value at 10"),
    "half a pair": ("/v1/embeddings", rb'{"input": "\ud800"}', 422, "input.0: Input should be a valid string"),
    "a text for a number": ("/v1/embeddings", b'{"input": "a", "dimensions": "6"}', 422, "dimensions: "),
    "a file": ("/search", b'{"queries": "a", "index": "/etc/passwd"}', 422, "index: Extra inputs"),
    "a million answers": ("/search", json.dumps({"queries": "a", "k": 2**70}), 422, "k: "),
}


@pytest.fixture(scope="module")
def client(home):
    return client_of(Service.load(check_serve(ServeFlags(index=str(home / "i.lance")))))[0]


@pytest.mark.parametrize("case", BODIES)
def test_a_body(client, home, case):
    route, body, status, said = BODIES[case]
    answer = client.post(route, content=body, headers={"Content-Type": "application/json"})
    assert said in refusal(answer, status) and str(home) not in answer.text
    assert client.post("/v1/embeddings", json={"input": "a red dress"}).status_code == 200
