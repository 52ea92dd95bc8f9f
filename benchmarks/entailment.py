"""INLI: entailment and implicitness of systems that were trained with several seeds, a table.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/entailment.py --trained runs/inli --seeds 3 simcse dualcse

Rows and folders are those of systems.py. Means over seeds and their standard deviation; the difference from the first
row by the paired bootstrap over premises, of each premise's mean over seeds.
"""

import argparse
from pathlib import Path

import numpy as np
from systems import SETS
from turns import DATA, finish

import raycase
from raycase.data.inferences import HYPOTHESES, read_inferences
from raycase.evaluation.entailment_metrics import correct_pairs
from raycase.evaluation.ranked import mean_difference


def right(folder, inferences):
    """What is told right x 100: entailment, and which is more implicit (None without two vectors); (N, H) each."""
    model = raycase.load(str(folder))
    names = model.config.known_conditions or (None,)
    explicit_TD, *implicit = [model.embed(inferences.distinct, name) for name in names]
    entailed, implicit = correct_pairs(explicit_TD, implicit[0] if implicit else None, inferences.text_index)
    return 100.0 * entailed, None if implicit is None else 100.0 * implicit


def spread(values_S, digits=1):
    """Mean ± standard deviation over seeds."""
    return f"{values_S.mean():.{digits}f}" + (f" ± {values_S.std(ddof=1):.{digits}f}" if len(values_S) > 1 else "")


def difference(values_N, others_N):
    found = mean_difference(values_N, others_N, resamples=10_000, seed=0)
    return f"{found['difference']:+.1f} [{found['low']:+.1f}, {found['high']:+.1f}], p = {found['p']:.3f}"


def main(rows, seeds, trained):
    inferences = read_inferences(str(DATA / "inli" / "validation.csv"), "--data")
    groups = {"all": slice(None)} | {kind: slice(i, i + 1) for i, kind in enumerate(HYPOTHESES.values())}
    print(f"| | seeds | {' | '.join(groups)} | EIS |\n|{'---|' * (len(groups) + 3)}")
    told, lines = {}, {}
    for row in rows:
        found = [right(trained / f"{row.replace(' ', '-')}-{seed}", inferences) for seed in range(seeds)]
        told[row] = np.stack([entailed for entailed, _ in found])  # (S, N, H)
        cells = [spread(told[row][:, :, chosen].mean((1, 2))) for chosen in groups.values()]
        cells.append("" if found[0][1] is None else spread(np.array([implicit.mean() for _, implicit in found]), 2))
        lines[row] = {"seeds": seeds, "all": told[row].mean((1, 2)).tolist()}
        print(f"| {row} | {seeds} | {' | '.join(cells)} |", flush=True)
    base = told[rows[0]]
    for row in rows[1:]:
        cells = [
            difference(told[row][:, :, chosen].mean((0, 2)), base[:, :, chosen].mean((0, 2)))
            for chosen in groups.values()
        ]
        print(f"| {row} minus {rows[0]} | | {' | '.join(cells)} | |", flush=True)
    finish({"ratios": {row: told[row].mean() / base.mean() for row in rows[1:]}, "rows": lines})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", choices=SETS["inli"], metavar="ROW", help=", ".join(SETS["inli"]))
    parser.add_argument("--trained", type=Path, required=True, help="folder of what systems.py trained")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    main(arguments.rows, arguments.seeds, arguments.trained)
