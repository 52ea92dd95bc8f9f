"""`python -m raycase` is the command `raycase`."""

from raycase.cli import main

if __name__ == "__main__":
    main()
