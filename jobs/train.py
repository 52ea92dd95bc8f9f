"""Train a model on rated pairs: python jobs/train.py case --train ... --validation ... --output runs/case

The same as `raycase train`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["train", *sys.argv[1:]])
