"""Search an index: python jobs/search.py --index captions.lance --query "Two girls play" --condition "color"

The same as `raycase search`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["search", *sys.argv[1:]])
