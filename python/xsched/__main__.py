"""The commands `xsched`, `xserver` and `xcli` as pip installs them, and `python -m xsched`: runs the packaged program."""

import os
import sys


def main():
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "xsched")
    # The program behaves according to the name it is called by.
    called = os.path.basename(sys.argv[0])
    name = called if called in ("xserver", "xcli") else "xsched"
    try:
        os.execv(program, [name, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"xsched: cannot run {program}: {error.strerror}")


if __name__ == "__main__":
    main()
