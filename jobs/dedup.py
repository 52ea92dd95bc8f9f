"""Find rows of an index that are alike: python jobs/dedup.py --index i.lance --threshold 0.95 --output groups.parquet

The same as `raycase dedup`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["dedup", *sys.argv[1:]])
