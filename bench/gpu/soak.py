"""Does XSched stay right for long? Many programs, changing wishes, kill -9 of programs and of the service.

  python3 bench/gpu/soak.py --xsched target/release/xsched --minutes 10 [--out FILE.json] [--seed 1]

Runs each program once without XSched and keeps what it computed, how long it took and what it said. Then runs them side by side under
XSched, at random, while things happen to them. Whoever is not killed must end with status 0, with the same result, within a generous
time. What programs say under XSched and not natively is kept.
"""
import argparse
import collections
import glob
import json
import os
import random
import re
import signal
import sys
import time

from harness import Failure, Program, Stage, end_on_signals
from same_results import PROGRAMS, VARIABLES, company

MIX = ["resnet152", "bert", "graph", "training", "compile", "dataloader", "spawn", "cupy", "jax"]
POLICIES = ["HPF", "UP", "CFS", "MLFQ"]
TOGETHER = 4


def start(stage, name, options):
    program = stage.start(name, [sys.executable, PROGRAMS, name], options, **VARIABLES, PYTHONFAULTHANDLER=1)
    program.began = time.monotonic()
    return program


def complaints(program):
    """What it said, without what differs from run to run."""
    return {re.sub(r"0x[0-9a-f]+|\d+", "N", line).strip() for line in program.stderr(100_000).splitlines() if line.strip()}


def result_of(program):
    return next((event["sha256"] for event in program.said if event.get("event") == "sha256"), None)


def natively(stage, names):
    """All at the same time: about as slow as they may be later."""
    programs, known = {name: start(stage, name, None) for name in names}, {}
    for name, program in programs.items():
        try:
            program.expect("sha256", 240)
            status = program.process.wait(60)
            if status != 0:
                raise Failure(f"ended with {status}. {program.stderr()}")
            seconds = time.monotonic() - program.began
            known[name] = {"sha256": result_of(program), "seconds": round(seconds, 1), "says": complaints(program)}
            print(f"    {name}: {seconds:.1f} s", flush=True)
        except Exception as error:
            print(f"    {name} does not run natively and is left out: {str(error)[:400]}", flush=True)
        program.end(1.0)
    return known


def levels(stage):
    """Those that this GPU has."""
    found = [[]]
    for level in (1, 2, 3):
        with stage.worker("load", options=["--level", str(level)]) as load:
            try:
                stage.must_be_scheduled(load, level)
                found.append(["--level", str(level)])
            except Failure:
                pass
    return found


