"""The sections of `run.py`. Each fills its part of the results scenario by scenario, so that partial results are kept."""
import os
import signal
import subprocess
import time
from statistics import fmean as mean

from harness import Failure, Missing, median, rates, steps_of_load

# The options of a program, and the preemption level that it must then have.
LEVELS = {"xsched level 1": (["--level", "1"], 1), "xsched level 2": (["--level", "2"], 2),
          "xsched level 3": (["--level", "3"], 3), "xsched auto": ([], None)}
# Seconds from the import of PyTorch to the first request, and from the start of a gpu-worker to its first kernel.
PREPARE, START = 7, 1.5
PERIOD_MS = 13.0
TRAINING = "resnet50-training"


def options(setting, priority):
    return None if setting not in LEVELS else ["--priority", priority, *LEVELS[setting][0]]


class ProgramPool:
    """Programs that have imported their modules, all at the same time, because importing takes longest."""

    def __init__(self, environment, budget):
        self.environment, self.budget, self.members, self.versions = environment, budget, {}, {}

    def start(self, needed):
        """`needed`: name of the member -> (program, options, variables)."""
        needed = list(needed.items())
        for first in range(0, len(needed), 16):
            part = needed[first:first + 16]
            self.budget.log(f"importing PyTorch in {len(part)} programs ({first + len(part)} of {len(needed)})")
            for member, (program, options, variables) in part:
                self.members[member] = self.environment.python(program, options, **variables)
            for member, _ in part:
                try:
                    self.versions = self.members[member].expect("imported", 90)
                except Failure as error:
                    # Reported again by the scenario that needs the program.
                    print(f"    {member}: {str(error)[:300]}", flush=True)

    def prepare(self, *members):
        """Builds the models of these programs at the same time."""
        programs = [self.members.pop(member) for member in members]
        try:
            for program in programs:
                program.send(do="prepare")
            for program in programs:
                program.expect("ready", 60)
        except Failure:
            for program in programs:
                program.end(0.5)
            raise
        return programs

    def end(self, *prefixes):
        for member in [m for m in self.members if m.startswith(prefixes)]:
            self.members.pop(member).end(0.5)


def serve(program, requests, period_ms=PERIOD_MS):
    program.send(do="serve", requests=requests, period_ms=period_ms)
    return program.expect("result", 30 + requests * max(period_ms, 40) / 1e3)


def stop(program):
    """Stops a program that iterates; returns its progress."""
    program.send(do="stop")
    ends = program.expect("stopped", 30)["ends"]
    return [(at, done) for done, at in enumerate(ends)]


def scenario_figures(result):
    return {key: value for key, value in result.items() if key not in ("event", "begin", "end", "mode")}


def show(scenario, alone=None, background=None):
    """Prints one line of the table."""
    ratio = f"{scenario['p99_ms'] / alone['p99_ms']:5.2f} x alone" if alone else ""
    rest = ""
    if scenario.get("background_it_per_s"):
        rate = mean(scenario["background_it_per_s"])
        rest = f"   background {rate:7.2f} it/s" + (f", {100 * rate / background:.0f} %" if background else "")
    print(f"    p50 {scenario['p50_ms']:7.3f}  p99 {scenario['p99_ms']:7.3f}  max {scenario['max_ms']:7.3f} ms  {ratio}{rest}",
          flush=True)


# ---------------------------------------------------------------- table

def table_programs(directory):
    mps = {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(directory, "mps"),
           "CUDA_MPS_LOG_DIRECTORY": os.path.join(directory, "mps-log")}
    programs = {"table native high": ("resnet152-graph", None, {}), "table native low": (TRAINING, None, {}),
            "table mps high": ("resnet152-graph", None, {**mps, "CUDA_MPS_CLIENT_PRIORITY": 0}),
            "table mps low": (TRAINING, None, {**mps, "CUDA_MPS_CLIENT_PRIORITY": 1}),
            "table streams": ("streams", None, {})}
    for setting in LEVELS:
        programs[f"table {setting} high"] = ("resnet152-graph", options(setting, "high"), {})
        programs[f"table {setting} low"] = (TRAINING, options(setting, "low"), {})
    return programs


