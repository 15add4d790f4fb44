"""Tests packaging/release: the files of a release, their checksums and the bill of materials."""

import hashlib
import json
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


def release(*words):
    return subprocess.run([ROOT / "packaging/release", *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Release(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.out = pathlib.Path(cls.directory.name) / "dist"
        done = release("--profile", "debug", "--no-image", "--out", cls.out)
        if done.returncode != 0:
            raise AssertionError(done.stdout)
        cls.output = done.stdout

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def one(self, pattern):
        found = list(self.out.glob(pattern))
        self.assertEqual(len(found), 1, f"{pattern}: {found}")
        return found[0]

    def test_every_file_is_there_with_its_checksum(self):
        listed = dict(reversed(line.split("  ")) for line in self.one("SHA256SUMS").read_text().splitlines())
        self.assertEqual(set(listed), {path.name for path in self.out.iterdir()} - {"SHA256SUMS"})
        for pattern in ("xsched_*.deb", "xsched-*-cp39-abi3-manylinux_*.whl", "xsched-*.cdx.json"):
            path = self.one(pattern)
            self.assertEqual(listed[path.name], hashlib.sha256(path.read_bytes()).hexdigest())
        self.assertIn("no container image: not requested", self.output)

    def test_bill_of_materials_lists_what_cargo_links(self):
        bill = json.loads(self.one("*.cdx.json").read_text())
        self.assertEqual((bill["bomFormat"], bill["specVersion"]), ("CycloneDX", "1.5"))
        listed = {(component["name"], component["version"]) for component in bill["components"]}
        tree = subprocess.run(
            ["cargo", "tree", "--locked", "-p", "xsched", "-p", "xsched-lib", "-p", "xsched-python", "-e", "normal", "--prefix", "none", "--format", "{p}"],
            cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        linked = {tuple(line.split()[:2]) for line in tree.stdout.splitlines() if line}
        missing = {(name, version.lstrip("v")) for name, version in linked} - listed
        self.assertEqual(missing, set())
        for component in bill["components"]:
            self.assertTrue(component.get("licenses"), component)
        references = {component["bom-ref"] for component in bill["components"]}
        for entry in bill["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, references)

    def test_files_of_another_release_are_not_overwritten(self):
        done = release("--profile", "debug", "--no-image", "--out", self.out)
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not empty: remove it", done.stdout)


if __name__ == "__main__":
    unittest.main()
