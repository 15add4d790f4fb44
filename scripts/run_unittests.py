#!/usr/bin/env python3
"""Runs Python unit tests like `python -m unittest`, and records the skipped ones for the summary of scripts/test.

    python3 scripts/run_unittests.py [ARGUMENTS OF UNITTEST]
"""

import os
import sys
import unittest


class Result(unittest.TextTestResult):
    def addSkip(self, test, reason):  # noqa: N802 (unittest's name)
        super().addSkip(test, reason)
        path = os.environ.get("XSCHED_SKIPPED")
        if path:
            with open(path, "a", encoding="utf-8") as file:
                file.write(f"{test.id()}: {reason}\n")


class Runner(unittest.TextTestRunner):
    resultclass = Result


if __name__ == "__main__":
    # As with `python -m unittest`, modules are found in the current directory.
    sys.path[0] = os.getcwd()
    unittest.main(module=None, testRunner=Runner)
