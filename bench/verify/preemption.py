"""The stages about preemption: its latency by level, the driver's part of it, and whether a held program runs anything."""

import ctypes
import subprocess

from reaction import REACTION_NS

from .machine import Failed, Skipped, Slow, library_messages
from .stages import HIGH, LOW, percentile, scaled

BUDGET_US = 1000
LEVELS = (1, 2, 3)


def latency_by_level(machine, part):
    """The time until one short kernel has run beside long ones: natively and at each level."""
    count = scaled(machine, part, 200, 30)
    lengths_us = (2000,) if machine.quick else (500, 2000, 10_000)
    words = ["requests", count, 1, 100, 5]
    alone = machine.result(*words)
    alone_p50 = percentile(alone, 50)
    metrics = {"alone_p50_us": alone_p50, "alone_p99_us": percentile(alone, 99), "lengths_us": list(lengths_us), "levels": {}}
    slow = []
    for length_us in lengths_us:
        batch = ["work", 600, 12, length_us]
        values = machine.beside(batch, None, words, None)
        metrics[f"native_beside_{length_us}_us"] = figures(values, alone_p50)
        for level in LEVELS:
            row = metrics["levels"].setdefault(str(level), {})
            if row.get("unavailable"):
                continue
            background = machine.start(*batch, run=[*LOW, "--level", level, "--budget", f"{BUDGET_US}us"], more={"XLOG_LEVEL": "WARN"})
            try:
                machine.first_line(background)
                queues = machine.queues(background.pid)
                reached = min((queue["level"] for queue in queues), default=0)
                if reached != level:
                    background.kill()
                    row["unavailable"] = why_not(library_messages(background.stderr.read()), level, reached)
                    continue
                row[f"beside_{length_us}_us"] = figures(machine.result(*words, run=HIGH), alone_p50)
            finally:
                machine.stop(background)
            if level == 1 and row[f"beside_{length_us}_us"]["added_p50_us"] > BUDGET_US + length_us + alone_p50 + 1000:
                slow.append(f"level 1 takes longer than its window and one kernel, {BUDGET_US + length_us} us")
    available = [int(level) for level, row in metrics["levels"].items() if not row.get("unavailable")]
    metrics["highest_level"] = max(available, default=0)
    if not available:
        raise Failed("no level works", metrics)
    if slow:
        raise Slow("; ".join(slow), metrics)
    missing = [f"level {level}: {row['unavailable']}" for level, row in metrics["levels"].items() if row.get("unavailable")]
    return metrics, "; ".join(["one kernel of 100 us beside a batch of longer kernels", *missing])


def figures(values, alone_p50):
    """The latency, and what it adds to the latency alone."""
    p50, p99 = percentile(values, 50), percentile(values, 99)
    return {"p50_us": p50, "p99_us": p99, "added_p50_us": p50 - alone_p50, "added_p99_us": p99 - alone_p50}


def why_not(messages, level, reached):
    """The library's reason why a queue has not the level that was requested."""
    for text in messages:
        if f"not {level}" in text or "is scheduled at level" in text or "level" in text:
            return text
    return f"the queues are at level {reached}"


def driver_latency(machine, part):
    """How long the calls take that stop and resume the queues of a running kernel."""
    count = scaled(machine, part, 100, 20)
    # On CUDA the library gives the device 10 ms to reach a stop point before it disables the channels: a shorter kernel completes.
    length_us = 40_000 if machine.platform == "cuda" else 2000
    metrics = {}
    for level in (3, 2):
        try:
            times, = machine.result("suspend", machine.library, level, count, length_us, run=LOW)
        except Failed as error:
            metrics[f"level_{level}_unavailable"] = str(error.args[0])[-200:]
            continue
        metrics["level"] = level
        for name in ("suspend_us", "resume_us"):
            metrics[name] = {"p50": percentile(times[name], 50), "p99": percentile(times[name], 99), "max": max(times[name])}
        metrics |= {"count": count, "stopped": times["stopped"], "resumed": times["resumed"]}
        # At level 2 a running kernel may complete.
        if (times["stopped"] < count and level == 3) or times["resumed"] < count:
            raise Failed(f"of {count} suspended kernels {times['stopped']} were stopped, {times['resumed']} completed after they were resumed", metrics)
        return metrics, f"a running kernel of {length_us / 1000:.0f} ms is suspended for {length_us / 500:.0f} ms; the times are those of XQueueSuspend and XQueueResume"
    raise Skipped(f"levels 2 and 3 are not available: {metrics.get('level_3_unavailable', '')}")


# The background's operations, each waited for, so that at most one is in flight: its size, and the hook without which the library
# does not hold it.
KINDS = {"kernel": (300, None), "memset": (64 << 20, ("hipMemsetAsync", "cuMemsetD8Async")),
         "copy": (64 << 20, ("hipMemcpyAsync", "cuMemcpyDtoDAsync_v2"))}


def exclusive(machine, part):
    """Operations of a program of low priority that complete while one of high priority has work: none, after the first."""
    library = ctypes.CDLL(str(machine.library))
    count = scaled(machine, part, 30, 5)
    metrics, bad, notes = {"requests_each": count}, [], []
    for kind, (length, hook) in KINDS.items():
        if machine.is_simulated and kind != "kernel":
            length //= 1024  # The processor does it.
        native = overlapping(machine, kind, length, count, None, None)
        scheduled = overlapping(machine, kind, length, count, LOW, HIGH)
        metrics[kind] = {"native": native, "scheduled": scheduled}
        if hook and not hasattr(library, hook[0 if machine.is_hip else 1]):
            notes.append(f"{kind}: not held by this version")
        elif native["operations"] == 0 and kind != "kernel":
            notes.append(f"{kind}: none completed beside the service even without XSched")
        elif scheduled["operations"] > allowed(machine, count):
            bad.append(f"{scheduled['operations']} operations ({kind}) of the held program completed, {native['operations']} without XSched")
    if bad:
        raise Slow("; ".join(bad), metrics)
    return metrics, "; ".join([f"operations that complete later than {REACTION_NS / 1e6:.0f} ms after the first launch of a request of 100 ms", *notes])


def allowed(machine, requests):
    """How many operations may complete. One is in flight when a request begins, because each is waited for. A simulated device shares the
    processors with the programs, so the program may notice late that it completed: one for each request. On a device: none."""
    return requests if machine.is_simulated else 0


def overlapping(machine, kind, length, count, low, high):
    """How many operations of the background completed while a request ran, and how many in all."""
    background = machine.start("steady", kind, length, run=low, stdin=subprocess.PIPE)
    try:
        machine.first_line(background)
        requests = machine.result("busy", count, 50, 2000, 150, run=high)
        background.stdin.write("\n")
        background.stdin.flush()
        completed = machine.finish(background).values[-1]
    finally:
        machine.stop(background)
    during = sum(1 for time in completed for begin, end in requests if begin + REACTION_NS < time <= end)
    return {"operations": during, "all": len(completed), "requests": len(requests)}
