"""Group the rows of an index by a condition: python jobs/facets.py --index captions.lance --condition "type of sport"

The same as `raycase facets`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["facets", *sys.argv[1:]])