class Mps:
    """NVIDIA's MPS service, for the duration of one scenario."""

    def __init__(self, directory):
        self.environment = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=os.path.join(directory, "mps"),
                                CUDA_MPS_LOG_DIRECTORY=os.path.join(directory, "mps-log"))

    def __enter__(self):
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
            os.makedirs(self.environment[name], exist_ok=True)
        try:
            done = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=self.environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=20)
        except FileNotFoundError:
            raise Missing("nvidia-cuda-mps-control is not installed") from None
        if done.returncode != 0:
            raise Missing(f"nvidia-cuda-mps-control ended with {done.returncode}: {done.stderr.strip()}")

    def __exit__(self, *_):
        try:
            subprocess.run(["nvidia-cuda-mps-control"], env=self.environment, input="quit -t 2\n", text=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=20)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"    MPS did not quit: {error}", flush=True)
        try:
            with open(os.path.join(self.environment["CUDA_MPS_PIPE_DIRECTORY"], "nvidia-cuda-mps-control.pid")) as file:
                os.kill(int(file.read()), signal.SIGTERM)
        except (OSError, ValueError):
            # It has removed its file, as it should.
            pass


def table(environment, budget, pool, out, quick):
    requests = 120 if quick else 350
    out.update(foreground=f"ResNet-152 fp16 batch 1 as a CUDA graph, a request every {PERIOD_MS:.0f} ms, {requests} requests",
               background="ResNet-50 bf16 training, batch 64", scenes={})
    scenarios, seconds = out["scenes"], requests * PERIOD_MS / 1e3

    def baseline(what):
        return scenarios.get("alone") if what == "alone" else out.get("background_alone_it_per_s", {}).get("native")

    def compare(name, scenario, steps, window):
        if steps:
            scenario["background_it_per_s"] = rates(steps, *window)
        alone = baseline("alone")
        scenario["same_output_as_alone"] = bool(alone) and scenario["checksum"] == alone["checksum"]
        scenarios[name] = scenario
        show(scenario, alone, mean(baseline("background")) if baseline("background") else None)

    def beside(name, high, low):
        low.send(do="start")
        time.sleep(1.5)
        result = serve(high, requests)
        compare(name, scenario_figures(result), stop(low), (result["begin"], result["end"]))

    def native():
        high, low = pool.prepare("table native high", "table native low")
        with high, low:
            scenarios["alone"] = scenario_figures(serve(high, requests))
            scenarios["alone"]["same_output_as_alone"] = True
            show(scenarios["alone"])
            begin = time.monotonic() + 0.5
            low.send(do="start")
            time.sleep(2.0 if quick else 3.5)
            alone = rates(stop(low), begin, time.monotonic() - 0.1)
            out["background_alone_it_per_s"] = {"native": alone}
            print(f"    background alone {mean(alone):.2f} it/s", flush=True)
            beside("native", high, low)

    def mps():
        with Mps(environment.directory):
            high, low = pool.prepare("table mps high", "table mps low")
            with high, low:
                beside("mps", high, low)

    def streams():
        (both,) = pool.prepare("table streams")
        with both:
            beside("stream priorities", both, both)

    def under_xsched(setting):
        high, low = pool.prepare(f"table {setting} high", f"table {setting} low")
        with high, low:
            levels = [environment.wait_until_scheduled(program, LEVELS[setting][1]) for program in (high, low)]
            beside(setting, high, low)
            scenarios[setting]["level"] = min(levels)
            if setting == "xsched auto":
                result = serve(high, requests // 2)
                scenarios["alone under xsched"] = scenario_figures(result)

    budget.run("table: alone, and as the GPU schedules them", PREPARE + 2 * seconds + 6, native)
    for setting in ("xsched auto", "xsched level 1", "xsched level 2"):
        budget.run(f"table: {setting}", PREPARE + seconds + 2, under_xsched, setting)
    budget.run("table: MPS with client priorities", PREPARE + seconds + 6, mps)
    budget.run("table: stream priorities", PREPARE + seconds + 2, streams)
    budget.run("table: xsched level 3", PREPARE + seconds + 2, under_xsched, "xsched level 3")
    pool.end("table")


# ---------------------------------------------------------------- kernels of a chosen length

def kernels_beside(environment, setting, kernels, length_us, requests, period_ms, more=("--length-us", 20)):
    """One service of short kernels beside a load with kernels of `length_us`, or alone if that is None."""
    arguments = ["--kernels", kernels, "--requests", requests, "--period-ms", period_ms, *more]

    def measure():
        with environment.worker("latency", *arguments, options=options(setting, "high")) as worker:
            return worker.result(30 + requests * 0.06)

    if length_us is None:
        return scenario_figures(measure())
    load_arguments = ["--length-us", length_us, "--report-ms", 100]
    with environment.worker("load", *load_arguments, options=options(setting, "low")) as load:
        load.expect(lambda event: event.get("kernels", 0) > 0, 20)
        level = environment.wait_until_scheduled(load, LEVELS[setting][1]) if setting in LEVELS else None
        result = measure()
        time.sleep(0.15)
        scenario = scenario_figures(result)
        rates_of_load = rates(steps_of_load(load), result["begin"], result["end"], 2)
        scenario["background_gpu_utilization"] = [round(rate * length_us / 1e6, 4) for rate in rates_of_load]
        if level is not None:
            scenario["level"] = level
        return scenario


def micro(environment, budget, pool, out, quick):
    requests = 80 if quick else 160
    rows = {"hundred": (100, 10, (20,), "100 kernels of 20 us beside kernels of 2 ms"),
            "one": (1, 8, (20,), "one kernel of 20 us beside kernels of 2 ms"),
            "pieces": (12, 15, (250, "--wait-each"), "12 kernels of 250 us, each waited for, beside kernels of 2 ms")}
    for row, (kernels, period_ms, more, what) in rows.items():
        part = out.setdefault(row, {"what": what, "scenes": {}})["scenes"]
        # Level 3 is what auto selects where the device supports it.
        for setting in ("alone", "native", "xsched level 1", "xsched level 2", "xsched auto"):
            length = None if setting == "alone" else 2000
            took = 2 * START + requests * period_ms * 1.2 / 1e3
            scenario = budget.run(f"table: {what}: {setting}", took, kernels_beside, environment, setting, kernels, length,
                                requests, period_ms, ("--length-us", *more))
            if scenario:
                part[setting] = scenario
                show(scenario, part.get("alone"))


def latency(environment, budget, pool, out, quick):
    requests = 80 if quick else 200
    lengths = (0.1, 1, 10) if quick else (0.1, 0.3, 1, 3, 10)
    out.update(what="one kernel of 20 us, beside kernels of a given length", lengths_ms=list(lengths), settings={})
    out["alone"] = budget.run("latency: alone", 3, kernels_beside, environment, "alone", 1, None, requests, 5)
    # Lengths in the outer loop: if the time runs out, every setting has the same lengths.
    for length in lengths:
        for setting in ("native", "xsched auto", "xsched level 1", "xsched level 2"):
            scenario = budget.run(f"latency: kernels of {length} ms: {setting}", 2 * START + requests * 0.006,
                                kernels_beside, environment, setting, 1, length * 1000, requests, 5)
            if scenario:
                out["settings"].setdefault(setting, {})[str(length)] = scenario
                show(scenario, out["alone"])


# ---------------------------------------------------------------- overhead

# Batches that keep the GPU busy: smaller ones measure Python, whose speed differs by a third from process to process. On a slow
# host these do too, so each is measured in two processes per side.
OVERHEAD_MODELS = {"resnet152-64": ("ResNet-152 fp16 batch 64, eager", 2), "bert-large-64": ("BERT-large fp16 batch 64, eager", 2),
                   "decoder": ("GPT-2 fp16, 16 tokens one by one, eager", 2)}


def overhead_programs(_):
    return {f"overhead {model} {side} {n}": (model, [] if side == "xsched" else None, {})
            for model, (_, processes) in OVERHEAD_MODELS.items() for n in range(processes) for side in ("native", "xsched")}


def spread(values, digits=4):
    return {"n": len(values), "median": round(median(values), digits), "low": round(min(values), digits),
            "high": round(max(values), digits)}


def overhead(environment, budget, pool, out, quick):
    pairs, lengths = (2 if quick else 4), "0,3,10,50"

    def launches():
        runs = {"native": [], "xsched": []}
        for pair in range(pairs):
            # Alternates the order, so that drift affects both sides equally.
            for side in (("native", "xsched"), ("xsched", "native"))[pair % 2]:
                arguments = ["--length-us", lengths, "--launches", 1000, "--repeat", 7 if quick else 15]
                with environment.worker("launch-cost", *arguments, options=[] if side == "xsched" else None) as worker:
                    runs[side].append(worker.result(60)["lengths"])
        rows = {}
        for index, row in enumerate(runs["native"][0]):
            cell = {}
            for what in ("host_us", "end_to_end_us"):
                native = [run[index][what]["median"] for run in runs["native"]]
                scheduled = [run[index][what]["median"] for run in runs["xsched"]]
                cell[what] = {"native": spread(native), "xsched": spread(scheduled),
                              "ratio": spread([x / n for x, n in zip(scheduled, native)])}
            rows[f"{row['length_us']:g}"] = cell
            print(f"    kernels of {row['length_us']:4g} us: " + ", ".join(
                f"{what} {cell[what]['native']['median']:.2f} -> {cell[what]['xsched']['median']:.2f} "
                f"(x {cell[what]['ratio']['median']:.3f}, {cell[what]['ratio']['low']:.3f} to "
                f"{cell[what]['ratio']['high']:.3f})" for what in cell), flush=True)
        out["launches"] = rows

    def model(name):
        what, processes = OVERHEAD_MODELS[name]
        times, ratios, sums = {"native": [], "xsched": []}, [], set()
        for n in range(processes):
            native, scheduled = pool.prepare(f"overhead {name} native {n}", f"overhead {name} xsched {n}")
            with native, scheduled:
                for round_ in range(2 if quick else 4):
                    pair, medians = [("native", native), ("xsched", scheduled)], {}
                    for side, program in pair if round_ % 2 == 0 else reversed(pair):
                        program.send(do="iterate", seconds=0.8)
                        result = program.expect("result", 60)
                        medians[side] = result["p50_ms"]
                        times[side].append(result["p50_ms"])
                        sums.add(result["checksum"])
                    ratios.append(medians["xsched"] / medians["native"])
        cell = {"what": what, "processes": processes, "native_ms": spread(times["native"]),
                "xsched_ms": spread(times["xsched"]), "same_output": len(sums) == 1, "ratio": spread(ratios)}
        out.setdefault("models", {})[name] = cell
        print(f"    {cell['native_ms']['median']:.3f} -> {cell['xsched_ms']['median']:.3f} ms per iteration "
              f"(x {cell['ratio']['median']:.4f}, {cell['ratio']['low']:.4f} to {cell['ratio']['high']:.4f})", flush=True)

    budget.run("overhead: launches", pairs * 2 * 3, launches)
    for name, (what, processes) in OVERHEAD_MODELS.items():
        budget.run(f"overhead: {what}", processes * (PREPARE + (4 if quick else 7)), model, name)
    pool.end("overhead")


# ---------------------------------------------------------------- shares

def shares(environment, budget, pool, out, quick):
    cases = {"10:90": [(10, 500), (90, 500)], "75:25": [(75, 500), (25, 500)],
             "60:30:10": [(60, 500), (30, 500), (10, 500)], "50:50, kernels of 0.2 and 3 ms": [(50, 200), (50, 3000)]}
    span = 2.0 if quick else 4.0
    out.update(policy="UP", what="gpu-worker loads, kernels of 0.5 ms unless stated otherwise", cases={})

    def run_together(loads, options_of):
        programs = []
        try:
            for share, length in loads:
                arguments = ["--length-us", length, "--report-ms", 100]
                programs.append(environment.worker("load", *arguments, options=options_of(share)))
            for program in programs:
                program.expect(lambda event: event.get("kernels", 0) > 0, 30)
            if options_of(1) is not None:
                for program in programs:
                    environment.wait_until_scheduled(program, None)
            begin = time.monotonic() + 0.7
            time.sleep(0.7 + span + 0.25)
            # GPU time of each, per half.
            return [[rate * length / 1e6 for rate in rates(steps_of_load(program), begin, begin + span, 2)]
                    for program, (_, length) in zip(programs, loads)]
        finally:
            for program in programs:
                program.end(1.0)

    def case(name):
        gpu_time = run_together(cases[name], lambda share: ["--share", str(share)])
        halves = [[part / max(sum(parts), 1e-9) * 100 for part in parts] for parts in zip(*gpu_time)]
        measured = [sum(half[n] for half in halves) / len(halves) for n in range(len(gpu_time))]
        requested = [share for share, _ in cases[name]]
        total = sum(sum(parts) / len(parts) for parts in gpu_time)
        alone = out.get("alone_gpu_utilization")
        out["cases"][name] = {
            "requested": requested, "measured": [round(part, 2) for part in measured],
            "measured_in_halves": [[round(part, 2) for part in half] for half in halves],
            "error_points": round(max(abs(m - r) for m, r in zip(measured, requested)), 2),
            "gpu_utilization_of_all": round(total, 4), "throughput_of_alone": round(total / alone, 4) if alone else None}
        print(f"    requested {requested}, measured {[round(m, 1) for m in measured]}, total utilization {total:.3f}", flush=True)

    def alone():
        parts = run_together([(100, 500)], lambda _: None)[0]
        out["alone_gpu_utilization"] = round(sum(parts) / len(parts), 4)

    budget.run("shares: one load alone", span + 3, alone)
    try:
        environment.tool("policy", "UP")
        for name in cases:
            budget.run(f"shares: {name}", span + 4, case, name)
    finally:
        environment.tool("policy", "HPF", check=False)


# ---------------------------------------------------------------- backgrounds

MAX_BACKGROUNDS = 4


def backgrounds_programs(_):
    programs = {}
    for setting in ("native", "xsched auto"):
        programs[f"backgrounds {setting} high"] = ("resnet152-graph", options(setting, "high"), {})
        for n in range(MAX_BACKGROUNDS):
            programs[f"backgrounds {setting} low {n}"] = (TRAINING, options(setting, "low"), {})
    return programs


def backgrounds(environment, budget, pool, out, quick):
    requests = 100 if quick else 300
    out.update(foreground="ResNet-152 fp16 batch 1 as a CUDA graph", background="ResNet-50 bf16 training, batch 64, each",
               settings={})

    def setting_(setting):
        names = [f"backgrounds {setting} low {n}" for n in range(MAX_BACKGROUNDS)]
        high, *lows = pool.prepare(f"backgrounds {setting} high", *names)
        try:
            part, windows = {}, {}
            if setting == "native":
                out["alone"] = scenario_figures(serve(high, requests))
                show(out["alone"])
            begin = time.monotonic() + 0.5
            lows[0].send(do="start")
            time.sleep(2.5)
            windows[1] = (begin, time.monotonic())
            for count in (2, MAX_BACKGROUNDS):
                for low in lows[1 if count == 2 else 2:count]:
                    low.send(do="start")
                time.sleep(1.0)
                result = serve(high, requests)
                part[str(count)] = scenario_figures(result)
                windows[count] = (result["begin"], result["end"])
                show(part[str(count)], out.get("alone"))
            out["settings"][setting] = part
            steps = [stop(low) for low in lows]
            if setting == "native":
                out["background_alone_it_per_s"] = rates(steps[0], *windows[1])
            alone = mean(out["background_alone_it_per_s"]) if "background_alone_it_per_s" in out else None
            for count in (2, MAX_BACKGROUNDS):
                each = [round(mean(rates(steps[n], *windows[count])), 3) for n in range(count)]
                part[str(count)]["background_it_per_s_each"] = each
                part[str(count)]["background_sum_of_alone"] = round(sum(each) / alone, 4) if alone else None
                print(f"    {count} backgrounds: {each} it/s", flush=True)
        finally:
            for program in (high, *lows):
                program.end(2.0)

    for setting in ("native", "xsched auto"):
        budget.run(f"backgrounds: {setting}", PREPARE + 8 + 2.5 * requests * PERIOD_MS / 1e3, setting_, setting)
    pool.end("backgrounds")


# ---------------------------------------------------------------- other services

# Kind -> program -> its description, and the request period in milliseconds.
SERVICES = {
    "eager": {"resnet152-eager": ("ResNet-152 fp16 batch 32, eager", 70.0), "bert-large": ("BERT-large fp16 batch 16, eager", 60.0)},
    "tokens": {"tokens-graph": ("12 transformer layers as a CUDA graph, 20 tokens, each waited for", 40.0)},
}


def services(kind):
    """A section with the services of one kind beside training, and the programs that it needs."""
    models = SERVICES[kind]

    def programs_of(_):
        programs = {}
        for setting in ("native", "xsched auto"):
            programs[f"{kind} {setting} low"] = (TRAINING, options(setting, "low"), {})
            for model in models:
                programs[f"{kind} {setting} {model}"] = (model, options(setting, "high"), {})
        return programs

    def measure(environment, budget, pool, out, quick):
        requests = 30 if quick else 90

        def under(setting):
            low, *highs = pool.prepare(f"{kind} {setting} low", *(f"{kind} {setting} {model}" for model in models))
            try:
                for (model, (what, period)), high in zip(models.items(), highs):
                    part = out.setdefault(model, {"what": what, "scenes": {}})["scenes"]
                    # Alone in the same process: programs that launch from Python differ by a third from process to process.
                    alone = scenario_figures(serve(high, requests, period))
                    show(alone)
                    part.setdefault("alone", alone)
                    low.send(do="start")
                    time.sleep(1.0)
                    result = serve(high, requests, period)
                    part[setting] = {**scenario_figures(result), "own_alone": alone}
                    part[setting]["background_it_per_s"] = rates(stop(low), result["begin"], result["end"])
                    show(part[setting], alone)
            finally:
                for program in (low, *highs):
                    program.end(2.0)

        for setting in ("native", "xsched auto"):
            spans = sum(period for _, period in models.values()) * requests / 1e3 * 2
            budget.run(f"{kind}: {setting}", PREPARE + spans + 3, under, setting)
        pool.end(kind)

    return measure, ("table", kind), programs_of
