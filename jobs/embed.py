"""Embed a corpus under conditions: python jobs/embed.py --input captions.parquet --conditions ... --output out/

The same as `raycase embed`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["embed", *sys.argv[1:]])
