"""Show which words a condition looks at: python jobs/explain.py --text "A red dress" --condition "color"

The same as `raycase explain`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["explain", *sys.argv[1:]])
