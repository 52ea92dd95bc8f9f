"""Every command killed at random moments, and run again: is anything other than an undisturbed run's?

    python -m benchmarks.faults.kills [--minutes 10] [--seed 0] [--only NAME ...]

A round starts a command as a process group and ends the group by SIGKILL or SIGTERM, at a moment that is drawn over its
undisturbed time, in half of the rounds over what follows its first file or answer. Then there is nothing, what readers
refuse in one line, what was there before, some whole files, or the whole result; the same command again gives the whole
result. What runs in one process is forked where the libraries are imported, so that kills meet its work.
"""

import hashlib
import json
import math
import multiprocessing
import os
import random
import re
import runpy
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path

from benchmarks.turns import ROOT, finish, parser_of

sys.path.insert(0, str(ROOT / "tests"))
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}

import psutil
import pyarrow.parquet as pq
import requests
import storing
import umap  # noqa: F401 (as what follows, so that it is imported before commands are forked)
from helpers import rated_rows, to_csv

import raycase
import raycase.commands.score
import raycase.commands.train
from raycase.errors import RequestError, WorkError
from raycase.index.options import EFFORTS
from raycase.job.verify import verify

FORKS = multiprocessing.get_context("forkserver")
SECONDS = 900  # after which a command hangs; a loaded machine takes minutes to start a service
TIMES = re.compile(r"second|_per_|time|provenance|mib|^run$|output|host|finished|created")  # names of what may differ
PASSED = re.compile(r"(^|/)(\.|(tune|manifest_lines)/|(job.json|spans.parquet)$|.*\.(md|csv)$)")
HALF = re.compile(r"\.[0-9a-f]{32}$")  # files that are being written
PAIRS = "--train {home}/train.csv --validation {home}/validation.csv"
DATA = f"{PAIRS} --model {{home}}/bert --compute float32 --output {{out}}"
ROWS = "embed --input {home}/a/in.parquet --output {out} --model {home}/model --compute float32 --unit-rows 50"
UNDER = "--conditions color 'number of people'"
LATER = "--embeddings {home}/later --output {out}"
OPEN = raycase.Index.open
SEARCH = "--index {home}/i.lance --condition color"


class Case:
    """A command. read: raises an error where {out} is no whole result, None: nothing says so; start: what {out} is
    before; program: not forked."""

    def __init__(self, name, words, read=None, *, start=None, program=False):
        self.name, self.words, self.read, self.start, self.program = name, words, read, start, program
        self.place = "o.lance" if name.startswith("index") else "o"
        self.wanted, self.seconds, self.writes = None, 0.0, 0.0  # undisturbed; writes: until a first file or answer


CASES = [
    Case("embed", f"{ROWS} --no-ray {UNDER}", verify),
    Case("embed --any-condition", f"{ROWS} --no-ray --any-condition", verify),
    Case("embed --chunk", f"{ROWS} --no-ray {UNDER} --chunk 6 --overlap 2 --late-chunking", verify),
    Case("embed, stored tokens", f"embed --no-ray --input {{home}}/tokens {UNDER} --output {{out}}", verify),
    Case("verify", "verify --no-ray {out}", verify, start="tokens"),
    Case("index", "index --vector-index exact --embeddings {home}/tokens {home}/out --output {out}", OPEN),
    Case("index --vector-index ivf-rq", "index --vector-index ivf-rq --embeddings {home}/out --output {out}", OPEN),
    Case("index, one that is there", f"index {LATER} --keep-condition place", OPEN, start="i.lance"),
    Case("index --overwrite", f"index --overwrite {LATER}", OPEN, start="i.lance"),
    Case("join", "join --no-ray -k 3 --query-vectors {home}/later --vectors {home}/tokens --output {out}"),
    Case("score", "score --no-ray --input {home}/train.csv --output {out} --model {home}/model --unit-rows 40", verify),
    Case("train condition-pooling", f"train condition-pooling --no-ray --dim 32 {DATA}", raycase.load),
    Case("train bi-encoder", f"train bi-encoder --no-ray --batch-size 16 {DATA}", raycase.load),
    Case("search --output", f"search --no-ray {SEARCH} --query 'red dog' --output {{out}}/a.parquet"),
    Case("facets", f"facets {SEARCH} --clusters 3 --output {{out}}/f.parquet --assignments {{out}}/a.parquet"),
    Case("explore", "explore --index {home}/i.lance --conditions color --clusters 3 --output {out}/e.html"),
    Case("embed --ray", f"{ROWS} --ray --actors 1:1 {UNDER}", verify, program=True),
    Case("train --ray", f"train bi-encoder --ray --batch-size 16 {DATA}", raycase.load, program=True),
    Case("tune", f"tune --grid {{home}}/grid.json --seeds 1 -- bi-encoder --epochs 1 {DATA}", program=True),
    Case("serve", "serve --index {home}/i.lance --port 0", program=True),
]


