"""Tests of scripts/rocm-clients without AMD's software: `python3 -m unittest discover -s bench`."""
import argparse
import gzip
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "scripts")]
import report
from reaction import REACTION_NS
from rocm_clients import checks, results
from rocm_clients.clients import Client, all_clients
from rocm_clients.ledger import Ledger
from rocm_clients.machine import Machine
from rocm_clients.trial import Failure, Pair, Run, Trial

OPTIONS = argparse.Namespace(level="auto", way=None, no_pairs=False, kernel_us=100)
DIRECT = Run(0, "done\n", "", 1.0, {"step": 10, "fill": 2})


def machine(directory, **roots):
    """Roots with no files but a directory by which they are recognized."""
    places = {version: pathlib.Path(directory, name) for version, name in (("6", roots.get("root6")), ("7", roots.get("root7"))) if name}
    for place in places.values():
        (place / "root/usr").mkdir(parents=True, exist_ok=True)
    return Machine(pathlib.Path(directory), pathlib.Path(directory), {"6": None, "7": None, **places})


def pair(**changes):
    """A pair that passes, with changes."""
    values = {"high": DIRECT, "was_high_listed": True, "low_status": 0, "low_outputs": ["done\n"] * 3, "low_kernels": {"step": 30, "fill": 6},
              "launches_during_high": 0, "checked_seconds": 0.5, "ranks_held_together": 0}
    return Pair(**values | changes)


class Checks(unittest.TestCase):
    CLIENT = Client("one", "6", "a-package", ["true"])

    def assert_fails(self, text, **changes):
        with self.assertRaisesRegex(Failure, text):
            checks.check_pair(self.CLIENT, pair(**changes), DIRECT)

    def test_pair_without_fault_passes(self):
        checks.check_pair(self.CLIENT, pair(), DIRECT)

    def test_other_kernels_are_a_failure(self):
        for kernels in ({"step": 9, "fill": 2}, {"step": 10}, {"step": 10, "fill": 2, "more": 1}):
            run = Run(0, "done\n", "", 1.0, kernels)
            with self.assertRaisesRegex(Failure, "1 kernels ran more or less often"):
                checks.check_same(self.CLIENT, "under XSched", run, DIRECT)
            checks.check_same(Client("one", "6", "a-package", [], kernels_vary="it measures"), "under XSched", run, DIRECT)
        self.assert_fails("of low priority: 1 kernels", low_kernels={"step": 29, "fill": 6})

    def test_each_output_of_low_priority_is_compared(self):
        self.assert_fails("of low priority: the output differs: 'done' became 'wrong'", low_outputs=["done\n", "wrong\n", "done\n"])
        self.assert_fails("of low priority: it did not run", low_outputs=[], low_kernels={})
        self.assert_fails("of low priority: status 3", low_status=3)

    def test_check_of_no_time_is_a_failure(self):
        self.assert_fails("no launch could be counted", checked_seconds=0)
        self.assert_fails("4 launches while", launches_during_high=4)

    def test_late_launches_are_repeated_but_wrong_output_is_not(self):
        cases = ((pair(launches_during_high=4), 3, checks.LateLaunches), (pair(low_status=3), 1, Failure))
        for bad, attempts, error in cases:
            trial = mock.Mock(**{"pair.side_effect": [bad] * 3})
            trial.scheduled.return_value = (Run(0, "done\n", "HIP is scheduled by the names of its functions", 1.0, DIRECT.kernels), [{"level": 3}])
            with self.assertRaises(error):
                checks.run_way(trial, self.CLIENT, "names", DIRECT, OPTIONS, {})
            self.assertEqual(trial.pair.call_count, attempts)
        trial.pair.side_effect = [pair(launches_during_high=1), pair()]
        row = {}
        checks.run_way(trial, self.CLIENT, "names", DIRECT, OPTIONS, row)
        self.assertEqual((row["pairs"], row["low_launches_during_high"]), (2, 0))

    def test_kernels_are_long_enough_to_be_checked(self):
        self.assertGreater(checks.MAX_HIGH_KERNEL_US * 1000, REACTION_NS)
        self.assertEqual([checks.high_kernel_us(100, count) for count in (1, 400, 4000, 10**6)], [20_000, 10_000, 1000, 100])

    def test_launches_count_after_the_time_to_react(self):
        high = Ledger([("k", 0, 0, 10 * REACTION_NS, 0)])
        at = [1, REACTION_NS - 1, REACTION_NS + 1, 9 * REACTION_NS, 11 * REACTION_NS]
        self.assertEqual(Ledger([("k", time, time, time, 0) for time in at]).launched_during_work_of(high), 2)
        self.assertEqual(Ledger([("k", 2 * REACTION_NS, 0, 0, 1)]).launched_during_work_of(high), 0)


