"""What the tests of the plugin share: a cluster per class, jobs, and comparisons of times."""

import json
import os
import subprocess
import sys
import time
import unittest

from slurm_cluster import Cluster, wait_until

RULES = "max_priority=100 partition:debug=max_priority:50,priority:5 shard_share=25 shard_memory=10G"
PAUSES_S = [0, 0, 1, 5]
# The part of each core that a busy process must get for the slowest requests to say something about the scheduler.
MIN_FREE_CPU = 0.9
BURN = """
import time
started = time.monotonic()
while time.monotonic() < started + 0.5:
    pass
print(time.process_time() / (time.monotonic() - started))
"""


def percentile(latencies, percent):
    ordered = sorted(latencies)
    return ordered[-(-percent * len(ordered) // 100) - 1]


def free_cpu():
    """The part of the CPU time that one busy process per core gets."""
    burning = [subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count())]
    parts = [float(child.communicate()[0]) for child in burning]
    return sum(parts) / len(parts)


def retry_comparison(measure, compare):
    """A comparison of times may be disturbed by other programs on the machine: it must succeed once. Returns all failures."""
    failures = []
    for pause in PAUSES_S:
        time.sleep(pause)
        failure = compare(*measure())
        if failure is None:
            return []
        failures.append(failure)
    return failures


class InSlurm(unittest.TestCase):
    proctrack = "proctrack/cgroup"
    has_accounting = False

    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(os.environ["BUILT"], os.environ["PLUGIN"], cls.proctrack, cls.has_accounting)
        cls.addClassCleanup(cls.cluster.close)

    def setUp(self):
        self.cluster.configure_plugin(RULES)
        self.addCleanup(self.check_nothing_is_left)

    def check_nothing_is_left(self):
        cluster = self.cluster
        cluster.cancel_all()
        wait_until("no grant is left", lambda: not cluster.grants())
        wait_until("no record of a job is left", lambda: not os.path.exists(cluster.path("jobs")) or not os.listdir(cluster.path("jobs")))
        wait_until("no task is left", lambda: not cluster.tasks())
        self.assertEqual(wait_until("the nodes are in service", cluster.node_states), {"idle"})

    def srun(self, *arguments, node=0, **more):
        return self.cluster.run(["srun", "-Q", "-w", self.cluster.nodes[node], *arguments], **more)

    def sbatch(self, *arguments, script, node=0, **more):
        """Runs a batch job to its end: its exit status and its output."""
        file = self.cluster.path("out/script")
        with open(file, "w") as written:
            written.write(f"#!/bin/sh\n{script}\n")
        os.chmod(file, 0o755)
        output = self.cluster.path("out/output-%a")
        done = self.cluster.run(["sbatch", "-Q", "-W", "-w", self.cluster.nodes[node], "-o", output, *arguments, file], check=False, **more)
        texts = {}
        for name in os.listdir(self.cluster.path("out")):
            if name.startswith("output-"):
                with open(self.cluster.path(f"out/{name}")) as read:
                    texts[name] = read.read()
                os.remove(self.cluster.path(f"out/{name}"))
        return done, texts

    def start_job(self, priority, program, *arguments, shards=1, node=0, user=None, variables=None):
        """Starts a program on the GPU of a node as a job with one shard, and waits for its first line."""
        options = ["srun", "-Q", "-w", self.cluster.nodes[node], f"--gres=shard:{shards}", f"--job-name={program[0]}"]
        options += [f"--xsched-priority={priority}"] if priority is not None else []
        command = [*options, *arguments, self.cluster.path(program[0]), *program[1:]]
        job = self.cluster.start(command, user=user, variables={**self.cluster.device(node), **(variables or {})})
        self.assertNotEqual(job.stdout.readline(), "", "the program prints a line")
        return job

    def task(self, name):
        return next((task for task in self.cluster.tasks() if task["name"] == name), None)

    def wait_for_state(self, name, state):
        wait_until(f"{name} is {state}", lambda: (self.task(name) or {}).get("state") == state)

    def job_id(self, name):
        return self.cluster.run(["squeue", "-h", "-n", name, "-o", "%i"]).stdout.strip()

    def list_grants(self):
        return f"{self.cluster.xsched} grants --json"

    def only(self, text):
        """The one grant of a list in JSON."""
        (status,) = json.loads(text)
        return status["grant"]
