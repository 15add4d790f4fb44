"""A line on the terminal that shows what runs and how much of the time is used."""

import sys
import threading
import time

BAR_WIDTH = 20
TERMINAL_PERIOD_S = 0.5
# Without a terminal, one line in this time, so that a log stays short.
LOG_PERIOD_S = 30


def clock(seconds):
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Prints to stderr, from a thread of its own. Errors are ignored: the terminal may have been closed."""

    def __init__(self, budget, stages, stream=None):
        self.budget, self.stages, self.stream = budget, stages, stream or sys.stderr
        self.number, self.text = 0, "starting"
        self.is_terminal = self.stream.isatty()
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self.last_log = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def begin(self, number, text):
        """A stage begins."""
        self.number, self.text = number, text
        self.show()

    def message(self, text):
        """Prints a line above the progress."""
        with self.lock:
            self.write(("\r\x1b[K" if self.is_terminal else "") + text + "\n", sys.stdout if not self.is_terminal else self.stream)
        self.show()

    def line(self):
        """The line without control characters."""
        done = min(BAR_WIDTH, BAR_WIDTH * self.number // max(1, self.stages))
        used, limit = clock(self.budget.used()), clock(self.budget.limit_s)
        return f"[{'#' * done}{'-' * (BAR_WIDTH - done)}] {self.number}/{self.stages} {self.text}  ({used} of at most {limit})"

    def show(self):
        with self.lock:
            if self.is_terminal and not self.ended.is_set():
                self.write("\r\x1b[K" + self.line()[:118], self.stream)

    def run(self):
        while not self.ended.wait(TERMINAL_PERIOD_S):
            if self.is_terminal:
                self.show()
            elif time.monotonic() - self.last_log > LOG_PERIOD_S:
                self.last_log = time.monotonic()
                with self.lock:
                    self.write(self.line() + "\n", self.stream)

    @staticmethod
    def write(text, stream):
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError):
            pass

    def end(self):
        """Removes the line."""
        self.ended.set()
        self.thread.join(timeout=2)
        if self.is_terminal:
            self.write("\r\x1b[K", self.stream)
