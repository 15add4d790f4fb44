"""Two PyTorch programs with windows: the one whose window has the focus runs first. The focus is set by this script, as monitor.py does."""

import os
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from example_environment import ExampleEnvironment, options  # noqa: E402
from monitor import set_focus  # noqa: E402

PROGRAMS = ["editor", "player"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def main():
    arguments = options(__doc__)
    port = free_port()
    service = ("--policy", "focus", "--http", f"127.0.0.1:{port}")
    with ExampleEnvironment(arguments.device, service) as environment:
        worker = os.path.join(os.path.dirname(HERE), "pytorch-priorities", "worker.py")
        children = [environment.program(worker, "2048", "0", priority="normal") for _ in PROGRAMS]
        rates = []
        for focused in children:
            # `xsched run` has become the program, so that it has the same process number.
            set_focus(port, focused.pid)
            for child in children:
                environment.send(child, arguments.seconds)
            rates.append([len(environment.receive(child)) / arguments.seconds for child in children])
    print(f"{'runs/s':8}" + "".join(f"  focus on {name}" for name in PROGRAMS))
    for n, name in enumerate(PROGRAMS):
        print(f"{name:8}" + "".join(f"  {rate[n]:15.1f}" for rate in rates))


if __name__ == "__main__":
    main()
