"""Check an encoder: python jobs/check_model.py MODEL

The same as `raycase check-model`, for `ray job submit` of a checkout.
"""

import sys

from raycase.cli import main

if __name__ == "__main__":
    main(["check-model", *sys.argv[1:]])
