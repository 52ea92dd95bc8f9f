"""Pool a corpus under new conditions: python jobs/materialize.py --words out/ --conditions "weather" --output weather/

The same as `raycase materialize`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["materialize", *sys.argv[1:]])
