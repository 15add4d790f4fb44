"""Runs many programs under XSched for a long time, with changing hints and with kill -9 of programs and of the service.

  python3 bench/gpu/soak.py --xsched target/release/xsched --minutes 10 [--out FILE.json] [--seed 1]

Runs each program once without XSched and records its result, duration and error output. Then runs them concurrently under XSched in
random order, with random events. A program that was not killed must exit with status 0, with the same result, before its deadline. Error
output that occurs only under XSched is recorded.
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

from harness import Failure, Program, Environment, end_on_signals
from same_results import PROGRAMS, VARIABLES, start_competitors

MIX = ["resnet152", "bert", "graph", "training", "compile", "dataloader", "spawn", "cupy", "jax"]
POLICIES = ["HPF", "UP", "CFS", "MLFQ"]
CONCURRENT_PROGRAMS = 4


def start(environment, name, options):
    program = environment.start(name, [sys.executable, PROGRAMS, name], options, **VARIABLES, PYTHONFAULTHANDLER=1)
    program.began = time.monotonic()
    return program


def messages(program):
    """Its error output, without numbers that differ from run to run."""
    return {re.sub(r"0x[0-9a-f]+|\d+", "N", line).strip() for line in program.stderr(100_000).splitlines() if line.strip()}


def result_of(program):
    return next((event["sha256"] for event in program.received if event.get("event") == "sha256"), None)


def run_natively(environment, names):
    """Runs all at the same time, so that they are about as slow as later."""
    programs, known = {name: start(environment, name, None) for name in names}, {}
    for name, program in programs.items():
        try:
            program.expect("sha256", 240)
            status = program.process.wait(60)
            if status != 0:
                raise Failure(f"exited with {status}. {program.stderr()}")
            seconds = time.monotonic() - program.began
            known[name] = {"sha256": result_of(program), "seconds": round(seconds, 1), "messages": messages(program)}
            print(f"    {name}: {seconds:.1f} s", flush=True)
        except Exception as error:
            print(f"    {name} does not run natively and is skipped: {str(error)[:400]}", flush=True)
        program.end(1.0)
    return known


def levels(environment):
    """The preemption levels that this GPU supports, as options."""
    found = [[]]
    for level in (1, 2, 3):
        with environment.worker("load", options=["--level", str(level)]) as load:
            try:
                environment.wait_until_scheduled(load, level)
                found.append(["--level", str(level)])
            except Failure:
                pass
    return found


class Soak:
    def __init__(self, environment, rng, known, levels_):
        self.environment, self.rng, self.known, self.levels = environment, rng, known, levels_
        self.running, self.counts, self.failures = [], collections.Counter(), []
        self.longest, self.new_messages = 0.0, collections.Counter()

    def add(self):
        name = self.rng.choice(list(self.known))
        options = ["--priority", str(self.rng.randint(-200, 200)), *self.rng.choice(self.levels)]
        program = start(self.environment, name, options)
        program.options, program.killed, program.resume_at, program.rescued = options, False, None, False
        program.deadline = 60 + 10 * self.known[name]["seconds"]
        self.running.append(program)
        self.counts["programs started"] += 1

    def fail(self, program, why):
        print(f"    WRONG: {program.name} {program.options}: {why[:3000]}", flush=True)
        self.failures.append({"program": program.name, "options": program.options, "why": why[:6000]})

    def poll(self):
        """Checks programs that have exited, or should have."""
        now = time.monotonic()
        for program in list(self.running):
            span, status = now - program.began, program.process.poll()
            if status is None:
                if program.resume_at is not None and now >= program.resume_at:
                    self.set(program, "--resume")
                    program.resume_at = None
                # Strict priorities may starve it indefinitely, which is not an error, so its priority is raised in time.
                if span > program.deadline / 3 and now > (program.rescued or 0) + 5:
                    self.set(program, "--priority", "255")
                    program.rescued = now
                    self.counts["priorities raised for the deadline"] += 1
                if span > program.deadline:
                    self.fail(program, f"not complete within {program.deadline:.0f} s. {self.describe_hang(program)}")
                    self.counts["hung"] += 1
                    self.remove(program)
                continue
            native = self.known[program.name]
            if program.killed:
                self.counts["killed"] += 1
            elif status != 0:
                self.fail(program, f"exited with {status}. {program.stderr()}")
            elif result_of(program) != native["sha256"]:
                self.fail(program, f"computed {result_of(program)}, not {native['sha256']}")
            else:
                self.counts["completed"] += 1
                self.longest = max(self.longest, span / native["seconds"])
                new_messages = messages(program) - native["messages"]
                if new_messages:
                    self.counts["messages that do not occur natively"] += 1
                    self.new_messages.update(new_messages)
            self.remove(program)

    def describe_hang(self, program):
        """The scheduler's status of a program that hangs, what its threads wait in, and its Python stack."""
        known = [task for task in self.environment.ps().get("tasks", []) if task["pid"] == program.pid]
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

    def remove(self, program):
        program.end(0.5)
        self.running.remove(program)

    def set(self, program, *what):
        # It may not be registered yet, or may have exited.
        done = self.environment.tool("set", *what, str(program.pid), check=False)
        self.counts["set" if done.returncode == 0 else "set, but not scheduled"] += 1

    def inject_event(self):
        """One random event."""
        what = self.rng.random()
        victim = self.rng.choice(self.running) if self.running else None
        if what < 0.08:
            self.environment.kill_service()
            time.sleep(self.rng.choice([0, 0.1, 2.0]))
            # A program that was started in between may have started a service too.
            self.environment.start_service("--replace")
            self.counts["service killed and started again"] += 1
        elif what < 0.14:
            self.environment.tool("policy", self.rng.choice(POLICIES), check=False)
            self.counts["policy changed"] += 1
        elif victim is None or victim.process.poll() is not None:
            return
        elif what < 0.26:
            victim.killed = True
            os.killpg(victim.pid, signal.SIGKILL)
        elif what < 0.36:
            self.set(victim, "--suspend")
            victim.resume_at = time.monotonic() + self.rng.uniform(0.2, 2.0)
        else:
            self.set(victim, "--priority", str(self.rng.randint(-200, 200)))

    def run(self, seconds):
        began = last = time.monotonic()
        while (now := time.monotonic()) < began + seconds:
            self.poll()
            while len(self.running) < CONCURRENT_PROGRAMS:
                self.add()
            self.inject_event()
            if now - last > 30:
                last = now
                print(f"[{now - began:5.0f} s, {began + seconds - now:4.0f} s left] {dict(self.counts)}", flush=True)
            time.sleep(self.rng.uniform(0.2, 1.5))
        self.environment.tool("policy", "HPF", check=False)
        for program in self.running:
            self.set(program, "--resume")
            self.set(program, "--priority", "0")
            program.resume_at = None
        print("waiting for the running programs", flush=True)
        while self.running:
            self.poll()
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
    environment = Environment(args.xsched)
    print("running natively, for comparison", flush=True)
    known = run_natively(environment, args.only.split(","))
    if not known:
        sys.exit("no program runs here, even without XSched")
    try:
        environment.start_service()
        found = levels(environment)
        # With competitors the GPU is never idle: a program that is stalled by mistake does not resume just because all other programs have exited.
        start_competitors(environment)
    except Failure as error:
        sys.exit(f"cannot start: {error}")
    if len(found) == 1:
        print("no preemption level can be requested on this machine", flush=True)
    soak = Soak(environment, random.Random(args.seed), known, found)
    began, stopped = time.monotonic(), None
    try:
        soak.run(args.minutes * 60)
    except Failure as error:
        stopped = str(error)
    environment.close()
    summary = {"minutes": round((time.monotonic() - began) / 60, 1), "seed": args.seed,
               "levels": ["auto" if not level else level[1] for level in found], "counts": dict(soak.counts),
               "slowest_of_native": round(soak.longest, 1), "wrong": soak.failures,
               "said_but_not_natively": dict(soak.new_messages.most_common(50)), "stopped_early": stopped,
               "native_seconds": {name: native["seconds"] for name, native in known.items()},
               "left_behind": len(Program.alive)}
    if args.out:
        with open(args.out, "w") as file:
            json.dump(summary, file, indent=1)
            file.write("\n")
    print(json.dumps(summary, indent=1))
    sys.exit(1 if soak.failures or stopped or not soak.counts["completed"] else 0)


if __name__ == "__main__":
    main()
