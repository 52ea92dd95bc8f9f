"""Embed a corpus under conditions: python jobs/embed.py --input captions.parquet --conditions ... --output out/

The same as `raycase embed`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["embed", *sys.argv[1:]])
