"""Nearest neighbours of all queries, exact: python jobs/join.py --queries q/ --vectors out/ --output neighbours/"""

from raycase.cli import main
from raycase.distributed.join import JoinJob, join

if __name__ == "__main__":
    main(JoinJob, join)
