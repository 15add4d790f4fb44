"""Runs the Python examples on the simulated device and checks their output."""

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
        """Checks that the README shows the same headings."""
        with open(os.path.join(HERE, example, "README.md")) as file:
            readme = file.read()
        for line in text.splitlines():
            if not re.search(r"\d", line):
                self.assertIn(line.rstrip(), readme)

    def test_high_priority_program_is_faster_with_priorities(self):
        text = printed("pytorch-priorities")
        self.assertTrue(text.startswith("device: the simulated device, with a stand-in for PyTorch"), text)
        chat, archive = numbers(text, "chat"), numbers(text, "archive")
        self.assertLess(chat[3], chat[0], f"the program of high priority is faster with priorities\n{text}")
        self.assertGreater(archive[5], 0, f"the program of low priority makes progress\n{text}")
        self.check_readme("pytorch-priorities", text)

    def test_high_priority_requests_are_faster_beside_another_program(self):
        text = printed("model-server")
        high, normal = numbers(text, "high"), numbers(text, "normal")
        self.assertLess(high[1], normal[1], f"beside another program, requests of high priority are faster\n{text}")
        self.assertIn("gets status 400: priority `urgent` is out of range", text)
        self.check_readme("model-server", text)

    def test_focused_program_runs_first(self):
        text = printed("window-focus")
        editor, player = numbers(text, "editor"), numbers(text, "player")
        self.assertGreater(editor[0], player[0], f"the editor has the focus\n{text}")
        self.assertGreater(player[1], editor[1], f"the player has the focus\n{text}")

    def test_monitor_without_a_service_says_what_to_start(self):
        code = "import monitor; monitor.set_focus(1, 0)"
        done = subprocess.run([sys.executable, "-c", code], cwd=os.path.join(HERE, "window-focus"), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn("start `xserver AWF 1`", done.stderr)


if __name__ == "__main__":
    unittest.main()
