"""Show which words a condition looks at: python jobs/explain.py --text "A red dress" --condition "color"

The same as `raycase explain`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["explain", *sys.argv[1:]])
