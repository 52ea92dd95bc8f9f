"""Files of each kind with something odd in them that tests/data does not have, embedded."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
from helpers import embed_here, score_here
from hostile_cases.case import Case

CSV = {
    "lone CR": b"id,text\r1,a dog\r",
    "NUL": b"id,text\n1,a\0dog\n2,a cat\n",
    "UTF-16": "id,text\n1,a dog\n".encode("utf-16"),
    "an unnamed column": b"id,text,\n1,a,b\n",
    "semicolons": b"id;text\n1;a dog\n",
    "a formula": b"id,text\n1,=cmd|' /C calc'!A0\n",
    "field of two million characters": b"id,text\n1," + b"a " * 10**6 + b"\n2,a cat\n",
    "emoji, right to left, zero width": "id,text\n1,\U0001f469\u200d\U0001f680 \u05e9 \u200e \ufeffx\n".encode(),
    "only a quote": b'id,text\n"',
    "ten thousand columns": b"text," + b",".join(b"c%d" % i for i in range(10**4)) + b"\na" + b",x" * 10**4 + b"\n",
}
JSONL = {
    "a whole surrogate pair": b'{"text": "a \\ud83d\\ude00 dog"}\n',
    "a key twice": b'{"text": "a", "text": "a dog"}\n',
    "NaN": b'{"text": "a dog", "n": NaN}\n',
    "Infinity as id": b'{"id": Infinity, "text": "a dog"}\n{"id": 2, "text": "a cat"}\n',
    "id beyond 64 bits": b'{"id": 99999999999999999999, "text": "a dog"}\n{"id": 2, "text": "a cat"}\n',
    "a number of 5,000 digits": b'{"text": "a dog", "n": ' + b"9" * 5000 + b'}\n{"text": "a cat"}\n',
    "NUL": b'{"text": "a\\u0000dog"}\n',
    "line separator in a text": '{"text": "a \u2028 dog"}\n'.encode(),
    "a line of five megabytes": b'{"text": "' + b"dog " * 1_250_000 + b'"}\n{"text": "a cat"}\n',
}


def tables():
    """Parquet files by what is odd about them."""
    texts = ["a dog", "a cat"]
    yield "no rows", pa.table({"text": pa.array([], pa.string())})
    yield "id of floats", pa.table({"id": [1.0, float("nan")], "text": texts})
    yield "a column twice", pa.Table.from_arrays([pa.array(texts)] * 2, names=["text", "text"])
    yield "another column twice", pa.Table.from_arrays([pa.array(texts)] * 3, names=["text", "x", "x"])
    yield "a name that is not ASCII", pa.table({"text": texts, "ünï\n\0": [1, 2]})
    yield "no column", pa.table({})
    yield "a null byte", pa.table({"text": ["a\0dog", "\0"]})
    yield "a thousand columns", pa.table({"text": texts} | {f"c{i}": [1, 2] for i in range(1000)})


def pairs():
    """Files of pairs of sentences by what is odd about them."""
    good = {"sentence1": ["a dog", "a cat"], "sentence2": ["a man", "a man"], "condition": ["color", "color"]}
    yield "no rows", pa.table({name: pa.array([], pa.string()) for name in good})
    yield "a second sentence that is null", pa.table(good | {"sentence2": [None, "a man"]})
    yield "second sentences of type null", pa.table(good | {"sentence2": pa.nulls(2)})
    yield "second sentences of numbers", pa.table(good | {"sentence2": [1, 2]})
    yield "invalid UTF-8", pa.table(good | {"sentence2": pa.array([b"caf\xe9", b"a"]).view(pa.string())})
    yield "conditions in lists", pa.table(good | {"condition": [["color", "number"], []]})
    yield "structs and bytes beside them", pa.table(good | {"x": [{"a": 1}, None], "y": [b"\xff", None]})
    yield "a map beside them", pa.table(good | {"x": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64()))})
    yield "halves of floats", pa.table(good | {"x": pa.array([1, None], pa.float32()).cast(pa.float16())})
    yield "lists of views", pa.table(good | {"x": pa.array([["a"], None], pa.list_(pa.string()))})
    yield "a column named score", pa.table(good | {"score": [1, 2]})
    yield "a column named __row", pa.table(good | {"__row": [1, 2]})
    yield "a column named row", pa.table(good | {"row": [1, 2], "file": ["a", "b"], "keep:text": [1, 2]})
    yield "ids that are null", pa.table(good | {"id": pa.array([None, 1])})
    yield "another column twice", pa.Table.from_arrays([*map(pa.array, good.values())] * 2, names=[*good, *"xxx"])
    yield "a name that is not ASCII", pa.table(good | {"ünï\n\0": [1, 2]})
    yield "a thousand columns", pa.table(good | {f"c{i}": [1, 2] for i in range(1000)})


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
    damaged["a flipped bit"] = bytes([*good[:60], good[60] ^ 8, *good[61:]])
    damaged["footer of zeros"] = good[:-12] + b"\0" * 12
    files += [(f"Parquet: {name}", ".parquet", data, None) for name, data in damaged.items()]
    exact = ["a dog", 'quote " and , comma', "line\nbreak", "tab\t", " blanks ", "日本語", "\U0001f600", "=1+1"]
    exact += ["'; drop", "a\u0301", "\u200b\u200b x", "%s %d {0}", "\\n", "x" * 5000]
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
    for i, (name, table) in enumerate(pairs()):
        pq.write_table(table, folder / f"pairs-{i}.parquet")
        flags = ["--input", folder / f"pairs-{i}.parquet", "--output", folder / f"scored-{i}", "--max-rejected", "1"]
        flags += ["--model", model, "--prompt", "concat-sc", "--pooling", "mean"]
        yield Case("inputs", f"pairs: {name}", ["score", *flags], score_here)