class Soak:
    def __init__(self, stage, dice, known, levels_):
        self.stage, self.dice, self.known, self.levels = stage, dice, known, levels_
        self.running, self.counts, self.wrong = [], collections.Counter(), []
        self.longest, self.said = 0.0, collections.Counter()

    def add(self):
        name = self.dice.choice(list(self.known))
        options = ["--priority", str(self.dice.randint(-200, 200)), *self.dice.choice(self.levels)]
        program = start(self.stage, name, options)
        program.options, program.killed, program.resume_at, program.rescued = options, False, None, False
        program.deadline = 60 + 10 * self.known[name]["seconds"]
        self.running.append(program)
        self.counts["programs started"] += 1

    def fail(self, program, why):
        print(f"    WRONG: {program.name} {program.options}: {why[:3000]}", flush=True)
        self.wrong.append({"program": program.name, "options": program.options, "why": why[:6000]})

    def look(self):
        """Takes note of who ended, and of who should have."""
        now = time.monotonic()
        for program in list(self.running):
            span, status = now - program.began, program.process.poll()
            if status is None:
                if program.resume_at is not None and now >= program.resume_at:
                    self.set(program, "--resume")
                    program.resume_at = None
                # Strict priorities may starve it for good: that is no fault, so it is made important in time.
                if span > program.deadline / 3 and now > (program.rescued or 0) + 5:
                    self.set(program, "--priority", "255")
                    program.rescued = now
                    self.counts["priorities raised for the deadline"] += 1
                if span > program.deadline:
                    self.fail(program, f"not done within {program.deadline:.0f} s. {self.where(program)}")
                    self.counts["hung"] += 1
                    self.drop(program)
                continue
            native = self.known[program.name]
            if program.killed:
                self.counts["killed"] += 1
            elif status != 0:
                self.fail(program, f"ended with {status}. {program.stderr()}")
            elif result_of(program) != native["sha256"]:
                self.fail(program, f"computed {result_of(program)}, not {native['sha256']}")
            else:
                self.counts["ended well"] += 1
                self.longest = max(self.longest, span / native["seconds"])
                news = complaints(program) - native["says"]
                if news:
                    self.counts["said what it does not say natively"] += 1
                    self.said.update(news)
            self.drop(program)

    def where(self, program):
        """What the scheduler knows of a program that hangs, what its threads wait in, and where its Python stands."""
        known = [task for task in self.stage.ps().get("tasks", []) if task["pid"] == program.pid]
        threads = collections.Counter()
        for thread in glob.glob(f"/proc/{program.pid}/task/*"):
            try:
                with open(f"{thread}/comm") as name, open(f"{thread}/wchan") as waits_in:
                    threads[f"{name.read().strip()} in {waits_in.read()}"] += 1
            except OSError:
                pass
        os.kill(program.pid, signal.SIGABRT)
        time.sleep(1)
        return f"{json.dumps(known)} {dict(threads)} {program.stderr(4000)}"

    def drop(self, program):
        program.end(0.5)
        self.running.remove(program)

    def set(self, program, *what):
        # It may not have joined yet, or have ended: that is its right.
        done = self.stage.tool("set", *what, str(program.pid), check=False)
        self.counts["set" if done.returncode == 0 else "set, but not there"] += 1

    def happen(self):
        """One thing, at random."""
        what = self.dice.random()
        victim = self.dice.choice(self.running) if self.running else None
        if what < 0.08:
            self.stage.kill_service()
            time.sleep(self.dice.choice([0, 0.1, 2.0]))
            # Whoever was started in between may have started one too.
            self.stage.start_service("--replace")
            self.counts["service killed and started again"] += 1
        elif what < 0.14:
            self.stage.tool("policy", self.dice.choice(POLICIES), check=False)
            self.counts["policy changed"] += 1
        elif victim is None or victim.process.poll() is not None:
            return
        elif what < 0.26:
            victim.killed = True
            os.killpg(victim.pid, signal.SIGKILL)
        elif what < 0.36:
            self.set(victim, "--suspend")
            victim.resume_at = time.monotonic() + self.dice.uniform(0.2, 2.0)
        else:
            self.set(victim, "--priority", str(self.dice.randint(-200, 200)))

    def go(self, seconds):
        began = last = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            self.look()
            while len(self.running) < TOGETHER:
                self.add()
            self.happen()
            if now - last > 30:
                last = now
                print(f"[{now - began:5.0f} s, {began + seconds - now:4.0f} s left] {dict(self.counts)}", flush=True)
            time.sleep(self.dice.uniform(0.2, 1.5))
        self.stage.tool("policy", "HPF", check=False)
        for program in self.running:
            self.set(program, "--resume")
            self.set(program, "--priority", "0")
            program.resume_at = None
        print("waiting for those that run", flush=True)
        while self.running:
            self.look()
            time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--xsched", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default=",".join(MIX))
    parser.add_argument("--out")
    args = parser.parse_args()
    end_on_signals()
    stage = Stage(args.xsched)
    print("natively, for comparison", flush=True)
    known = natively(stage, args.only.split(","))
    if not known:
        sys.exit("no program runs here, even without XSched")
    try:
        stage.start_service()
        found = levels(stage)
        # Somebody always wants the GPU: who stands still by mistake does not go on because the others have come to their end.
        company(stage)
    except Failure as error:
        sys.exit(f"cannot begin: {error}")
    if len(found) == 1:
        print("nothing can be scheduled at a level of its own here", flush=True)
    soak = Soak(stage, random.Random(args.seed), known, found)
    began, stopped = time.monotonic(), None
    try:
        soak.go(args.minutes * 60)
    except Failure as error:
        stopped = str(error)
    stage.close()
    summary = {"minutes": round((time.monotonic() - began) / 60, 1), "seed": args.seed,
               "levels": ["auto" if not level else level[1] for level in found], "counts": dict(soak.counts),
               "slowest_of_native": round(soak.longest, 1), "wrong": soak.wrong,
               "said_but_not_natively": dict(soak.said.most_common(50)), "stopped_early": stopped,
               "native_seconds": {name: native["seconds"] for name, native in known.items()},
               "left_behind": len(Program.alive)}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(summary, file, indent=1)
            file.write("\n")
    print(json.dumps(summary, indent=1))
    sys.exit(1 if soak.wrong or stopped or not soak.counts["ended well"] else 0)


if __name__ == "__main__":
    main()
