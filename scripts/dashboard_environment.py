"""A service with programs on a simulated device and a dashboard, for tests and measurements."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
# The directory of the programs and libraries.
BUILD = Path(os.environ.get("XSCHED_BUILD", ROOT / "target" / "debug")).resolve()


class Environment:
    """A service, a simulated device, programs and dashboards, all ended at the end."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="xsched-dashboard-"))
        # Another user connects to the service.
        self.directory.chmod(0o755)
        for name in ("work", "requests"):
            self.build(name)
        self.processes: list[subprocess.Popen[str]] = []
        self.service: subprocess.Popen[str] | None = None

    def build(self, name: str) -> None:
        source = ROOT / "crates/xsched/tests/programs" / f"{name}.c"
        command = ["cc", "-O1", "-o", self.directory / name, source, "-I", ROOT / "standins/xsim", "-L", BUILD, "-lxsim"]
        subprocess.run([*command, f"-Wl,-rpath,{BUILD}", "-ldl"], check=True)

    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("XSCHED_")}
        mine = {"XSCHED_SOCKET": str(self.directory / "socket"), "XSIM_DEVICE": str(self.directory / "device")}
        return {**kept, **mine}

    def start(self, *command: object, grant: str | None = None, **options: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(word) for word in command],
            env={**self.variables(), **({"XSCHED_GRANT": grant} if grant else {})},
            stdin=subprocess.PIPE,
            stdout=options.pop("stdout", subprocess.DEVNULL),
            text=True,
            **options,  # type: ignore[call-overload]
        )
        self.processes.append(process)
        return process

    def start_service(self) -> None:
        self.service = self.start(BUILD / "xsched", "serve", "--quiet", "--policy", "priority")
        deadline = time.monotonic() + 60
        while subprocess.run(self.command("ps"), env=self.variables(), capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, "the service does not start"
            time.sleep(0.05)

    def stop_service(self) -> None:
        assert self.service
        self.service.kill()
        self.service.wait()

    def start_programs(self) -> None:
        """A training that never pauses and a service with a request every 20 ms."""
        self.start(*self.command("run"), "--name", "train", "--priority", "low", "--share", "60", "--", self.directory / "work", 10**9, 4, 2000)
        self.start(
            *self.command("run"), "--name", "serve", "--priority", "high", "--", self.directory / "requests", 10**9, 4, 1000, 20
        )

    @staticmethod
    def command(*words: object) -> list[str]:
        return [str(BUILD / "xsched"), *map(str, words)]

    def status(self) -> dict:
        result = subprocess.run(self.command("ps", "--json"), env=self.variables(), check=True, capture_output=True)
        return json.loads(result.stdout)

    def wait_for_tasks(self, count: int) -> dict:
        deadline = time.monotonic() + 60
        while len((status := self.status())["tasks"]) < count:
            assert time.monotonic() < deadline, f"{count} tasks expected: {status}"
            time.sleep(0.05)
        return status

    def dashboard(self, **options: object) -> tuple[subprocess.Popen[str], str]:
        process = self.start(*self.command("dashboard", "--no-open"), stdout=subprocess.PIPE, **options)
        assert process.stdout
        return process, process.stdout.readline().strip()

    def end(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe:
                    pipe.close()
        shutil.rmtree(self.directory)


def task_of(status: dict, name: str) -> dict:
    return next(task for task in status["tasks"] if task["name"] == name)
