"""Tells the service which process has the input focus, for the policy `focus` (AWF). Needs X11 and the program `xprop`.

    python monitor.py [--port 50000]

The service is `xserver AWF 50000`, or `xsched serve --policy focus --http 127.0.0.1:50000`.
"""

import argparse
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request

WINDOW_ACTIVE = 7  # the hint type of the HTTP interface


def set_focus(port, pid):
    """Reports the process whose window is active; 0 if none is."""
    body = json.dumps({"hint_type": WINDOW_ACTIVE, "pid": pid}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/hint", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        reason = json.load(error).get("error", error.reason)
        raise SystemExit(f"monitor.py: the service rejects the focus of process {pid}: {reason}") from None
    except OSError as error:
        raise SystemExit(f"monitor.py: no service at port {port} ({error}): start `xserver AWF {port}`") from None


def active_windows():
    """The id of the active window, again whenever it changes."""
    command = ["xprop", "-root", "-spy", "_NET_ACTIVE_WINDOW"]
    try:
        watcher = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    except FileNotFoundError:
        raise SystemExit("monitor.py: xprop is missing: install it (Debian: x11-utils)") from None
    with watcher:
        for line in watcher.stdout:
            found = re.search(r"0x[0-9a-f]+", line)
            if found:
                yield found.group()


def process_of(window):
    """The process of a window; 0 for windows that do not say, and for no window."""
    shown = subprocess.run(["xprop", "-id", window, "_NET_WM_PID"], capture_output=True, text=True).stdout
    found = re.search(r"= (\d+)", shown)
    return int(found.group(1)) if found else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=50000)
    port = parser.parse_args().port
    for window in active_windows():
        pid = process_of(window)
        set_focus(port, pid)
        print(f"process {pid} has the focus", flush=True)
    sys.exit("monitor.py: xprop has exited: is there an X server, and is DISPLAY set?")


if __name__ == "__main__":
    main()
