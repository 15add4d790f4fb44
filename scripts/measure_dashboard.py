#!/usr/bin/env python3
"""Measures what an open page of `xsched dashboard` costs the service, in percent of a core.

    cargo build --release -p xsched -p xsched-lib -p xsim
    XSCHED_BUILD=target/release python3 scripts/measure_dashboard.py [PERIOD_MS [COMMANDS [LENGTH_US]]]

A training runs beside a service with a request of COMMANDS commands every PERIOD_MS, on a simulated device. The three cases take turns:
no page, a page without events, a page with events.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from dashboard_environment import Environment  # noqa: E402

ROUNDS = 3
# The seconds of one case. Longer than the dashboard takes to close its connections after the last request of a page.
SECONDS = 10
CLOSE_S = 6


def processor_ns(pid: int) -> int:
    """The processor time of a process."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def get_state(url: str, after: int, events: bool) -> dict:
    address, token = url.split("/#token=")
    request = urllib.request.Request(f"{address}/api/state?after={after}&events={int(events)}")
    request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)


def main() -> None:
    period_ms, commands, length_us = (list(map(int, sys.argv[1:])) + [20, 4, 1000][len(sys.argv) - 1 :])[:3]
    environment = Environment()
    try:
        environment.start_service()
        assert environment.service
        run = environment.command("run")
        environment.start(*run, "--priority", "low", "--", environment.directory / "work", 10**9, 4, 2000)
        program = environment.directory / "requests"
        environment.start(*run, "--priority", "high", "--", program, 10**9, commands, length_us, period_ms)
        environment.wait_for_tasks(2)
        dashboard, url = environment.dashboard()
        for _ in range(ROUNDS):
            for case, events in (("no page", None), ("page without events", False), ("page with events", True)):
                time.sleep(CLOSE_S)
                pids = (environment.service.pid, dashboard.pid)
                before, began, after = [processor_ns(pid) for pid in pids], time.monotonic(), 0
                for _ in range(SECONDS):
                    if events is not None:
                        after = get_state(url, after, events)["timeline"]["sequence"]
                    time.sleep(1)
                elapsed_ns = (time.monotonic() - began) * 1e9
                used = [100 * (processor_ns(pid) - old) / elapsed_ns for pid, old in zip(pids, before)]
                print(f"{case:20} service {used[0]:6.3f} %   dashboard {used[1]:6.3f} %", flush=True)
    finally:
        environment.end()


if __name__ == "__main__":
    main()