def child(words, log, program):
    os.setsid()
    for number, name in enumerate((".out", ".err"), 1):
        os.dup2(os.open(log + name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if program:
        os.execv(sys.executable, [sys.executable, "-m", "raycase", *words])
    sys.argv = ["raycase", *words]
    runpy.run_module("raycase", run_name="__main__")


class Run:
    """A case's command, until it ends; at, number: when by which signal. A service ends when it has answered."""

    def __init__(self, case, home, log, at=None, number=None):
        self.out, self.log, self.clock = home / "now" / case.place, log, time.time()
        self.killed, self.seen, self.answers, self.answered = None, set(), [], 0.0
        words = shlex.split(case.words.format(home=home, out=self.out))
        self.process = FORKS.Process(target=child, args=(words, str(log), case.program))
        self.process.start()
        if number:
            threading.Timer(at, self.kill, [number]).start()
        try:
            while self.process.is_alive():
                with suppress(psutil.NoSuchProcess):
                    self.seen |= {*psutil.Process(self.process.pid).children(recursive=True)}
                if case.name == "serve" and '"url"' in self.printed(".out"):
                    self.ask(json.loads(self.printed(".out"))["url"])
                    if self.answers and not number and not self.killed:
                        os.kill(self.process.pid, signal.SIGTERM)
                        self.killed = signal.SIGTERM
                self.process.join(0.1)
                assert time.time() - self.clock < SECONDS + (at or 0), f"hangs: {self.printed('.err')[-500:]}"
        finally:
            self.kill(signal.SIGKILL)
            self.seconds, self.code = time.time() - self.clock, self.process.exitcode
            psutil.wait_procs(self.living(), timeout=90)
            self.left = [process.name() for process in self.living()]
            for process in self.living():
                process.kill()
        assert "Traceback" not in self.printed(".out") + self.printed(".err"), self.printed(".err")[-3000:]

    def printed(self, name):
        file = Path(f"{self.log}{name}")
        return file.read_text() if file.exists() else ""

    def living(self):
        return [each for each in self.seen if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    def kill(self, number):
        with suppress(ProcessLookupError):
            if self.process.is_alive():
                os.killpg(self.process.pid, number)
                self.killed = self.killed or number

    def ask(self, url):
        bodies = {"/v1/embeddings": {"input": ["a red dog", "two"], "condition": "color"}}
        bodies |= {"/search": {"queries": "red dog", "condition": "animal", "k": 5}}
        found = {}
        for route, body in bodies.items():
            try:
                answer = requests.post(url + route, json=body, timeout=60)
            except requests.RequestException:
                assert self.killed, "the service broke off"
                return
            if self.killed and answer.status_code >= 500:
                return
            assert answer.status_code == 200, answer.text
            found[route] = steady(answer.json())
        self.answers.append(found)
        self.answered = self.answered or time.time()


def steady(value):
    """JSON without what differs between undisturbed runs."""
    if isinstance(value, dict):
        return {name: steady(each) for name, each in value.items() if not TIMES.search(name)}
    return [steady(each) for each in value] if isinstance(value, list) else value


def contents(place):
    """File -> columns, JSON, or a hash of its bytes; of an index its rows and answers."""
    if place.suffix == ".lance":
        index = raycase.Index.open(str(place))
        order = [("id", "ascending"), ("condition", "ascending")]
        asked = (["a red dog"], "color", 5)
        return {
            "rows": index.dataset.to_table().sort_by(order).to_pydict(),
            "answers": index.search(*asked, **EFFORTS["exact"]).to_pydict(),
            "count": index.search(*asked).num_rows,  # an approximate index is drawn anew: it may find others
            "built": sorted(each["name"] for each in index.dataset.list_indices()),
        }
    files = {str(file.relative_to(place)): file for file in sorted(place.rglob("*")) if file.is_file()}
    return {name: steady(content(file)) for name, file in files.items() if not PASSED.search(name)}


def content(file):
    if file.suffix == ".parquet":
        return pq.read_table(file).to_pydict()
    return json.loads(file.read_text()) if file.suffix == ".json" else hashlib.sha256(file.read_bytes()).hexdigest()


def same(a, b):
    """Whether contents are equal, numbers to a thousandth, or to 1e-4."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-4))


def equal(found, wanted):
    """Raise AssertionError that names what differs."""
    differ = [name for name in {**found, **wanted} if not same(found.get(name), wanted.get(name))]
    assert not differ, f"other than undisturbed: {differ}"


def there(case, out, former):
    """What a reader finds after a kill."""
    if not out.exists() or not any(out.iterdir()):
        return "nothing"
    try:
        if case.read:
            case.read(str(out))
        found = contents(out)
    except (RequestError, WorkError) as error:
        assert "\n" not in str(error) and len(str(error)) < 1000, error
        return "refused"
    if same(found, case.wanted):
        return "whole"
    if former is not None and same(found, former):
        return "former"
    equal(found, case.wanted if case.read else {name: case.wanted.get(name) for name in found})
    return "some files"


def prepare(case, home):
    """Make {out} what it is before the command; gives its contents."""
    shutil.rmtree(home / "now", ignore_errors=True)
    (home / "now").mkdir()
    if case.start:
        shutil.copytree(home / case.start, home / "now" / case.place)
        return contents(home / case.start)
    return None


def ended_well(case, run, *, timed=True):
    """Check the whole result; the first one is the reference."""
    assert run.code == (143 if case.name == "serve" else 0), f"status {run.code}: {run.printed('.err')[-1000:]}"
    if case.read:
        case.read(str(run.out))
    found = run.answers[0] if case.name == "serve" else contents(run.out)
    case.wanted = case.wanted or found
    equal(found, case.wanted)
    if timed:  # under the machine's present load
        written = [run.answered, *(file.stat().st_mtime for file in run.out.rglob("*") if file.is_file())]
        case.writes = min([each for each in written if each > run.clock], default=run.clock) - run.clock
        case.seconds = run.seconds


def play(case, home, chance, log):
    """A round; gives the signal and what was there, or why there was none."""
    former = prepare(case, home)
    number, at = chance.choice((signal.SIGKILL, signal.SIGTERM)), chance.uniform(0, 1)
    begin = chance.choice((0, case.writes))
    first = Run(case, home, Path(f"{log}-1"), begin + at * (case.seconds - begin), number)
    assert first.code in ((0, -number, 128 + number) if first.killed else (0,)), (
        f"{first.code}: {first.printed('.err')}"
    )
    for answer in first.answers:
        equal(answer, case.wanted)
    found = ("answered" if first.answers else "nothing") if case.name == "serve" else there(case, first.out, former)
    if not first.killed:
        ended_well(case, first)
    again = Run(case, home, Path(f"{log}-2"))
    ended_well(case, again, timed=found == "nothing")
    left = [*first.left, *again.left, *(file.name for file in first.out.rglob(".*") if HALF.search(file.name))]
    if left:
        print(f"left: {', '.join(left)}", file=sys.stderr)
    return f"{signal.Signals(number).name} {found}" if first.killed else "ended before"


def write_files(home):
    """What the commands read."""
    rows, model = storing.texts(400), storing.model_folder(home, output_dim=16)
    storing.stored(home / "a", model, rows, output=str(home / "tokens"))
    storing.stored(home / "b", model, storing.texts(150, first=1000), output=str(home / "later"))
    under = {"conditions": ("color", "animal"), "any_condition": False, "token_bytes": None}
    storing.stored(home / "c", model, rows, output=str(home / "out"), **under)
    storing.indexed(home / "i.lance", str(home / "tokens"), str(home / "out"))
    for seed, name in enumerate(("train", "validation")):
        to_csv(rated_rows(200, seed), home / f"{name}.csv")
    (home / "grid.json").write_text(json.dumps({"learning_rate": [0.01, 0.001]}))


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=10, help="begin no further round after so long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[case.name for case in CASES], help="names of commands")
    asked = parser.parse_args()
    sys.modules["__main__"].__spec__ = None  # else multiprocessing imports this file a second time, by its name
    home = Path(tempfile.mkdtemp(prefix="k"))  # short: of sockets
    os.environ |= {"RAY_TMPDIR": str(home), "PYTHONPATH": ":".join([str(ROOT), *sys.path])}
    FORKS.set_forkserver_preload(["benchmarks.faults.kills"])  # what this file imports
    write_files(home)
    chosen, found, wrong = [case for case in CASES if case.name in asked.only], defaultdict(Counter), []
    for case in chosen:
        for time_of in range(1 if case.program else 2):  # the second is that of a machine that is warm
            prepare(case, home)
            ended_well(case, Run(case, home, home / f"{case.place}-{time_of}"))
        print(f"{case.name}: {case.seconds:.1f} s undisturbed", file=sys.stderr, flush=True)
    turns = cycle([case for case in chosen if case.seconds < 15] * 3 + [case for case in chosen if case.seconds >= 15])
    end = time.monotonic() + 60 * asked.minutes
    for number, case in zip(count(), turns, strict=False):
        if time.monotonic() > end:
            break
        try:
            outcome = play(case, home, random.Random(f"{asked.seed}-{number}"), home / str(number))
        except Exception as error:
            traceback.print_exc()
            outcome = "WRONG"
            wrong.append([number, case.name, str(error)[:300]])
            shutil.copytree(home / "now", home / f"wrong-{number}")
        found[case.name][outcome] += 1
        print(f"round {number} of seed {asked.seed}: {case.name}: {outcome}", file=sys.stderr, flush=True)
    finish(seed=asked.seed, rounds=sum(map(Counter.total, found.values())), found=found, wrong=wrong)
    if not wrong:
        shutil.rmtree(home, ignore_errors=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
