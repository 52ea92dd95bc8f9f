"""Search an index: python jobs/search.py --index captions.lance --query "Two girls play" --condition "color" -k 10"""

from raycase.cli import main
from raycase.search.queries import SearchJob, search

if __name__ == "__main__":
    main(SearchJob, search)
