"""Evaluate models: python jobs/evaluate.py --model runs/case --data ... --output runs/case/report

The same as `raycase evaluate`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["evaluate", *sys.argv[1:]])
