"""The stages of the verification. Each is a function of the machine and its part of the time that returns metrics and a note, or
raises Failed, Slow or Skipped."""

import ctypes
import statistics
import subprocess

from .machine import Failed, Skipped, Slow, library_messages

# Functions that the library must export for a platform.
HOOKS = {
    "hip": ["hipLaunchKernel", "hipExtLaunchKernel", "hipModuleLaunchKernel", "hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel",
            "hipLaunchCooperativeKernel", "hipModuleLaunchCooperativeKernel", "hipLaunchCooperativeKernelMultiDevice",
            "hipLaunchKernelExC", "hipGraphLaunch", "hipStreamSynchronize", "hipStreamBeginCapture", "hipGetProcAddress",
            "rocprofiler_configure", "rocprofiler_set_api_table", "OnLoad", "OnUnload", "ioctl", "dlsym", "dlvsym"],
    "cuda": ["cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch", "cuStreamSynchronize",
             "cuGetProcAddress_v2", "ioctl", "dlsym"],
}
# A busy GPU whose clock is below this part of its highest clock is reported.
MIN_CLOCK = 0.6
HIGH, LOW = ["--priority", "high"], ["--priority", "low"]
# A program of high priority with idle gaps. Without gaps it would hold the background all the time.
LEADER = ["requests", 100_000, 6, 500, 20]


