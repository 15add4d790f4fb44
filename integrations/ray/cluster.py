"""A Ray cluster of two nodes on this machine, with its own service and simulated device."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
BIN = os.path.dirname(sys.executable)
XSCHED = os.path.join(BIN, "xsched")


def eventually(what, condition, timeout=60):
    """Waits until `condition` returns a true value, and returns it."""
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.02)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def descendants(pids):
    """These processes and all processes below them."""
    parents = {}
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                parents[int(entry)] = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
    found = set(pids)
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


class Cluster:
    """`node_a` and `node_b` are resources of the two nodes, to place workers."""

    def __init__(self):
        # Ray's sockets have paths of at most 107 bytes.
        self.directory = tempfile.mkdtemp(prefix="xr-", dir="/tmp")
        self.socket = os.path.join(self.directory, "socket")
        self.port = free_port()
        self.processes, self.seen = [], set()
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("XSCHED_", "XLOG_", "LD_PRELOAD", "RAY_"))}
        self.environment.update(
            XSCHED_SOCKET=self.socket,
            XSIM_DEVICE=os.path.join(self.directory, "device"),
            PYTHONPATH=HERE,
            RAY_USAGE_STATS_ENABLED="0",
            RAY_ENABLE_UV_RUN_RUNTIME_ENV="0",
            RAY_OVERRIDE_NODE_IP_ADDRESS="127.0.0.1",
            RAY_raylet_start_wait_time_s="120",
        )

    def start(self):
        self.processes.append(subprocess.Popen([XSCHED, "serve", "--quiet"], env=self.environment))
        eventually("the service replies", lambda: self.xsched("policy", "--json").returncode == 0)
        common = ["--num-cpus=2", "--num-gpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
        head = ["--head", "--node-ip-address=127.0.0.1", f"--port={self.port}", "--include-dashboard=false",
                f"--temp-dir={self.directory}/ray", '--resources={"node_a": 10}']
        self.start_node("head", [*head, *common])
        self.start_node("second", [f"--address=127.0.0.1:{self.port}", "--node-ip-address=127.0.0.1", '--resources={"node_b": 10}', *common])

    def start_node(self, name, options):
        log = open(os.path.join(self.directory, name + ".log"), "w+")
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options]
        node = subprocess.Popen(command, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
        self.processes.append(node)

        def started():
            log.seek(0)
            text = log.read()
            if node.poll() is not None:
                raise AssertionError(f"the node {name} exited: {text}")
            return "Ray runtime started" in text

        eventually(f"the node {name} starts", started, 120)
        log.close()

    def xsched(self, *arguments):
        return subprocess.run([XSCHED, *arguments], env=self.environment, text=True, capture_output=True, timeout=60)

    def file(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w") as file:
            file.write(text)
        return path

    def tasks(self, sample="50ms"):
        """The scheduled tasks by name, as `xsched ps --json` lists them."""
        done = self.xsched("ps", "--json", "--sample", sample)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return {task["name"]: task for task in json.loads(done.stdout)["tasks"]}

    def stop(self):
        """Ends the processes that this cluster started, by their ids, and no other Ray processes of this machine."""
        ours = descendants(process.pid for process in self.processes)
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in ours - {process.pid for process in self.processes}:
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    # The number may belong to another process by now.
                    if self.socket.encode() in file.read():
                        os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        shutil.rmtree(self.directory, ignore_errors=True)
