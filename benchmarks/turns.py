"""What benchmarks share: contenders that take turns, each in a process of its own; the whole job; the last line."""

import importlib.util
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))
CAPTIONS = DATA / "flickr30k" / "captions.parquet"
PEERS = ROOT / ".venv-peers" / "bin" / "python"


def captions(count):
    import pyarrow.parquet as pq

    return pq.read_table(CAPTIONS, columns=["text"])["text"].slice(0, count).to_pylist()


def abstracts(count):
    lines = (DATA / "csfcube" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [" ".join(sentence["text"] for sentence in json.loads(line)["sentences"]) for line in lines]


def serve(embed):
    """Be a contender: embed once to warm up, then once for each line on standard input, and say how long it took.

    `embed` gives counts to add to the answer.
    """
    embed()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        counts = embed() or {}
        print(json.dumps({"seconds": time.perf_counter() - began} | counts), flush=True)


class Contender:
    """A contender in a process of its own, loaded and waiting for its turn."""

    def __init__(self, script, *arguments, peer=False):
        python = str(PEERS) if peer else sys.executable
        command = [python, str(script), "--contender", *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        while self.process.stdout.readline().strip() != "ready":
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} did not start; run `make bench` to set up the peers")

    def turn(self):
        print("go", file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def whole_job(*arguments):
    """A job on captions, on Ray: its last line, its manifest's rates, and the peak memory of its driver in MiB."""
    watch = (
        "import resource, runpy, sys; sys.argv = sys.argv[1:]\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr)"
    )
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", watch, str(ROOT / "jobs" / "embed.py"), "--ray", "--input", str(CAPTIONS)]
        command += ["--output", folder + "/out", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), int(done.stderr.splitlines()[-1])


def matrix_product_rate(hidden, intermediate, rows=2048):
    """FLOP/s of a plain bf16 matrix product in an encoder's shapes: the best of several runs."""
    import torch

    a, b = torch.randn(rows, hidden, dtype=torch.bfloat16), torch.randn(intermediate, hidden, dtype=torch.bfloat16)
    seconds = []
    with torch.inference_mode():
        while len(seconds) < 5 or (sum(seconds) < 0.3 and len(seconds) < 100):
            began = time.perf_counter()
            torch.nn.functional.linear(a, b)
            seconds.append(time.perf_counter() - began)
    return 2 * rows * hidden * intermediate / min(seconds)


def median(values):
    return statistics.median(values)


def finish(result):
    """The last line: one JSON object, with where it was measured."""
    from raycase.io.json_values import finite
    from raycase.io.provenance import provenance

    result["ratios"] = {name: round(value, 3) for name, value in result["ratios"].items()}
    print(json.dumps(finite(result | provenance()), allow_nan=False))


def has_matplotlib():
    """Whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def png(figure):
    """The figure as a PNG file, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
