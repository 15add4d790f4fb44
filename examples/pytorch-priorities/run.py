"""Three PyTorch programs on one GPU: as the GPU schedules them, and with three priorities."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from surroundings import Surroundings, options, percentile  # noqa: E402

# Name, priority, batch, pause in ms: somebody waits for the first, the second may take a moment, the third never stops.
PROGRAMS = [("chat", "high", 256, 10), ("search", "normal", 512, 20), ("archive", "low", 4096, 0)]


def measure(around, seconds, with_priorities):
    """Runs all three at once; answers how long each of their runs took."""
    worker = os.path.join(HERE, "worker.py")
    children = [around.program(worker, str(batch), str(pause), priority=priority if with_priorities else None)
                for _, priority, batch, pause in PROGRAMS]
    for child in children:
        around.tell(child, seconds)
    times = [around.heard(child) for child in children]
    for child in children:
        child.stdin.close()
        child.wait()
    return times


def main():
    given = options(__doc__)
    with Surroundings(given.device) as around:
        native = measure(around, given.seconds, False)
        ours = measure(around, given.seconds, True)
    print(f"{'':17}  as the device does it        with priorities")
    print(f"{'program':8} {'priority':8}  {'p50':>7} {'p99':>8} {'runs/s':>8}   {'p50':>7} {'p99':>8} {'runs/s':>8}")
    for (name, priority, _, _), *both in zip(PROGRAMS, native, ours):
        cells = [f"{percentile(t, 50):5.1f}ms {percentile(t, 99):6.1f}ms {len(t) / given.seconds:8.1f}" for t in both]
        print(f"{name:8} {priority:8}  {'   '.join(cells)}")


if __name__ == "__main__":
    main()