def percentile(values, percent):
    """A measured value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def spread(values):
    """The median of several measurements, with the least and the greatest."""
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


WINDOW_US = 1000


def level_of(machine):
    """The level that programs get on this machine."""
    if machine.level is None:
        program = machine.start("work", 600, 2, 500, run=LOW)
        try:
            machine.first_line(program)
            machine.level = min((queue["level"] for queue in machine.queues(program.pid)), default=0)
        finally:
            machine.stop(program)
    return machine.level


def max_ratio(machine, kernel_us, request_us):
    """The allowed ratio of the latency to the latency alone. A debug build is slower, above all on a busy machine. Below level 3
    a running kernel completes, and what is in the in-flight window."""
    ratio = 1.2 if machine.is_release else 1.6
    return ratio if level_of(machine) == 3 else round(ratio + (WINDOW_US + kernel_us) / request_us, 2)


def scaled(machine, part, full, quick):
    """The number of repetitions: fewer if the stage got only a part of its time, but at least those of a quick verification."""
    return max(min(quick, full), int((quick if machine.quick else full) * min(1.0, part)))


# Of so many requests two are above p99. Of fewer, p99 would be the slowest one, which one disturbance determines.
P99_MIN_REQUESTS = 200


def too_slow(machine, count, what, allowed, p50_ratio, p99_ratio):
    """What is slower than allowed. p99 counts on a device: on a simulated one it depends on the other load of the processors."""
    judged = {"p50": p50_ratio}
    if not machine.is_simulated and count >= P99_MIN_REQUESTS:
        judged["p99"] = p99_ratio
    return [f"{name} is {ratio} times that alone{what}, more than {allowed}" for name, ratio in judged.items() if ratio > allowed]


def p99_note(machine, count):
    """Says if p99 was reported only."""
    if machine.is_simulated:
        return "; p99 is not judged on a simulated device"
    return "" if count >= P99_MIN_REQUESTS else f"; p99 is not judged: it needs {P99_MIN_REQUESTS} requests, not {count}"


def build_and_symbols(machine, _part):
    for file in (machine.xsched, machine.library):
        if not file.exists():
            raise Failed(f"{file.name} does not exist beside the build: cargo build --release -p xsched -p xsched-lib")
    library = ctypes.CDLL(str(machine.library))
    names = HOOKS["cuda" if machine.platform == "cuda" else "hip"]
    missing = [name for name in names if not hasattr(library, name)]
    if missing:
        raise Failed(f"not exported: {', '.join(missing)}")
    return {"hooks_checked": len(names), "library_bytes": machine.library.stat().st_size}, ""


def interception(machine, _part):
    """How launches reach the scheduler, the level of the queues, and why it is not higher."""
    program = machine.start("work", 600, 2, 500, run=LOW, more={"XLOG_LEVEL": "INFO"})
    try:
        machine.first_line(program)
        queues = machine.queues(program.pid)
        clocks = machine.clocks()
    finally:
        program.kill()
        messages = library_messages(program.stderr.read())
        machine.stop(program)
    metrics = {"queues": len(queues), "level": min((queue["level"] for queue in queues), default=0),
               "by": next((text.rpartition(" by ")[2] for text in messages if "is scheduled by" in text), None),
               "why_not_higher": next((text for text in messages if "is scheduled at level" in text), None),
               "messages": messages[:20], "clocks_under_load": clocks}
    machine.level = metrics["level"] or None
    if not queues:
        raise Failed("launches do not reach the scheduler: the service knows no queue of the program", metrics,
                     "send the report; the messages in it say how far the library came")
    slow_clocks = [clock for clock in clocks if clock["clock_mhz"] < MIN_CLOCK * clock["max_clock_mhz"]]
    notes = [metrics["why_not_higher"] or "", *(f"a busy GPU runs at {clock['clock_mhz']} of {clock['max_clock_mhz']} MHz: it may be throttled" for clock in slow_clocks[:1])]
    return metrics, "; ".join(note for note in notes if note)


def api_coverage(machine, _part):
    direct, = machine.result("forms")
    scheduled, = machine.result("forms", run=HIGH)
    throttled, = machine.beside(LEADER, HIGH, ["forms"], LOW)
    wrong = [form for form in direct if not direct[form] == scheduled[form] == throttled[form]]
    if wrong:
        raise Failed("; ".join(f"{form}: {direct[form]}, {scheduled[form]}, {throttled[form]}" for form in wrong))
    right = sum(result == "right" for result in direct.values())
    if right == 0:
        raise Failed(f"no form works even without XSched: {direct}")
    others = [f"{form}: {result}" for form, result in direct.items() if result != "right"]
    return {"forms": len(direct), "right": right}, "; ".join(others)


def overhead(machine, part):
    batches = scaled(machine, part, 500, 50)
    # Alternate, because the load of the machine may change.
    native, scheduled = [], []
    for _ in range(3):
        native += machine.result("cost", batches)
        scheduled += machine.result("cost", batches, run=HIGH)
    metrics = {"native_ns": round(min(native), 1), "scheduled_ns": round(min(scheduled), 1),
               "native_all_ns": spread(native), "scheduled_all_ns": spread(scheduled)}
    metrics["more_ns"] = round(min(scheduled) - min(native), 1)
    if not machine.is_release:
        return metrics, "not compared: not a release build"
    if metrics["more_ns"] > 100:
        raise Slow("a launch costs more than 100 ns more", metrics)
    return metrics, "goal: at most 100 ns more, alone on the device; launches by Python, the fastest of many batches"


def corun(machine, part):
    """A service beside a batch: alone, as the device schedules them, and under XSched, interleaved."""
    rounds = 1 if machine.quick else max(2, int(5 * part))
    count = scaled(machine, part, P99_MIN_REQUESTS, 30 if machine.is_simulated else P99_MIN_REQUESTS)
    words, batch = ["requests", count, 8, 1000, 20], ["work", 600, 6, 2000]
    samples = {"alone": [], "native": [], "scheduled": []}
    for _ in range(rounds):
        samples["alone"].append(machine.result(*words))
        samples["native"].append(machine.beside(batch, None, words, None))
        samples["scheduled"].append(machine.beside(batch, LOW, words, HIGH))
    metrics = {"rounds": rounds, "requests_each": count}
    for name, all_rounds in samples.items():
        for percent in (50, 99):
            metrics[f"{name}_p{percent}_us"] = spread([percentile(values, percent) for values in all_rounds])
    for percent in (50, 99):
        for name in ("native", "scheduled"):
            ratios = [percentile(values, percent) / percentile(alone, percent) for values, alone in zip(samples[name], samples["alone"])]
            metrics[f"{name}_p{percent}_ratio"] = spread(ratios)
    ratios = (metrics[f"scheduled_p{percent}_ratio"]["median"] for percent in (50, 99))
    slow = too_slow(machine, count, "", max_ratio(machine, 2000, 8000), *ratios)
    if slow:
        raise Slow("; ".join(slow), metrics)
    return metrics, f"requests of 8 ms beside kernels of 2 ms; goal: p99 at most 1.2 times that alone at level 3{p99_note(machine, count)}"


def lengths(machine, part):
    count = scaled(machine, part, P99_MIN_REQUESTS, 30)
    words = ["requests", count, 8, 1000, 20]
    alone = machine.result(*words)
    metrics = {"alone_p50_us": percentile(alone, 50), "alone_p99_us": percentile(alone, 99)}
    slow = []
    for length_us in (100, 1000, 10_000, 100_000):
        values = machine.beside(["work", 600, 6, length_us], LOW, words, HIGH)
        for name, percent in (("p50", 50), ("p99", 99)):
            ratio = percentile(values, percent) / metrics[f"alone_{name}_us"]
            metrics[f"beside_{length_us}_us_{name}_ratio"] = round(ratio, 3)
        ratios = (metrics[f"beside_{length_us}_us_p{percent}_ratio"] for percent in (50, 99))
        slow += too_slow(machine, count, f" beside kernels of {length_us} us", max_ratio(machine, length_us, 8000), *ratios)
    if slow:
        raise Slow("; ".join(slow), metrics)
    return metrics, f"goal: 1.2 at level 3 for every kernel length of the batch{p99_note(machine, count)}"


def three_priorities(machine, part):
    seconds = 3 if machine.quick else max(4, int(10 * part))
    words = ["work", seconds, 6, 500]
    started = [machine.start(*words, run=["--priority", priority], more={"VERIFY_START": "1"}, stdin=subprocess.PIPE) for priority in (-10, 10, 30)]
    for process in started:
        machine.first_line(process)
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    low, middle, high = (machine.finish(process).values[-1] for process in started)
    metrics = {"rounds_low": low, "rounds_middle": middle, "rounds_high": high}
    if not high > 2 * middle or not high > 2 * low:
        raise Slow("the highest priority does not complete twice the rounds of each other one", metrics)
    return metrics, "all three begin together; the second priority gets the time that the first leaves, then the third"


def two_processes(machine, part):
    rounds = scaled(machine, part, 100, 20)
    words = ["rounds", rounds, 6, 500]
    started = [machine.start(*words, run=priority) for priority in (HIGH, LOW)]
    done = [machine.finish(process).values[-1] for process in started]
    if done != [rounds, rounds]:
        raise Failed(f"rounds of the two: {done}, not {rounds} each")
    return {"rounds_each": rounds}, "both complete all rounds"


def resets(machine, part):
    count = scaled(machine, part, 40, 10)
    machine.result("resets", count)
    machine.result("resets", count, run=HIGH)
    machine.beside(LEADER, HIGH, ["resets", count], LOW)
    return {"resets": count}, "alone, with high priority, and beside a program of high priority"


def results(machine, _part):
    """PyTorch's results without XSched, under it, and beside a program of higher and one of lower priority."""
    if machine.is_simulated:
        raise Skipped("PyTorch's kernels do not compute on the stand-in")
    direct, = machine.result("results")
    about = {name: direct.get(name) for name in ("torch", "hip", "cuda")}
    if "skipped" in direct:
        raise Skipped(direct["skipped"])
    again, = machine.result("results")
    runs = {
        "high priority, alone": machine.result("results", run=HIGH)[0],
        "low priority, beside a service": machine.beside(LEADER, HIGH, ["results"], LOW)[0],
        "high priority, beside a batch": machine.beside(["work", 600, 6, 2000], LOW, ["results"], HIGH)[0],
    }
    expected = direct["hashes"]
    varying = [name for name in expected if again["hashes"][name] != expected[name]]
    failing = [name for name, value in expected.items() if value.startswith("error: ")]
    metrics = {**about, "operations": len(expected), "identical": 0, "not_deterministic": varying,
               "failing_without_xsched": {name: expected[name] for name in failing}}
    different = []
    for name in (name for name in expected if name not in varying):
        bad = [run for run, found in runs.items() if found["hashes"][name] != expected[name]]
        different += [f"{name} ({run}: {runs[run]['hashes'][name]})" for run in bad]
        metrics["identical"] += not bad
    if different:
        raise Failed(f"different results: {'; '.join(different)}", metrics, "send the report: this must not happen")
    note = "bit for bit, with and without XSched"
    return metrics, f"{note}; varies even without XSched: {', '.join(varying)}" if varying else note


