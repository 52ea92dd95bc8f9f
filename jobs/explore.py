"""A map of an index: python jobs/explore.py --index captions.lance --conditions "the animal" --output map.html

The same as `raycase explore`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["explore", *sys.argv[1:]])
