"""Search an index: python jobs/search.py --index captions.lance --query "Two girls play" --condition "color"

The same as `raycase search`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["search", *sys.argv[1:]])
