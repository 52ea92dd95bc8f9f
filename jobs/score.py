"""Score pairs of sentences: python jobs/score.py --input pairs.parquet --model m --output scored/

The same as `raycase score`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["score", *sys.argv[1:]])
