"""Find rows of an index that are alike: python jobs/dedup.py --index i.lance --threshold 0.95 --output groups.parquet

The same as `raycase dedup`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["dedup", *sys.argv[1:]])
