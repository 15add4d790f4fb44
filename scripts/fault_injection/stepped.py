"""A process that gets a signal at one of its steps. See programs/steps.c."""
import os
import threading


class StepReport:
    """The report of programs/steps.c: the process id, whether the step was reached, and how often the steps were passed."""

    def __init__(self, build, number, name, count):
        self.pid, self.exit_status, self.passed = None, None, {}
        self.reached, self.has_pid = threading.Event(), threading.Event()
        self.read_end, self.write_end = os.pipe()
        self.wrap = [str(build.directory / "steps"), str(self.write_end), str(int(number)), name, str(count)]

    def start(self):
        """The process was started and has inherited the descriptor."""
        os.close(self.write_end)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        with os.fdopen(self.read_end) as lines:
            for line in lines:
                what, _, rest = line.rstrip("\n").partition(" ")
                if what == "pid":
                    self.pid = int(rest)
                    self.has_pid.set()
                elif what == "at":
                    self.reached.set()
                elif what == "passed":
                    count, _, name = rest.partition(" ")
                    self.passed[name] = int(count)
                elif what == "exit":
                    self.exit_status = int(rest)
        # Threads that wait for a process that could not be started.
        self.has_pid.set()
