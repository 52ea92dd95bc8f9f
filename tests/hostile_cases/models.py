"""Model folders with nonsense in them."""

import json
import os
import shutil
from pathlib import Path

from helpers import embed_here
from hostile_cases.case import Case

ODD = ["x", -1, [], None]
SIZES = '"causal": false, "max_tokens": 64'
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SPEC = '{"system": "lora", "encoder": {"source": "./", "prompt": "concat-sc", "pooling": ["mean"], %s}}'


def text(name, content):
    """The file has this text instead."""
    return lambda folder: (folder / name).write_text(content)


def gone(name, then=lambda path: None):
    """The file is gone, and something else in its place."""

    def change(folder):
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        then(folder / name)

    return change


def elsewhere(place, file):
    """The weights are at another place, and an index says so of some file."""

    def change(folder):
        (folder / WEIGHTS).rename(folder / place)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": file}}))

    return change


FILES = {
    "no weights": gone(WEIGHTS),
    "weights of another size": text(WEIGHTS, "\x08" + "\0" * 7 + "{}      "),
    "weights cut off": lambda folder: os.truncate(folder / WEIGHTS, 5000),
    "weights are text": text(WEIGHTS, "no"),
    "weights are a device": gone(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
    "weights are a folder": gone(WEIGHTS, Path.mkdir),
    **{
        f"{name} is a pipe": gone(name, os.mkfifo)
        for name in (WEIGHTS, "config.json", "raycase.json", "tokenizer.json", "additional_chat_templates/a.jinja")
    },
    "an index of pickles": elsewhere("decoy.safetensors", "pytorch_model.bin"),
    "an index of other folders": elsewhere("../elsewhere.safetensors", "../elsewhere.safetensors"),
    "a LoRA adapter beside the weights": text("adapter_config.json", "{}"),
    "a LoRA adapter": lambda folder: (folder / "config.json").rename(folder / "adapter_config.json"),
    "a tokenizer elsewhere": text("tokenizer_config.json", '{"fast_tokenizer_files": ["../tokenizer.4.0.json"]}'),
    "tokenizer_config.json is a list": text("tokenizer_config.json", "[]"),
    "the adapter of a stranger": text("raycase.json", SPEC % (SIZES + ', "adapter": "stranger/adapter"')),
    "more tokens than positions": text("raycase.json", SPEC % '"causal": false, "max_tokens": 9999'),
    "weights are a pickle": lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"),
    "no tokenizer": lambda folder: [p.unlink() for name in ("*token*", "vocab*") for p in folder.glob(name)],
    "tokenizer is text": text("tokenizer.json", "no"),
    "raycase.json is text": text("raycase.json", "no"),
    "raycase.json of no system": text("raycase.json", '{"system": "nope"}'),
    "an encoder elsewhere": text(
        "raycase.json", '{"system": "case", "encoder": {"source": "package:os.system"}, "subtract": true}'
    ),
    "a folder without files": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "a file": lambda folder: [shutil.rmtree(folder), folder.write_text("x")],
}


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
    for i, (name, change) in enumerate(FILES.items()):
        folder = home / f"files-{i}"
        shutil.copytree(model, folder)
        change(folder)
        yield Case("models", name, embed(folder), embed_here)
    names = ["", " ", "nope", "../..", "a/b/c", "package:os.system", "condition-pooling:", "csr:", "\udcff", "x" * 300]
    for name in names:
        yield Case("models", f"--model {name[:30]!r}", embed(name), embed_here)
