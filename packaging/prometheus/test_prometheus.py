"""A real Prometheus collects from a real service: rules, alerts and the expressions of the dashboard. Needs BUILT: see `test`."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.environ.get("BUILT", "")
XSCHED = os.path.join(BUILT, "xsched")
RULES, SCRAPE, DASHBOARD = (os.path.join(HERE, name) for name in ("rules.yml", "scrape.yml", "../grafana/xsched.json"))
TOKEN = "0123456789abcdef" * 2

# Keeps the simulated device busy for half of the time.
PROGRAM = """
import ctypes, os, time
library = ctypes.CDLL(os.environ["XSIM_LIBRARY"])
device, queue = ctypes.c_void_p(), ctypes.c_void_p()
assert library.xsim_open(None, ctypes.byref(device)) == 0
assert library.xsim_queue_create(device, ctypes.byref(queue)) == 0
while True:
    assert library.xsim_launch(queue, ctypes.c_uint64(10_000_000)) == 0
    assert library.xsim_synchronize(queue) == 0
    time.sleep(0.01)
"""


def eventually(what, condition, timeout=60):
    end = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {timeout} s")
        time.sleep(0.1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def metric_names(text):
    """The metrics of the service that an expression uses, without the suffixes of histograms. Names with a colon are recorded."""
    found = re.findall(r"(?<![\w:])xsched_[a-z0-9_]+(?!:)", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


def dashboard_expressions():
    with open(DASHBOARD) as file:
        dashboard = json.load(file)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries = [variable["definition"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    return dashboard, expressions, queries


def promtool(*arguments):
    return subprocess.run(["promtool", *arguments], capture_output=True, text=True, cwd=HERE, timeout=60)


@unittest.skipUnless(shutil.which("promtool"), "promtool is not installed: install the Debian package prometheus")
class Files(unittest.TestCase):
    def test_promtool_accepts_the_rules_and_the_scrape_configuration(self):
        for arguments in (("check", "rules", RULES), ("check", "config", SCRAPE), ("test", "rules", "rules_test.yml")):
            done = promtool(*arguments)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_dashboard_has_panels_with_titles_units_and_variables(self):
        dashboard, expressions, queries = dashboard_expressions()
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]))
        variables = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([expressions, queries])))
        self.assertLessEqual(used - {"__rate_interval"}, variables)
        places = [panel["gridPos"] for panel in dashboard["panels"]]
        for index, a in enumerate(places):
            for b in places[index + 1:]:
                apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"] or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
                self.assertTrue(apart, f"panels overlap: {a} and {b}")


@unittest.skipUnless(shutil.which("prometheus"), "prometheus is not installed: install the Debian package prometheus")
class Collected(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="xsched-prometheus-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, ignore_errors=True)
        cls.children = []
        cls.addClassCleanup(cls.stop)
        cls.metrics, cls.port = free_port(), free_port()
        cls.environment = {k: v for k, v in os.environ.items() if not k.startswith(("XSCHED_", "LD_PRELOAD"))}
        cls.environment.update(XSCHED_SOCKET=cls.path("socket"), XSIM_DEVICE=cls.path("device"), XSIM_LIBRARY=os.path.join(BUILT, "libxsim.so"))
        # The address comes from the configuration file, and names are visible: Prometheus runs as another user.
        cls.write("config.toml", f'[http]\nmetrics = "127.0.0.1:{cls.metrics}"\nmetrics_names = true\n')
        cls.service = cls.start([XSCHED, "serve", "--quiet", "--config", cls.path("config.toml")])
        eventually("the service replies", lambda: cls.xsched("policy", "--json").returncode == 0)
        cls.write("token", TOKEN)
        done = cls.xsched("grant", "nightly", "--token", cls.path("token"), "--label", "job=nightly", "--label", "user=ada")
        assert done.returncode == 0, done.stderr
        cls.environment["XSCHED_GRANT"] = TOKEN
        cls.start([XSCHED, "run", "--name", "worker", "--", sys.executable, "-c", PROGRAM])
        with open(SCRAPE) as file:
            scrape = file.read().replace("127.0.0.1:9400", f"127.0.0.1:{cls.metrics}").replace("15s", "1s\n  evaluation_interval: 1s")
        cls.write("prometheus.yml", scrape)
        shutil.copy(RULES, cls.directory)
        cls.start(["prometheus", "--config.file", cls.path("prometheus.yml"), "--storage.tsdb.path", cls.path("data"),
                   f"--web.listen-address=127.0.0.1:{cls.port}", "--log.level=error"])
        eventually("Prometheus is ready", cls.is_ready)

    @classmethod
    def path(cls, name):
        return os.path.join(cls.directory, name)

    @classmethod
    def write(cls, name, text):
        with open(cls.path(name), "w") as file:
            file.write(text)

    @classmethod
    def start(cls, command):
        child = subprocess.Popen(command, env=cls.environment)
        cls.children.append(child)
        return child

    @classmethod
    def stop(cls):
        for child in reversed(cls.children):
            child.kill()
            child.wait()

    @classmethod
    def xsched(cls, *arguments):
        return subprocess.run([XSCHED, *arguments], env=cls.environment, capture_output=True, text=True, timeout=60)

    @classmethod
    def is_ready(cls):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{cls.port}/-/ready", timeout=5).status == 200
        except OSError:
            return False

    def api(self, path, **arguments):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            self.fail(f"{arguments}: {error.read().decode()}")

    def query(self, expression):
        return self.api("query", query=expression)["result"]

    def exported(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30) as response:
            return response.read().decode()

    def test_exported_text_satisfies_promtool(self):
        done = subprocess.run(["promtool", "check", "metrics"], input=self.exported(), text=True, capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_rules_and_dashboard_use_only_metrics_that_exist(self):
        exist = set(re.findall(r"^# TYPE (\S+)", self.exported(), re.MULTILINE))
        with open(RULES) as file:
            # Without the annotations, which name no metrics.
            rules = "\n".join(re.findall(r"expr:.*?(?=\n\s+(?:for|- record|- alert)|\n\n|\Z)", file.read(), re.DOTALL))
        _, expressions, queries = dashboard_expressions()
        for text in (rules, "\n".join(expressions), "\n".join(queries)):
            used = metric_names(text)
            self.assertGreater(len(used), 1)
            self.assertEqual(used - exist, set())

    def test_utilization_and_labels_arrive_in_prometheus(self):
        eventually("the service is collected", lambda: self.query('up{job="xsched"} == 1'))
        eventually("the utilization is recorded", lambda: self.query('xsched:task_utilization:ratio{name="worker"} > 0'))

        def near_half():
            found = self.query('rate(xsched_task_sampled_seconds_total{name="worker"}[10s])')
            self.shown = float(found[0]["value"][1]) if found else 0
            return 0.4 < self.shown < 0.6

        # The first samples of Prometheus cover less than 10 s.
        eventually("the utilization is that of the program, about 50 %", near_half)
        print(f"\nutilization of a program with half load, alone on its device: {self.shown:.2f}")
        info = self.query('xsched_task_info{name="worker"}')[0]["metric"]
        self.assertEqual((info["grant"], info["label_job"], info["label_user"]), ("nightly", "nightly", "ada"))
        self.assertEqual(info["job"], "xsched", "the labels of a grant must not replace those of Prometheus")
        by_job = "sum by (label_job) (xsched:task_utilization:ratio * on (instance, task) group_left (label_job) xsched_task_info)"
        self.assertEqual(self.query(by_job)[0]["metric"], {"label_job": "nightly"})

    def test_every_expression_of_the_dashboard_can_be_evaluated(self):
        eventually("the service is collected", lambda: self.query('xsched_task_info{name="worker"}'))
        _, expressions, _ = dashboard_expressions()
        for group in ("name", "uid", "device", "grant", "label_job"):
            for expression in expressions:
                for variable, value in (("$__rate_interval", "1m"), ("$instance", ".*"), ("$device", ".*"), ("$group", group)):
                    expression = expression.replace(variable, value)
                self.query(expression)

    def test_z_rules_are_healthy_and_a_dead_service_raises_an_alert(self):
        """Last by its name: it ends the service."""
        def rules():
            return [rule for group in self.api("rules")["groups"] for rule in group["rules"]]

        eventually("all rules were evaluated", lambda: all(rule["health"] != "unknown" for rule in rules()))
        self.assertEqual([(rule["name"], rule.get("lastError")) for rule in rules() if rule["health"] != "ok"], [])
        self.service.kill()
        self.service.wait()

        def down():
            return [rule for rule in rules() if rule["name"] == "XSchedDown" and rule["state"] in ("pending", "firing")]

        eventually("the alert is raised", down)


if __name__ == "__main__":
    unittest.main()
