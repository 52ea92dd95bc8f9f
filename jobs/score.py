"""Score pairs of sentences: python jobs/score.py --input pairs.parquet --model m --output scored/

The same as `raycase score`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["score", *sys.argv[1:]])
