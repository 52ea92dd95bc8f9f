"""`python -m raycase` is the command `raycase`."""

from raycase.cli import console

if __name__ == "__main__":
    console()
