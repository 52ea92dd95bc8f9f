"""What conditions cost: seconds to embed texts under 1 to 64 conditions, and what of it is whose.

    python -m benchmarks.speed.cost [--jobs]

Captions under the first of 64 conditions, by the default model in one process: the seconds of `encode_grid`, those of
the encoder in it, and of the head. Vectors of many rows are not kept: corpora are embedded unit by unit, and a unit of
4,096 rows costs what it costs in any corpus. Medians.

--jobs: `raycase embed --no-ray` of 4,096 and of 12,288 rows. The difference is two units, what is left of the first is
the start; jobs of 1,000 to 1,000,000 rows follow from both.
"""

import tempfile
import time
from pathlib import Path

from benchmarks.turns import CAPTIONS, RAYCASE, ROOT, captions, finish, median, of_checkout, parser_of, run

COUNTS = (1, 2, 4, 8, 16, 32, 64)
UNIT, UNITS = 4096, 3
SIMULATED = (1_000, 10_000, 100_000, 1_000_000)
WORDS = "color number place activity mood weather animal sport".split()  # noqa: SIM905
OF = "clothes people food children scene background men event".split()  # noqa: SIM905


def job(rows, conditions):
    """Seconds of a job, from start to end."""
    with tempfile.TemporaryDirectory() as folder:
        where = "--input", CAPTIONS, "--limit", rows, "--output", Path(folder) / "out", "--no-ray"
        return run(*RAYCASE, "embed", *where, "--conditions", *conditions, env=of_checkout(ROOT)).seconds


def jobs(conditions, rounds):
    """What jobs under some conditions take, for each number of them."""
    found = {}
    for count in COUNTS:
        few, many = (median(job(rows, conditions[:count]) for _ in range(rounds)) for rows in (UNIT, UNITS * UNIT))
        unit = (many - few) / (UNITS - 1)
        simulated = {rows: few - unit + unit * rows / UNIT for rows in SIMULATED}
        found[count] = {"start": few - unit, "unit": unit} | simulated
        line = "".join(f"{seconds:>10,.1f}" for seconds in simulated.values())
        print(f"{count:>3} conditions: start {few - unit:.2f} s, a unit {unit:.2f} s; jobs{line}", flush=True)
    return found


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 8000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", action="store_true", help="time jobs instead")
    args = parser.parse_args()
    conditions = [f"{word} of the {of}" for of in OF for word in WORDS]
    if args.jobs:
        finish(jobs=jobs(conditions, args.rounds))
        return
    import raycase

    model = raycase.load(*filter(None, [args.model]))
    inner = model.encoder.model
    spent = [0.0]

    def timed(forward):
        def call(*given, **options):
            began = time.perf_counter()
            states = forward(*given, **options)
            spent[0] += time.perf_counter() - began
            return states

        return call

    inner.forward = timed(inner.forward)
    found = {}
    for rows in args.rows:
        texts = captions(rows)
        model.encode_grid(texts[:500], conditions)
        runs = {count: [] for count in COUNTS}
        for _ in range(args.rounds):
            for count in COUNTS:
                spent[0], began = 0.0, time.perf_counter()
                for start in range(0, rows, 4096):
                    model.encode_grid(texts[start : start + 4096], conditions[:count])
                runs[count].append((time.perf_counter() - began, spent[0]))
        for count, of in runs.items():
            seconds, encoder = median(each[0] for each in of), median(each[1] for each in of)
            over = seconds / median(each[0] for each in runs[1])
            found[f"{rows} x {count}"] = {"seconds": seconds, "encoder": encoder, "over one": over}
            print(
                f"{rows:>7,} rows {count:>3} conditions{seconds:>8.2f} s, encoder{encoder:>7.2f} s, {over:.2f} of one"
            )
    finish(cost=found)


if __name__ == "__main__":
    main()
