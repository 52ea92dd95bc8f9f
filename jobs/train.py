"""Train a model on rated pairs: python jobs/train.py case --train ... --validation ... --output runs/case

The same as `raycase train`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
