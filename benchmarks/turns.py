"""What benchmarks share: flags, texts, whole commands, contenders that take turns, pictures, the last line."""

import argparse
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
from resource import struct_rusage
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data"))
CAPTIONS = DATA / "flickr30k" / "captions.parquet"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
RAYCASE = ("-m", "raycase")
median = statistics.median


class Parser(argparse.ArgumentParser):
    """A command line; afterwards `sys.argv` is what follows `python`, for provenance and processes of the same."""

    def parse_args(self, *arguments):
        found = super().parse_args(*arguments)
        if spec := sys.modules["__main__"].__spec__:
            sys.argv[:1] = ["-m", spec.name]
        return found


def parser_of(doc):
    """The command line of a script with this docstring."""
    return Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def captions(count):
    import pyarrow.parquet as pq

    return pq.read_table(CAPTIONS, columns=["text"])["text"].slice(0, count).to_pylist()


def abstracts(count):
    lines = (DATA / "csfcube" / "corpus.jsonl").read_text(encoding="utf-8").splitlines()[:count]
    return [" ".join(sentence["text"] for sentence in json.loads(line)["sentences"]) for line in lines]


class Done(NamedTuple):
    """A process that ended well: what it printed, the seconds it took, and what it used."""

    printed: str
    seconds: float
    usage: struct_rusage

    @property
    def line(self):
        """Its last line, as JSON."""
        return json.loads(self.printed.splitlines()[-1])

    @property
    def processor_seconds(self):
        return self.usage.ru_utime + self.usage.ru_stime


def run(*words, **options):
    """A process of this Python; this one ends where it fails."""
    with tempfile.TemporaryFile("w+") as printed, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        command = [sys.executable, *map(str, words)]
        process = subprocess.Popen(command, stdout=printed, stderr=errors, text=True, **options)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (printed, errors):
            file.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(command)}: {errors.read()}")
        return Done(printed.read(), seconds, usage)


def of_checkout(checkout):
    """The environment of a process that runs the package of a checkout, and benchmarks that it lacks of this one."""
    return os.environ | {"PYTHONPATH": f"{checkout}{os.pathsep}{ROOT}", "HF_HUB_OFFLINE": "1", "RAYCASE_QUIET": "1"}


def serve(embed):
    """Be a contender: embed once to warm up, then once for each line on standard input, and answer the seconds.

    `embed` gives counts to add to the answer.
    """
    embed()
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        counts = embed() or {}
        print(json.dumps({"seconds": time.perf_counter() - began} | counts), flush=True)


class Contender:
    """A contender in a process of its own, loaded and waiting for its turn: the module's own `--contender`."""

    def __init__(self, module, *arguments, peer=False, checkout=ROOT):
        # -P: the checkout's package, not that of the folder this was started in
        command = [str(PEERS) if peer else sys.executable, "-P", "-m", module, "--contender", *map(str, arguments)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=of_checkout(checkout), **pipes)
        while self.process.stdout.readline().strip() != "ready":
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} did not start; run `make bench` to set up the peers")

    def turn(self):
        print("go", file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


def take_turns(running, rounds, after=lambda turn, answers: None):
    """The answers of each contender, one a round; `after` gets each round's. The contenders are stopped."""
    answers = {name: [] for name in running}
    for turn in range(1, rounds + 1):
        for name, contender in running.items():
            answers[name].append(contender.turn())
        after(turn, answers)
    for contender in running.values():
        contender.stop()
    return answers


def whole_job(*flags):
    """A job on captions, on Ray: its last line, and the peak memory of its driver in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        done = run(*RAYCASE, "embed", "--ray", "--input", CAPTIONS, "--output", f"{folder}/out", *flags)
    return done.line, done.usage.ru_maxrss // 1024


def matrix_product_rate(hidden, intermediate, rows=2048):
    """FLOP/s of a bf16 matrix product in an encoder's shapes: the best of several runs."""
    import torch

    a, b = torch.randn(rows, hidden, dtype=torch.bfloat16), torch.randn(intermediate, hidden, dtype=torch.bfloat16)
    seconds = []
    with torch.inference_mode():
        while len(seconds) < 5 or (sum(seconds) < 0.3 and len(seconds) < 100):
            began = time.perf_counter()
            torch.nn.functional.linear(a, b)
            seconds.append(time.perf_counter() - began)
    return 2 * rows * hidden * intermediate / min(seconds)


def finish(ratios=None, **result):
    """The last line: one JSON object, with where it was measured."""
    from raycase.io.json_values import finite
    from raycase.io.provenance import provenance

    result = {"ratios": {name: round(value, 3) for name, value in (ratios or {}).items()}} | result
    print(json.dumps(finite(result | provenance()), allow_nan=False))


def has_matplotlib():
    """Whether plots can be drawn."""
    return importlib.util.find_spec("matplotlib") is not None


def png(figure):
    """The figure as a PNG file, the same bytes for the same figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150, metadata={"Software": None})
    return buffer.getvalue()