def runtimes(machine, _part):
    """Two copies of the runtime in one process."""
    if machine.platform == "cuda":
        raise Skipped("the CUDA driver exists once in a process")
    if machine.platform == "hip-rocr":
        raise Skipped("an unpacked system has one runtime; scripts/rocm-clients runs both")
    words = ["runtimes", *([machine.second_runtime] if machine.second_runtime else [])]
    try:
        direct, = machine.result(*words)
    except Failed as error:
        raise Skipped(f"two runtimes do not work in one process even without XSched: {error.args[0]}") from None
    if "skipped" in direct:
        raise Skipped(direct["skipped"])
    outcomes = [direct, machine.result(*words, run=HIGH)[0], machine.beside(LEADER, HIGH, words, LOW)[0]]
    if any(outcome["right"] != outcome["rounds"] for outcome in outcomes):
        raise Failed(f"wrong results of two runtimes in one process: {outcomes}", {"copies": direct["copies"]})
    return {"copies": direct["copies"], "rounds": direct["rounds"]}, "every call reached its caller's own runtime"


def collectives(machine, part):
    """All-reduce over all GPUs."""
    words = ["collectives", scaled(machine, part, 100, 20)]
    try:
        direct, = machine.result(*words)
    except Failed as error:
        raise Skipped(f"the collective does not work even without XSched: {error.args[0]}") from None
    if "skipped" in direct:
        raise Skipped(direct["skipped"])
    outcomes = [machine.result(*words, run=HIGH)[0], machine.beside(LEADER, HIGH, words, LOW)[0]]
    if any(outcome["right"] != outcome["checked"] for outcome in [direct, *outcomes]):
        raise Failed(f"wrong sums: {direct}, {outcomes}")
    return {"devices": direct["devices"], "rounds": direct["rounds"]}, "RCCL's kernels do not compute on the stand-in" if machine.is_simulated else "every sum was right"
