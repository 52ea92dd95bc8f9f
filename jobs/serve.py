"""Answer requests over HTTP: python jobs/serve.py --index s3://bucket/captions.lance

The same as `raycase serve`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["serve", *sys.argv[1:]])