class Clients(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.directory = place.name

    def run_client(self, place, client):
        return checks.run_client(place, client, mock.Mock(), OPTIONS, lambda _text: None)

    def test_client_of_two_roots_needs_both(self):
        for given, missing in (({"root7": "seven"}, "XSCHED_ROCM_6"), ({"root6": "six"}, "XSCHED_ROCM_7")):
            place = machine(self.directory, **given)
            client = next(one for one in all_clients(place) if one.name == "both-runtimes")
            row, = self.run_client(place, client)
            self.assertEqual(row["result"], "skipped")
            self.assertIn(missing, row["reason"])

    def test_fault_of_the_check_fails_one_client_only(self):
        place = machine(self.directory, root6="six")
        client = Client("one", "6", "a-package", ["true"], binds=["{root7}/x"])
        with mock.patch.object(Trial, "direct", side_effect=KeyError("root7")):
            row, = self.run_client(place, client)
        self.assertEqual((row["result"], row["reason"]), ("failed", "the check itself failed: KeyError: 'root7'"))
        client.name = "two"
        with mock.patch.object(Trial, "direct", return_value=DIRECT), mock.patch.object(Trial, "scheduled", side_effect=OSError("no space")):
            rows = self.run_client(place, client)
        self.assertEqual([(row["way"], row["result"]) for row in rows], [("names", "failed"), ("table", "failed")])

    def test_versions_are_read(self):
        place = machine(self.directory, root6="six", root7="seven")
        changelog = pathlib.Path(self.directory, "seven/root/usr/share/doc/libamdhip64-7/changelog.Debian.gz")
        changelog.parent.mkdir(parents=True)
        with gzip.open(changelog, "wt") as file:
            file.write("rocm-hip (7.2.4-1) experimental; urgency=medium\n")
        pathlib.Path(self.directory, "seven/python/packages/jax_rocm7_plugin-0.10.2.dist-info").mkdir(parents=True)
        found = [checks.version_of(place, Client("one", root, package, [])) for root, package in (
            ("7", "libamdhip64-7"), ("6", "libamdhip64-6, libamdhip64-7"), ("7", "jax-rocm7-plugin"), ("7", "jax"))]
        self.assertEqual(found, ["7.2.4-1", "7.2.4-1", "0.10.2", ""])


class Document(unittest.TestCase):
    NAMES = ["one", "two", "three"]
    ROWS = [
        {"client": "one", "package": "a-package", "version": "1.2", "hip": "6", "way": "names", "direct": 0, "xsched": 0, "is_same_output": True, "kernels": 12,
         "are_same_kernels": True, "is_listed": True, "level": 3, "low_launches": 36, "low_runs": 3, "low_launches_during_high": 0, "checked_seconds": 0.5, "result": "passed"},
        {"client": "two", "package": "another", "hip": "7", "result": "skipped", "reason": "a | b is missing"},
    ]

    def test_every_row_has_the_same_keys(self):
        document = results.document(self.ROWS, [], self.NAMES, 100, "auto")
        self.assertEqual({tuple(row) for row in document["rows"]}, {results.KEYS})
        self.assertEqual((document["counts"], document["missing"]), ({"passed": 1, "failed": 0, "skipped": 1}, ["three"]))

    def test_client_that_is_repeated_replaces_its_own_rows(self):
        first = results.document(self.ROWS, [], self.NAMES, 100, "auto")
        second = results.document([{"client": "one", "result": "failed"}, {"client": "three", "result": "passed"}], first["rows"], self.NAMES, 100, "auto")
        self.assertEqual([(row["client"], row["result"]) for row in second["rows"]], [("one", "failed"), ("two", "skipped"), ("three", "passed")])
        self.assertEqual((second["rows"][1], second["missing"]), (first["rows"][1], []))
        with tempfile.TemporaryDirectory() as directory:
            file = pathlib.Path(directory, "rocm-clients.json")
            self.assertEqual(results.read_rows(file), [])
            file.write_text(json.dumps(first), encoding="utf-8")
            self.assertEqual(results.read_rows(file), first["rows"])

    def test_results_become_a_table(self):
        with tempfile.TemporaryDirectory() as directory:
            pathlib.Path(directory, "rocm-clients.json").write_text(json.dumps(results.document(self.ROWS, [], self.NAMES, 100, "auto")), encoding="utf-8")
            text = report.rocm_clients(report.Results(directory))
            self.assertIn("1 passed, 0 failed, 1 skipped", text)
            self.assertIn("| one | a-package 1.2 | 6 | names | same | 12 | 3 | 0 of 36 in 0.50 s | passed |", text)
            self.assertIn("skipped: a / b is missing", text)
            self.assertIsNone(report.rocm_clients(mock.Mock(named={})))


if __name__ == "__main__":
    unittest.main()
