"""Score answers again: python jobs/rerank.py --answers a.parquet --queries q.csv --model m --output again/

The same as `raycase rerank`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["rerank", *sys.argv[1:]])
