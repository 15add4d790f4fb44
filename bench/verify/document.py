"""The report of a verification: one JSON file and one page, written after every stage."""

import datetime
import json
import os
import pathlib

from . import page

SCHEMA = "xsched-verify"
SCHEMA_VERSION = 1


class Document:
    """Everything that was found, in the form of the JSON file."""

    def __init__(self, output, platform, quick, redaction):
        base = pathlib.Path(output)
        base = base.with_suffix("") if base.suffix in (".json", ".html", ".jsonl") else base
        self.json_file, self.html_file = base.with_name(base.name + ".json"), base.with_name(base.name + ".html")
        self.redaction = redaction
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        self.content = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "platform": platform, "quick": quick, "date": now,
                        "xsched_version": None, "state": "running", "device": None, "runtime_version": None, "host": {},
                        "findings": [], "stages": [], "build_seconds": 0, "seconds": 0}
        self.files = [os.open(file, os.O_WRONLY | os.O_CREAT, 0o644) for file in (self.json_file, self.html_file)]

    def write(self):
        """Replaces the content of both files. A kill leaves the old or the new content, and no temporary file."""
        content = self.redaction.value(self.content)
        texts = (json.dumps(content, indent=1) + "\n", page.render(content))
        for file, text in zip(self.files, texts):
            data = text.encode()
            # A write to a regular file is not interrupted by a signal. What is left of a longer old text is cut off afterwards.
            os.pwrite(file, data, 0)
            os.ftruncate(file, len(data))

    def close(self):
        for file in self.files:
            os.close(file)

    def failures(self):
        """The stages that failed."""
        return [stage for stage in self.content["stages"] if stage["status"] == "fail"]


def summary(content):
    """The verdict in a few lines of text."""
    stages = content["stages"]
    counts = {status: sum(stage["status"] == status for stage in stages) for status in ("pass", "fail", "skipped")}
    problems = [check for check in content["findings"] if check["state"] == "problem"]
    warnings = [check for check in content["findings"] if check["state"] == "warning"]
    lines = [f"{counts['pass']} passed, {counts['fail']} failed, {counts['skipped']} skipped; "
             f"{len(problems)} problems and {len(warnings)} warnings about the machine; {content['seconds']:.0f} s"]
    lines += [f"  fail  {stage['name']}: {stage['notes']}" for stage in stages if stage["status"] == "fail"]
    for check in problems + warnings:
        lines.append(f"  {check['state']}  {check['name']}: {check['what']}")
        if check.get("do_next"):
            lines.append(f"          do: {check['do_next']}")
    return lines
