"""What conditions cost: seconds to embed texts under 1 to 64 conditions, and what of it is whose.

    python -m benchmarks.speed.cost

Captions under the first of 64 conditions, by the default model in one process: the seconds of `encode_grid`, those of
the encoder in it, and of the head. Vectors of many rows are not kept: corpora are embedded unit by unit, and a unit of
4,096 rows costs what it costs in any corpus. Medians.
"""

import time

from benchmarks.turns import captions, finish, median, parser_of

COUNTS = (1, 2, 4, 8, 16, 32, 64)
WORDS = "color number place activity mood weather animal sport".split()  # noqa: SIM905
OF = "clothes people food children scene background men event".split()  # noqa: SIM905


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--model", default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 8000])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    import raycase

    model = raycase.load(*filter(None, [args.model]))
    conditions = [f"{word} of the {of}" for of in OF for word in WORDS]
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
