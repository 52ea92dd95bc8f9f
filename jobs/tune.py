"""Search or sweep hyperparameters: python jobs/tune.py -- case --train ... --validation ... --output runs/sweep

The same as `raycase tune`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import console

if __name__ == "__main__":
    console(["tune", *sys.argv[1:]])
