"""Answer requests over HTTP: python jobs/serve.py --index s3://bucket/captions.lance

The same as `raycase serve`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["serve", *sys.argv[1:]])
