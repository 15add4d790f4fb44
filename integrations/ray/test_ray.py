"""Tasks, actors and Serve deployments of a real Ray cluster under XSched, on one simulated device.

Needs Ray, the package xsched, and XSIM_LIBRARY: see `test`.
"""

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.request
import warnings

import ray
import xsched.ray
from cluster import Cluster, eventually, free_port
from simulated import Device, Service, Training

REQUESTS = 100
# Seconds before each measurement. Load that spoils one measurement is often gone a few seconds later.
PAUSES = (0, 0, 1, 5, 20)
# Part of each core that a busy process must get for a comparison of 99th percentiles to count.
MIN_FREE_CPU = 0.9
HIGH = xsched.ray.runtime_env(priority="high", name="ray-high")
LOW = xsched.ray.runtime_env(priority="low", name="ray-low")


# Ray's own dependencies warn about each other.
warnings.filterwarnings("ignore", category=DeprecationWarning)


def percentile(latencies, percent):
    return sorted(latencies)[max(len(latencies) * percent // 100 - 1, 0)]


def free_cpu():
    """The part of the CPU time that one busy process per core gets."""
    burn = ("import time; begin = time.monotonic()\nwhile time.monotonic() < begin + 0.5: pass\n"
            "print(time.process_time() / (time.monotonic() - begin))")
    cores = os.cpu_count() or 1
    children = [subprocess.Popen([sys.executable, "-S", "-c", burn], stdout=subprocess.PIPE, text=True) for _ in range(cores)]
    return sum(min(float(child.communicate()[0]), 1) for child in children) / cores


class Ray(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.stop)
        cls.cluster.start()
        os.environ.update(XSCHED_SOCKET=cls.cluster.socket, RAY_OVERRIDE_NODE_IP_ADDRESS="127.0.0.1", RAY_USAGE_STATS_ENABLED="0")
        ray.init(address=f"127.0.0.1:{cls.cluster.port}", log_to_driver=False, logging_level="error", _temp_dir=cls.cluster.directory + "/ray")
        cls.addClassCleanup(ray.shutdown)

    def actor(self, cls, node, runtime_env):
        actor = ray.remote(cls).options(num_cpus=0.1, num_gpus=0.5, resources={node: 1}, runtime_env=runtime_env).remote()
        self.addCleanup(self.kill, actor)
        return actor

    def kill(self, actor):
        pid = ray.get(actor.pid.remote())
        ray.kill(actor)
        eventually("the worker has exited", lambda: not os.path.exists(f"/proc/{pid}"))

    def test_both_nodes_are_there(self):
        self.assertEqual(len([node for node in ray.nodes() if node["Alive"]]), 2)

    def test_task_has_the_hints_of_its_runtime_env_and_others_are_not_scheduled(self):
        def work():
            Device().synchronize()
            device = Device()
            device.launch(1)
            device.synchronize()
            return os.getpid(), os.environ.get("XSCHED_NAME"), [(t.pid, t.name, t.priority, t.share) for t in xsched.tasks()]

        # The worker exits afterwards: it would keep its queue on the device.
        remote = ray.remote(max_calls=1)(work)
        environment = xsched.ray.runtime_env({"env_vars": {"OTHER": "1"}}, priority=-7, share=40, name="ray-task")
        pid, name, tasks = ray.get(remote.options(num_gpus=0.5, runtime_env=environment).remote())
        self.assertEqual((name, [task for task in tasks if task[0] == pid]), ("ray-task", [(pid, "ray-task", -7, 40)]))
        pid, name, tasks = ray.get(remote.options(num_gpus=0.5).remote())
        self.assertEqual((name, [task for task in tasks if task[0] == pid]), (None, []))

    def test_low_actor_gives_way_to_the_high_actor_and_keeps_the_rest(self):
        high = self.actor(Service, "node_a", HIGH)
        ray.get(high.requests.remote(10))
        failures = []
        for pause in PAUSES:
            time.sleep(pause)
            alone = ray.get(high.requests.remote(REQUESTS))
            low = ray.remote(Training).options(num_cpus=0.1, num_gpus=0.5, resources={"node_b": 1}, runtime_env=LOW).remote()
            begin, used = ray.get(low.progress.remote())
            eventually("the training has begun", lambda: ray.get(low.progress.remote())[1] > used)
            begin, used = ray.get(low.progress.remote())
            beside = ray.get(high.requests.remote(REQUESTS))
            end, used_later = ray.get(low.progress.remote())
            tasks = self.cluster.tasks()
            self.kill(low)
            # Facts, which no retry excuses.
            self.assertEqual({name: task["priority"] for name, task in tasks.items()}, {"ray-high": 100, "ray-low": -100})
            self.assertGreater(tasks["ray-low"]["preemptions"], 0)
            rest = 1 - 8 / 20
            kept = (used_later - used) / (end - begin) / rest
            median, p99 = ((percentile(beside, n) / percentile(alone, n)) for n in (50, 99))
            print(f"\nbeside the training: median {median:.2f} and p99 {p99:.2f} times alone ({percentile(alone, 99):.2f} ms); "
                  f"training keeps {kept:.0%} of the rest")
            if p99 <= 1.2 and kept >= 0.7:
                return
            failures.append((round(median, 3), round(p99, 3), round(kept, 3)))
        free = free_cpu()
        message = f"with {free:.2f} of the CPU free every comparison failed (median and p99 beside / alone, kept): {failures}"
        # The workers launch from the CPU: without a free one, requests may wait for the CPU and not for the device.
        self.assertLess(free, MIN_FREE_CPU, message)
        self.assertTrue(any(median <= 1.3 and kept >= 0.5 for median, _, kept in failures), message)
        self.skipTest(message)

    def test_utilization_of_an_actor_alone_on_its_device_is_known(self):
        eventually("the workers of other tests have left", lambda: not self.cluster.tasks())
        actor = self.actor(Training, "node_b", xsched.ray.runtime_env(name="ray-alone"))
        ray.get(actor.progress.remote())
        eventually("it is sampled", lambda: self.cluster.tasks()["ray-alone"].get("sampled_ns"))
        failures = []
        for pause in PAUSES:
            time.sleep(pause)
            begin, used = ray.get(actor.progress.remote())
            rates = self.cluster.tasks("4s")["ray-alone"]["rates"]
            end, used_later = ray.get(actor.progress.remote())
            load = (used_later - used) / (end - begin)
            self.assertTrue(rates["is_sampled"])
            print(f"\nalone on its device: shown {rates['utilization']:.0%}, used {load:.0%}")
            if 0.8 <= rates["utilization"] / load <= 1.25:
                return
            failures.append((rates["utilization"], load))
        self.fail(f"every comparison failed (shown, used): {failures}")

    def test_grant_of_the_cluster_bounds_the_priority_and_labels_the_worker(self):
        token = "0123456789abcdef" * 2
        path = self.cluster.file("token", token)
        done = self.cluster.xsched("grant", "ray-cluster", "--token", path, "--priority", "50", "--label", "job=nightly")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.addCleanup(self.cluster.xsched, "revoke", "ray-cluster")
        actor = self.actor(Service, "node_a", xsched.ray.runtime_env(priority="high", name="ray-granted", grant=token))
        ray.get(actor.requests.remote(1))
        task = self.cluster.tasks()["ray-granted"]
        self.assertEqual((task["priority"], task["grant"], task["labels"]), (50, "ray-cluster", {"job": "nightly"}))

    def test_serve_deployment_is_scheduled(self):
        try:
            from ray import serve
        except ImportError as error:
            self.skipTest(f"Ray Serve is not installed: {error}")
        port = free_port()

        @serve.deployment(ray_actor_options={"num_cpus": 0.1, "num_gpus": 0.5,
                                             "runtime_env": xsched.ray.runtime_env(priority="high", name="ray-serve")})
        class Model:
            def __init__(self):
                self.service = Service()

            async def __call__(self, request):
                return {"latency_ms": self.service.requests(1)[0], "pid": os.getpid()}

        serve.start(http_options={"host": "127.0.0.1", "port": port})
        self.addCleanup(serve.shutdown)
        serve.run(Model.bind(), name="model")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as response:
            answer = json.load(response)
        self.assertGreater(answer["latency_ms"], 0)
        task = self.cluster.tasks()["ray-serve"]
        self.assertEqual((task["pid"], task["priority"]), (answer["pid"], 100))


if __name__ == "__main__":
    unittest.main()
