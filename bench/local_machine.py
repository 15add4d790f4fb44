"""What the measurements without a GPU share: the name of the machine, and a service that runs while they do."""

import contextlib
import os
import subprocess
import sys
import time

SERVICE_START_TIMEOUT_S = 30


def machine():
    with open("/proc/cpuinfo") as file:
        model = next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "a processor")
    return f"{len(os.sched_getaffinity(0))} cores of {model}, {os.uname().sysname} {os.uname().release.split('-')[0]}"


@contextlib.contextmanager
def service(program, environment, socket):
    """Runs the service `program`, from the time when its socket exists until the block ends."""
    with subprocess.Popen([program, "serve", "--quiet"], env=environment) as process:
        try:
            until = time.monotonic() + SERVICE_START_TIMEOUT_S
            while not socket.exists():
                if time.monotonic() > until:
                    sys.exit(f"the service did not start within {SERVICE_START_TIMEOUT_S} s")
                time.sleep(0.05)
            yield
        finally:
            process.terminate()
