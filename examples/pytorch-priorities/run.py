"""Three PyTorch programs on one GPU: without XSched, and with three priorities."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from example_environment import ExampleEnvironment, options, percentile  # noqa: E402

# Name, priority, batch, pause in ms: the first is interactive, the second tolerates latency, the third is a batch job.
PROGRAMS = [("chat", "high", 256, 10), ("search", "normal", 512, 20), ("archive", "low", 4096, 0)]


def measure(environment, seconds, with_priorities):
    """Runs all three at once; returns the durations of their runs."""
    worker = os.path.join(HERE, "worker.py")
    children = [environment.program(worker, str(batch), str(pause), priority=priority if with_priorities else None)
                for _, priority, batch, pause in PROGRAMS]
    for child in children:
        environment.send(child, seconds)
    times = [environment.receive(child) for child in children]
    for child in children:
        child.stdin.close()
        child.wait()
    return times


def main():
    arguments = options(__doc__)
    with ExampleEnvironment(arguments.device) as environment:
        native = measure(environment, arguments.seconds, False)
        scheduled = measure(environment, arguments.seconds, True)
    print(f"{'':17}  without XSched               with priorities")
    print(f"{'program':8} {'priority':8}  {'p50':>7} {'p99':>8} {'runs/s':>8}   {'p50':>7} {'p99':>8} {'runs/s':>8}")
    for (name, priority, _, _), *both in zip(PROGRAMS, native, scheduled):
        cells = [f"{percentile(t, 50):5.1f}ms {percentile(t, 99):6.1f}ms {len(t) / arguments.seconds:8.1f}" for t in both]
        print(f"{name:8} {priority:8}  {'   '.join(cells)}")


if __name__ == "__main__":
    main()
