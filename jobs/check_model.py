"""See whether an encoder is right: python jobs/check_model.py MODEL"""

from raycase.check import CheckJob, check_model
from raycase.cli import main

if __name__ == "__main__":
    main(CheckJob, check_model)
