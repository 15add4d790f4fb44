"""A model server with a priority per request, beside a program that keeps the same GPU busy."""

import http.client
import json
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from example_environment import ExampleEnvironment, options, percentile  # noqa: E402

PRIORITIES = ("high", "normal")


def send_request(port, priority):
    """Sends one request; returns the status and the body of the response."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/run", json.dumps({"priority": priority}))
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


def requests(port, seconds):
    """Sends requests of both priorities alternately; returns their durations."""
    times, end = {priority: [] for priority in PRIORITIES}, time.monotonic() + seconds
    while time.monotonic() < end:
        for priority in PRIORITIES:
            status, body = send_request(port, priority)
            if status != 200:
                sys.exit(f"the server rejected a request: {body['error']}")
            times[priority].append(body["ms"])
            time.sleep(0.01)
    return times


def main():
    arguments = options(__doc__)
    with ExampleEnvironment(arguments.device) as environment:
        command = [environment.xsched, "run", "--name", "server", "--", sys.executable, os.path.join(HERE, "server.py")]
        server = environment.start(command, stdout=subprocess.PIPE)
        port = environment.receive(server)
        alone = requests(port, arguments.seconds / 2)
        background = environment.program(os.path.join(HERE, "../pytorch-priorities/worker.py"), "4096", "0", priority="normal")
        environment.send(background, arguments.seconds + 60)
        beside = requests(port, arguments.seconds)
        rejected = send_request(port, "urgent")
    print(f"{'priority of the request':24} {'alone, p50':>12} {'beside another program, p50':>28}")
    for priority in PRIORITIES:
        print(f"{priority:24} {percentile(alone[priority], 50):10.1f}ms {percentile(beside[priority], 50):26.1f}ms")
    print(f"\na request of priority `urgent` gets status {rejected[0]}: {rejected[1]['error']}")


if __name__ == "__main__":
    main()
