"""Group the rows of an index by a condition: python jobs/facets.py --index captions.lance --condition "type of sport"

The same as `raycase facets`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["facets", *sys.argv[1:]])
