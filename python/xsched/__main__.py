"""`xsched` as pip installs it, and `python -m xsched`: becomes the program that came with the package."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "xsched")
    try:
        os.execv(program, ["xsched", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"xsched: cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main()
