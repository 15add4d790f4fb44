"""Runs the examples in Python on the simulated device, and looks at what they print."""

import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))


def printed(example):
    command = [sys.executable, os.path.join(HERE, example, "run.py"), "--device", "simulated", "--seconds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise AssertionError(f"{example}: status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def numbers(text, word):
    """The numbers in the line that begins with a word."""
    (line,) = [line for line in text.splitlines() if line.startswith(word)]
    return [float(number) for number in re.findall(r"\d+\.\d+", line)]


class Examples(unittest.TestCase):
    def check_readme(self, example, text):
        """The README shows the same headings."""
        with open(os.path.join(HERE, example, "README.md")) as file:
            readme = file.read()
        for line in text.splitlines():
            if not re.search(r"\d", line):
                self.assertIn(line.rstrip(), readme)

    def test_three_priorities(self):
        text = printed("pytorch-priorities")
        self.assertTrue(text.startswith("device: the simulated device, with a stand-in for PyTorch"), text)
        chat, archive = numbers(text, "chat"), numbers(text, "archive")
        self.assertLess(chat[3], chat[0], f"the important one answers sooner with priorities\n{text}")
        self.assertGreater(archive[5], 0, f"and the unimportant one goes on\n{text}")
        self.check_readme("pytorch-priorities", text)

    def test_a_priority_per_request(self):
        text = printed("model-server")
        high, normal = numbers(text, "high"), numbers(text, "normal")
        self.assertLess(high[1], normal[1], f"beside another program, important requests are answered sooner\n{text}")
        self.assertIn("is answered with 400: priority `urgent` is out of range", text)
        self.check_readme("model-server", text)


if __name__ == "__main__":
    unittest.main()
