"""Search or sweep hyperparameters: python jobs/tune.py -- case --train ... --validation ... --output runs/sweep

The same as `raycase tune`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["tune", *sys.argv[1:]])
