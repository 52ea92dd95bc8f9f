"""Check an output against its manifest: python jobs/verify.py OUTPUT

The same as `raycase verify`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["verify", *sys.argv[1:]])
