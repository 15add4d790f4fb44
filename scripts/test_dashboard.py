#!/usr/bin/env python3
"""Tests `xsched dashboard` in a real browser, with a real service and programs on a simulated device.

    python3 scripts/test_dashboard.py [--pictures DIRECTORY]

Needs Chromium (apt-get install chromium), a C compiler and a debug build: cargo build -p xsched -p xsched-lib -p xsim
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import unittest
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from chromium import Page, find_chromium  # noqa: E402
from dashboard_environment import Environment, task_of  # noqa: E402

CHROMIUM = find_chromium()
# A user without rights on the service of root.
OTHER_USER = 65534
PICTURES = Path(sys.argv[sys.argv.index("--pictures") + 1]) if "--pictures" in sys.argv else None


# What a row of the page's table shows.
ROW = """(name => {
  const row = [...document.querySelectorAll("#tasks tr")].find(row => row.querySelector(".name").textContent === name);
  if (!row) return null;
  const cell = label => row.querySelector(`[data-label="${label}"]`);
  return {
    task: Number(row.dataset.task), about: row.querySelector("th .quiet").textContent, state: cell("State").textContent,
    priority: Number(cell("Priority").querySelector("select").value), share: Number(cell("Share").querySelector("input").value),
    preempted: Number(cell("Preempted").textContent), utilization: cell("Utilization").textContent, held: cell("Held").textContent,
    wait: cell("Wait p99").textContent, disabled: row.querySelector("select").disabled,
  };
})"""


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, "not within 60 s"
        time.sleep(0.05)


def duration(us: int) -> str:
    """As the page and `xsched top` show it."""
    if us < 1_000:
        return f"{us} us"
    return f"{us / 1e3:.1f} ms" if us < 9_950 else f"{us / 1e3:.0f} ms"


@unittest.skipUnless(CHROMIUM, "Chromium is not installed (apt-get install chromium)")
class DashboardTest(unittest.TestCase):
    def setUp(self) -> None:
        self.environment = Environment()
        self.addCleanup(self.environment.end)
        self.environment.start_service()

    def open(self, url: str) -> Page:
        assert CHROMIUM
        page = Page(CHROMIUM)
        self.addCleanup(page.__exit__)
        page.set_screen(1280, 900)
        page.open(url)
        return page

    def row(self, page: Page, name: str) -> dict:
        return page.wait(f"{ROW}({json.dumps(name)})")

    def choose(self, page: Page, selector: str, value: object) -> None:
        """Changes a control as a user does."""
        script = """((selector, value) => {
          const control = document.querySelector(selector);
          control.focus();
          control.value = value;
          control.dispatchEvent(new Event("change", {bubbles: true}));
          control.blur();
        })"""
        page.evaluate(f"{script}({json.dumps(selector)}, {json.dumps(str(value))})")

    def test_page_shows_what_ps_prints(self) -> None:
        self.environment.start_programs()
        self.environment.wait_for_tasks(2)
        _, url = self.environment.dashboard()
        page = self.open(url)
        page.wait("document.querySelectorAll('#tasks tr').length === 2")
        # Counters change all the time: the page lies between two statuses.
        before = self.environment.status()
        shown_at = before["now_ns"]
        page.wait(f"Number(document.body.dataset.updated) > {shown_at}")
        rows = {name: self.row(page, name) for name in ("train", "serve")}
        after = self.environment.status()
        for name, row in rows.items():
            old, new = task_of(before, name), task_of(after, name)
            self.assertEqual(row["task"], new["task"])
            self.assertIn(f"process {new['pid']}", row["about"])
            self.assertIn(f"level {new['level']}", row["about"])
            self.assertEqual((row["priority"], row["share"]), (new["priority"], new["share"]))
            self.assertTrue(old["preemptions"] <= row["preempted"] <= new["preemptions"], (old, row, new))
            self.assertIn(row["state"], {"running", "held", "idle"})
            self.assertFalse(row["disabled"])
        self.assertEqual((rows["train"]["priority"], rows["train"]["share"], rows["serve"]["priority"]), (-100, 60, 100))
        waits = {duration(task_of(status, "train")["wait_p99_us"]) for status in (before, after)}
        self.assertTrue(rows["train"]["wait"] in waits or len(waits) == 2, (rows["train"]["wait"], waits))
        self.assertEqual(page.evaluate("document.getElementById('policy').value"), after["policy"])
        self.assertIn(after["version"], page.evaluate("document.getElementById('service').textContent"))

        # The state of the page is the status of the service: the same fields as in `ps --json`.
        status = page.evaluate(
            "fetch('/api/state', {headers: {Authorization: `Bearer ${sessionStorage.getItem('token')}`}})"
            ".then(response => response.json()).then(state => state.status)"
        )
        self.assertEqual(set(status), set(after))
        self.assertEqual(set(status["tasks"][0]), set(after["tasks"][0]))

        # Both tasks ran, and train was held and preempted.
        label = "document.querySelectorAll('canvas')[{}].getAttribute('aria-label')"
        page.wait("[...document.querySelectorAll('canvas')].every(canvas => /ran [1-9]/.test(canvas.ariaLabel || canvas.getAttribute('aria-label')))")
        train = next(text for text in (page.evaluate(label.format(n)) for n in (0, 1)) if text.startswith("train"))
        self.assertRegex(train, r"held [1-9][0-9]* %, preempted [1-9][0-9]* times")
        self.assertTrue(page.wait("document.querySelector('#waits figure') !== null"))
        self.assertEqual(page.evaluate("window.location.hash"), "", "the address bar does not keep the token")
        self.assertEqual(page.errors, [])

    def test_changes_reach_the_service(self) -> None:
        self.environment.start_programs()
        status = self.environment.wait_for_tasks(2)
        _, url = self.environment.dashboard()
        page = self.open(url)
        row = f"tr[data-task='{task_of(status, 'train')['task']}']"
        page.wait(f"document.querySelector({json.dumps(row)}) !== null")

        self.choose(page, f"{row} select", 0)
        page.wait(f"{ROW}('train').priority === 0 && document.getElementById('message').textContent.includes('priority')")
        self.assertEqual(task_of(self.environment.status(), "train")["priority"], 0)
        self.choose(page, f"{row} input[type=number]", 35)
        page.wait("document.getElementById('message').textContent.includes('share')")
        self.assertEqual(task_of(self.environment.status(), "train")["share"], 35)

        # A priority that is not in the menu, typed on the keyboard.
        self.choose(page, f"{row} select", "other")
        page.wait("document.getElementById('dialog').open && document.activeElement.id === 'dialog-value'")
        page.command("Input.insertText", text="-7")
        page.key("Enter")
        page.wait(f"{ROW}('train').priority === -7")
        self.assertEqual(task_of(self.environment.status(), "train")["priority"], -7)
        self.choose(page, f"{row} select", "other")
        page.wait("document.getElementById('dialog').open")
        page.key("Escape")
        page.wait(f"!document.getElementById('dialog').open && {ROW}('train').priority === -7")

        page.evaluate(f"document.querySelector({json.dumps(row + ' button')}).click()")
        page.wait(f"{ROW}('train').state === 'suspended'")
        self.assertEqual(task_of(self.environment.status(), "train")["state"], "suspended")
        page.evaluate(f"document.querySelector({json.dumps(row + ' button')}).click()")
        page.wait(f"{ROW}('train').state !== 'suspended'")

        self.choose(page, "#policy", "UP")
        page.wait("document.getElementById('message').textContent.includes('policy')")
        self.assertEqual(self.environment.status()["policy"], "UP")
        page.wait("document.getElementById('policy').value === 'UP'")
        self.assertEqual(page.errors, [])

    def test_priority_is_changed_by_dragging_and_with_arrow_keys(self) -> None:
        self.environment.start_programs()
        status = self.environment.wait_for_tasks(2)
        _, url = self.environment.dashboard()
        page = self.open(url)
        slider = f"document.querySelector(\"tr[data-task='{task_of(status, 'train')['task']}'] input[type=range]\")"
        page.wait(f"{slider} !== null && {slider}.value === '-100'")
        page.evaluate(f"{slider}.scrollIntoView({{block: 'center'}})")
        left, width, middle = page.evaluate(f"(box => [box.left, box.width, box.top + box.height / 2])({slider}.getBoundingClientRect())")
        place = lambda priority: left + width * (priority + 255) / 510  # noqa: E731
        page.drag((place(-100), middle), (place(150), middle))
        page.wait("document.getElementById('message').textContent.includes('priority')")
        dragged = page.wait(f"!{slider}.disabled && Number({slider}.value)")
        self.assertGreater(dragged, 50)
        self.assertEqual(task_of(self.environment.status(), "train")["priority"], dragged)
        page.wait(f"{ROW}('train').priority === {dragged}")

        # Three keys are one change.
        page.evaluate(f"{slider}.focus()")
        for _ in range(3):
            page.key("ArrowLeft")
        page.wait(f"{ROW}('train').priority === {dragged - 3} && {slider}.disabled === false")
        page.wait(f"Number({slider}.value) === {dragged - 3}")
        wait_for(lambda: task_of(self.environment.status(), "train")["priority"] == dragged - 3)
        # The slider follows changes from elsewhere, also while it has the focus.
        subprocess.run(self.environment.command("set", "train", "--priority", "-42"), env=self.environment.variables(), check=True, capture_output=True)
        page.wait(f"{slider}.value === '-42' && {ROW}('train').priority === -42")
        self.assertEqual(page.errors, [])

    def test_names_of_programs_are_text(self) -> None:
        name = "<img src=x onerror=document.title=1>&amp;"
        self.environment.start(*self.environment.command("run"), "--name", name, "--", self.environment.directory / "work", 10**9, 4, 2000)
        self.environment.wait_for_tasks(1)
        _, url = self.environment.dashboard()
        page = self.open(url)
        self.assertEqual(self.row(page, name)["disabled"], False)
        self.assertEqual(page.evaluate("document.querySelectorAll('img').length"), 0)
        self.assertEqual(page.evaluate("document.querySelector('.row .name').textContent"), name)
        self.assertEqual(page.evaluate("document.title"), "XSched dashboard")

    def test_grants_are_shown_and_suspended(self) -> None:
        environment = self.environment
        token = environment.directory / "token"
        token.touch(mode=0o600)
        token.write_text("0123456789abcdef" * 4)
        grant = environment.command(
            "grant", "night-job", "--token", token, "--priority", -20, "--share", 30, "--memory", "20G", "--label", "team=blue"
        )
        subprocess.run(grant, env=environment.variables(), check=True, capture_output=True)
        environment.start(
            *environment.command("run"), "--name", "train", "--", environment.directory / "work", 10**9, 4, 2000, grant=token.read_text()
        )
        status = environment.wait_for_tasks(1)
        self.assertEqual(task_of(status, "train")["priority"], -20)
        _, url = environment.dashboard()
        page = self.open(url)
        text = page.wait("document.querySelector('[data-grant=\"night-job\"]')?.innerText")
        for part in ("processes with its token", "team=blue", "-20", "30 %", "20 GiB", str(task_of(status, "train")["pid"])):
            self.assertIn(part, text)
        self.assertNotIn(token.read_text(), page.evaluate("document.documentElement.outerHTML"))
        self.assertIn("grant night-job, team=blue", self.row(page, "train")["about"])
        button = "document.querySelector('[data-grant] button')"
        for action, is_suspended in (("Suspend", True), ("Resume", False)):
            page.wait(f"{button}.textContent === '{action}' && !{button}.disabled")
            page.evaluate(f"{button}.click()")
            page.wait(f"({ROW}('train').state === 'suspended') === {str(is_suspended).lower()}")
            self.assertEqual(task_of(environment.status(), "train")["state"] == "suspended", is_suspended)
        self.assertEqual(page.errors, [])

    @unittest.skipUnless(os.geteuid() == 0, "only root can run a program as another user")
    def test_names_and_controls_of_other_users_stay_hidden(self) -> None:
        self.environment.start_programs()
        self.environment.wait_for_tasks(2)
        _, url = self.environment.dashboard(user=OTHER_USER, group=OTHER_USER, extra_groups=[])
        page = self.open(url)
        page.wait("document.querySelectorAll('#tasks tr').length === 2")
        text = page.evaluate("document.documentElement.outerHTML")
        for secret in ("train", "serve", str(self.environment.directory)):
            self.assertNotIn(secret, text)
        controls = "[...document.querySelectorAll('#tasks select, #tasks input, #tasks button')]"
        self.assertTrue(page.evaluate(f"{controls}.length === 8 && {controls}.every(control => control.disabled)"))
        # The service decides, not the page.
        before = self.environment.status()["policy"]
        self.choose(page, "#policy", "UP")
        page.wait("document.getElementById('message').classList.contains('failed')")
        self.assertIn("Not changed:", page.evaluate("document.getElementById('message').textContent"))
        self.assertEqual(self.environment.status()["policy"], before)
        page.wait(f"document.getElementById('policy').value === '{before}'")

    def test_page_reports_a_missing_service_and_recovers(self) -> None:
        self.environment.start_programs()
        self.environment.wait_for_tasks(2)
        process, url = self.environment.dashboard()
        page = self.open(url)
        page.wait("document.querySelectorAll('#tasks tr').length === 2")
        self.environment.stop_service()
        page.wait("document.getElementById('alert').textContent.includes('No connection to the scheduler')")
        self.environment.start_service()
        page.wait("document.getElementById('alert').hidden && !document.body.classList.contains('outdated')")
        page.wait("document.querySelectorAll('#tasks tr').length === 2")
        process.terminate()
        self.assertEqual(process.wait(), 0)
        page.wait("document.getElementById('alert').textContent.includes('does not reply')")
        self.assertEqual(page.errors, [])

    def test_page_without_the_token_says_what_to_do(self) -> None:
        _, url = self.environment.dashboard()
        page = self.open(url.split("#")[0])
        page.wait("document.getElementById('alert').textContent.includes('open the address that `xsched dashboard` printed')")
        # With the token, in the same tab.
        page.evaluate(f"window.location.hash = {json.dumps('#' + url.split('#')[1])}")
        page.wait("document.getElementById('alert').hidden && !document.getElementById('empty').hidden")

    def test_page_fits_screens_and_has_labels_and_contrast(self) -> None:
        self.environment.start_programs()
        self.environment.wait_for_tasks(2)
        _, url = self.environment.dashboard()
        page = self.open(url)
        page.wait("document.querySelector('#waits figure') !== null")
        page.wait("[...document.querySelectorAll('canvas')].every(canvas => (canvas.getAttribute('aria-label') || '').includes('ran'))")
        for width, dark in [(1280, False), (1280, True), (400, False), (400, True)]:
            page.set_screen(width, 900, dark=dark)
            page.wait(f"window.innerWidth === {width} && matchMedia('(prefers-color-scheme: dark)').matches === {str(dark).lower()}")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width, "nothing is cut off")
            unlabelled = page.evaluate(
                "[...document.querySelectorAll('select, input, button')].filter(control => !control.labels?.length"
                " && !control.getAttribute('aria-label') && !control.textContent.trim()).map(control => control.outerHTML)"
            )
            self.assertEqual(unlabelled, [])
            self.assertEqual(page.evaluate(LOW_CONTRAST), [], f"{width} dark={dark}")
        page.set_screen(1280, 900)
        self.choose(page, "#theme", "dark")
        self.assertEqual(page.evaluate("getComputedStyle(document.documentElement).colorScheme"), "dark")
        # An arrow key opens the menu of policies and changes nothing.
        page.evaluate("document.getElementById('policy').focus()")
        page.key("ArrowDown")
        page.wait("document.getElementById('policy').matches(':open')")
        page.key("Escape")
        page.wait("!document.getElementById('policy').matches(':open')")
        self.assertEqual(self.environment.status()["policy"], "HPF")
        # Every control can be reached by keyboard.
        page.evaluate("document.body.focus()")
        reached = set()
        for _ in range(30):
            page.key("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.getAttribute('aria-label')"))
        self.assertLessEqual(
            {
                "policy", "pause", "theme", "events", "Priority of train", "Priority of train, -255 to 255",
                "Share of train in percent", "Suspend train",
            },
            reached,
        )


# Texts whose contrast to their background is below 4.5, as WCAG 2 computes it.
LOW_CONTRAST = """(() => {
  const channels = text => { const c = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    c.fillStyle = text; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => { const f = v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const behind = node => { for (; node; node = node.parentElement) {
    const color = channels(getComputedStyle(node).backgroundColor); if (color[3] === 255) return color; } return [255, 255, 255]; };
  const bad = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility() || node.disabled || node.tagName === "OPTION") continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(behind(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) bad.push(`${node.tagName} ${node.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return bad;
})()"""


def write_pictures(directory: Path) -> None:
    """Pictures of the page, for the documentation and to look at."""
    assert CHROMIUM, "Chromium is not installed (apt-get install chromium)"
    environment = Environment()
    try:
        environment.start_service()
        environment.start_programs()
        environment.wait_for_tasks(2)
        _, url = environment.dashboard()
        with Page(CHROMIUM) as page:
            page.open(url)
            page.set_screen(1280, 800)
            page.evaluate("document.querySelector('[name=span][value=\"1\"]').click()")
            page.wait("(document.querySelector('#waits figure p:last-child')?.textContent || '').match(/[1-9][0-9][0-9] waits/)")
            for name, width, dark in [("light", 1280, False), ("dark", 1280, True), ("phone", 400, False), ("phone-dark", 400, True)]:
                page.set_screen(width, 800, dark=dark, scale=1.5 if width > 600 else 2)
                updated = page.evaluate("document.body.dataset.updated")
                page.wait(f"document.body.dataset.updated !== '{updated}'")
                page.screenshot(directory / f"dashboard-{name}.png")
    finally:
        environment.end()


if __name__ == "__main__":
    if PICTURES:
        write_pictures(PICTURES)
    else:
        unittest.main()
