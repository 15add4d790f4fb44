"""A headless Chromium, driven over a pipe by its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

# How long the browser may take for one command, and a page until a condition is true.
TIMEOUT_S = 60.0


def find_chromium() -> str | None:
    """The path of the browser, if it is installed."""
    names = ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)


class Page:
    """A browser with one page. Use it in a `with` statement."""

    def __init__(self, chromium: str) -> None:
        self.profile = tempfile.TemporaryDirectory(prefix="xsched-chromium-", ignore_cleanup_errors=True)
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        command = [
            chromium,
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--hide-scrollbars",
            f"--user-data-dir={self.profile.name}",
        ]
        if os.geteuid() == 0:
            # Chromium's sandbox does not run as root.
            command.append("--no-sandbox")

        # The browser reads commands from descriptor 3 and writes replies to 4. High numbers first: neither replaces the other.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser, from_browser)]
        place_pipes = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
        self.process = subprocess.Popen(
            ["bash", "-c", place_pipes, "bash", *command, "about:blank"],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer = b""
        self.number = 0
        self.errors: list[str] = []
        self.session: str | None = None
        targets = self.command("Target.getTargets")["targetInfos"]
        target = next(target["targetId"] for target in targets if target["type"] == "page")
        self.session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.command(f"{domain}.enable")

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        # A killed browser would leave processes that still write to the profile.
        try:
            self.session = None
            self.command("Browser.close")
            self.process.wait(TIMEOUT_S)
        except (RuntimeError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.write_fd)
        os.close(self.read_fd)
        self.profile.cleanup()

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            reply = self._receive(deadline, method)
            if reply.get("id") == self.number:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']['message']}")
                return reply["result"]
            self._note(reply)

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_fd], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self.read_fd, 1 << 16) if ready else b""
            if not piece:
                raise RuntimeError(f"the browser does not reply to {method} (exit status {self.process.poll()})")
            self.buffer += piece
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        """Keeps errors of the page."""
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded" and parameters["entry"]["source"] != "network":
            # Requests may fail where a test ends the server; violations of the page's policy may not happen.
            if parameters["entry"]["level"] == "error":
                self.errors.append(parameters["entry"]["text"])

    def open(self, url: str) -> None:
        """Loads a page and its scripts."""
        self.command("Page.navigate", url=url)
        self.wait("window.location.protocol === 'http:' && document.readyState === 'complete'")

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression, which may be a promise."""
        result = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(f"{script}: {details.get('exception', {}).get('description', details['text'])}")
        return result["result"].get("value")

    def wait(self, script: str) -> Any:
        """Waits until a JavaScript expression is true. Returns its value."""
        deadline = time.monotonic() + TIMEOUT_S
        while not (value := self.evaluate(script)):
            if time.monotonic() > deadline:
                text = self.evaluate("document.body.innerText")
                raise RuntimeError(f"not within {TIMEOUT_S} s: {script}; the page shows:\n{text}")
            time.sleep(0.05)
        return value

    def set_screen(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Sets the size of the screen and the user's preferred colors."""
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Writes a picture of the page."""
        size = self.command("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        options: dict[str, Any] = {"captureBeyondViewport": True, "clip": clip} if whole else {}
        data = self.command("Page.captureScreenshot", format="png", **options)["data"]
        path.write_bytes(base64.b64decode(data))

    def key(self, key: str) -> None:
        """Presses a key."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowDown": 40}
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.command("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=codes[key], **text)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Moves the mouse from one place to another with its left button pressed."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=int(kind != "mouseReleased"), clickCount=1)
