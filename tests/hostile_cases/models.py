"""Model folders with nonsense in them."""

import json
import os
import shutil
from pathlib import Path

from helpers import embed_here
from hostile_cases.case import Case

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
            "weights are a pipe": lambda f: [(f / "model.safetensors").unlink(), os.mkfifo(f / "model.safetensors")],
            "weights are a device": lambda f: [
                (f / "model.safetensors").unlink(),
                (f / "model.safetensors").symlink_to("/dev/zero"),
            ],
            "weights are a folder": lambda f: [(f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()],
            "config.json is a pipe": lambda f: [(f / "config.json").unlink(), os.mkfifo(f / "config.json")],
            "raycase.json is a pipe": lambda f: os.mkfifo(f / "raycase.json"),
            "tokenizer.json is a pipe": lambda f: [(f / "tokenizer.json").unlink(), os.mkfifo(f / "tokenizer.json")],
            "a template is a pipe": lambda f: [
                (f / "additional_chat_templates").mkdir(),
                os.mkfifo(f / "additional_chat_templates" / "a.jinja"),
            ],
            "an index of pickles": lambda f: [
                (f / "model.safetensors").rename(f / "decoy.safetensors"),
                (f / "model.safetensors.index.json").write_text(
                    '{"metadata": {}, "weight_map": {"a": "pytorch_model.bin"}}'
                ),
            ],
            "an index of other folders": lambda f: [
                (f / "model.safetensors").rename(f.parent / "elsewhere.safetensors"),
                (f / "model.safetensors.index.json").write_text(
                    '{"metadata": {}, "weight_map": {"a": "../elsewhere.safetensors"}}'
                ),
            ],
            "a LoRA adapter beside the weights": lambda f: (f / "adapter_config.json").write_text("{}"),
            "a LoRA adapter": lambda f: [(f / "config.json").unlink(), (f / "adapter_config.json").write_text("{}")],
            "a tokenizer elsewhere": lambda f: (f / "tokenizer_config.json").write_text(
                '{"fast_tokenizer_files": ["../tokenizer.4.0.json"]}'
            ),
            "tokenizer_config.json is a list": lambda f: (f / "tokenizer_config.json").write_text("[]"),
            "raycase.json: the adapter of a stranger": lambda f: (f / "raycase.json").write_text(
                '{"system": "lora", "encoder": {"source": "./", "prompt": "concat-sc", "pooling": ["mean"], '
                '"causal": false, "max_tokens": 64, "adapter": "stranger/adapter"}}'
            ),
            "raycase.json: more tokens than positions": lambda f: (f / "raycase.json").write_text(
                '{"system": "lora", "encoder": {"source": "./", "prompt": "concat-sc", "pooling": ["mean"], '
                '"causal": false, "max_tokens": 9999}}'
            ),
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
    for name in (
        "",
        " ",
        "nope",
        "../..",
        "a/b/c",
        "package:os.system",
        "condition-pooling:",
        "csr:",
        "\udcff",
        "x" * 300,
    ):
        yield Case("models", f"--model {name[:30]!r}", embed(name), embed_here)
