"""Label the rows of an index: python jobs/classify.py --index i.lance --condition place --labels beach bar --output o

The same as `raycase classify`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["classify", *sys.argv[1:]])
