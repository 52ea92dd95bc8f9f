"""See whether an encoder is right: python jobs/check_model.py MODEL"""

from raycase.cli import main
from raycase.evaluation.check_model import CheckJob, check_model

if __name__ == "__main__":
    main(CheckJob, check_model)
