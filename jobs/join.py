"""Exact nearest neighbours of all queries: python jobs/join.py --query-vectors q/ --vectors out/ --output neighbours/

The same as `raycase join`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["join", *sys.argv[1:]])
