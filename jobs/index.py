"""Index written vectors: python jobs/index.py --embeddings out/ --output captions.lance

The same as `raycase index`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["index", *sys.argv[1:]])
