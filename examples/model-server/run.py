"""A model server with a priority per request, beside a program that takes all it can get of the same GPU."""

import http.client
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from surroundings import Surroundings, options, percentile  # noqa: E402

PRIORITIES = ("high", "normal")


def ask(port, priority):
    """One request; answers its status and what the server said."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/run", json.dumps({"priority": priority}))
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


def requests(port, seconds):
    """Requests of both priorities by turns."""
    times, end = {priority: [] for priority in PRIORITIES}, time.monotonic() + seconds
    while time.monotonic() < end:
        for priority in PRIORITIES:
            status, said = ask(port, priority)
            if status != 200:
                sys.exit(f"the server refused: {said['error']}")
            times[priority].append(said["ms"])
            time.sleep(0.01)
    return times


def main():
    given = options(__doc__)
    with Surroundings(given.device) as around:
        command = [around.xsched, "run", "--name", "server", "--", sys.executable, os.path.join(HERE, "server.py")]
        server = around.start(command, stdout=subprocess.PIPE)
        port = around.heard(server)
        alone = requests(port, given.seconds / 2)
        background = around.program(os.path.join(HERE, "../pytorch-priorities/worker.py"), "4096", "0", priority="normal")
        around.tell(background, given.seconds + 60)
        beside = requests(port, given.seconds)
        refused = ask(port, "urgent")
    print(f"{'priority of the request':24} {'alone, p50':>12} {'beside another program, p50':>28}")
    for priority in PRIORITIES:
        print(f"{priority:24} {percentile(alone[priority], 50):10.1f}ms {percentile(beside[priority], 50):26.1f}ms")
    print(f"\na request of priority `urgent` is answered with {refused[0]}: {refused[1]['error']}")


if __name__ == "__main__":
    main()
