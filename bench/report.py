"""Generates the tables and figures of README.md and bench/README.md from the files in bench/results/.

  python3 bench/report.py            rewrites them
    python3 bench/report.py --check    fails if they do not match the files

Generated parts are enclosed in `<!-- figures:NAME -->` and `<!-- end -->`. Each section uses the newest file that contains it, preferably
one in which no measurement of the section failed; files of `run.py --quick` are ignored.
"""
import argparse
import glob
import json
import os
import re
import statistics
import sys

import figures

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGES = ["README.md", "README.zh-CN.md", "bench/README.md"]
# The words of the front pages.
ENGLISH = {
    "intro": "On an {gpu} with the stock driver, PyTorch serving ResNet-152 beside ResNet-50 training\n([how it was measured](bench/README.md)):",
    "columns": ("service p99", "training"), "alone": "alone", "native": "both, as the GPU schedules them", "mps": "both, under MPS with client priorities",
    "xsched auto": "both under XSched", "picture": "p99 of the service and speed of the training, by scheduler",
    "tokens": "Beside the same training, a service that generates 20 tokens one by one takes {alone} alone, {native} as the GPU schedules them\n"
              "and {scheduled} under XSched (p99).",
}
CHINESE = {
    "intro": "在使用原厂驱动的 {gpu} 上，PyTorch 一边提供 ResNet-152 推理服务，一边训练 ResNet-50（[测量方法](bench/README.md)）：",
    "columns": ("服务 p99", "训练"), "alone": "单独运行", "native": "二者同时，由 GPU 自行调度", "mps": "二者同时，使用 MPS 及客户端优先级",
    "xsched auto": "二者同时，使用 XSched", "picture": "服务的 p99 与训练速度，按调度方式",
    "tokens": "在同样的训练旁边，逐个生成 20 个 token 的服务单独运行时需要 {alone}，由 GPU 自行调度时 {native}，使用 XSched 时 {scheduled}（p99）。",
}
FIGURES = "docs/figures"
NAMES = {"alone": "alone", "alone under xsched": "alone, under XSched", "native": "as the GPU schedules them",
         "mps": "MPS, client priorities", "stream priorities": "stream priorities",
         "xsched level 1": "XSched, level 1", "xsched level 2": "XSched, level 2", "xsched level 3": "XSched, level 3",
         "xsched auto": "XSched"}
BUSY = {"alone": "alone", "native": "native", "xsched": "xsched auto"}
SHORT = {**NAMES, "xsched auto": "XSched (auto)"}
MODELS = {"resnet152-64": "ResNet-152, batch 64", "bert-large-64": "BERT-large, batch 64", "decoder": "GPT-2, 16 tokens"}


class Results:
    """The result files of GPUs, newest first, and those of AMD's real runtimes on the stand-ins by name."""

    def __init__(self, directory):
        self.files, self.hip_runtimes, self.named = [], [], {}
        for path in sorted(glob.glob(os.path.join(directory, "*.json"))):
            with open(path) as file:
                data = json.load(file)
            self.named[os.path.basename(path)] = data
            if os.path.basename(path).startswith("hip-runtime"):
                self.hip_runtimes.append((os.path.basename(path), data))
            if data.get("gpu") and not data.get("quick"):
                self.files.append((data.get("date", ""), os.path.basename(path), data))
        self.files.sort(reverse=True, key=lambda file: file[:2])

    def all(self, *keys):
        """The values at these nested keys, with their files: first those in which no measurement of the section failed."""
        found = []
        for _, name, data in self.files:
            part = data
            for key in keys:
                part = part.get(key) if isinstance(part, dict) else None
            if part:
                failed = any(error["what"].partition(":")[0] in keys for error in data.get("errors", []))
                found.append((failed, part, data, name))
        return [rest for _, *rest in sorted(found, key=lambda file: file[0])]

    def section(self, *keys):
        return next(iter(self.all(*keys)), (None, None, None))


def source(data, name, path="results/"):
    pytorch = f", PyTorch {data['pytorch'].split('+')[0]}" if data.get("pytorch") else ""
    return f"[{name}]({path}{name}); one {data['gpu']}, driver {data['driver']}, CUDA {data['cuda']}{pytorch}, {data['date']}"


def rows(*lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def head(*cells):
    return rows(cells, ["---"] * len(cells))


def times(scenario):
    return f"{scenario['p50_ms']:.2f} / {scenario['p99_ms']:.2f} / {scenario['max_ms']:.2f} ms"


def spread(cell, digits=2):
    return f"{cell['median']:.{digits}f} ({cell['low']:.{digits}f} to {cell['high']:.{digits}f})"


def mean(values):
    return statistics.fmean(values)


class Report:
    """The generated parts by name, and the figures by path."""

    def __init__(self, results):
        self.results, self.parts, self.pictures = results, {}, {}
        for name in ("comparison", "latency", "micro", "overhead", "shares", "backgrounds", "tokens"):
            lines = getattr(self, name)()
            only = "table" if name in ("comparison", "micro") else name
            self.parts[name] = lines or f"Not measured yet: `python3 bench/gpu/run.py --xsched PATH/TO/xsched --only {only}`."
        self.parts["busy-cpus"] = self.busy_cpus() or "Not measured yet: `python3 bench/gpu/busy_cpus.py --xsched PATH/TO/xsched`."
        self.parts["services"] = self.services() or "Not measured yet: `python3 bench/gpu/services.py --xsched PATH/TO/xsched`."
        self.parts["short"] = self.short() or "Not measured yet."
        self.parts["short-zh"] = self.short(CHINESE) or "尚未测量。"
        self.parts["hip-runtime"] = self.hip_runtime() or "Not measured yet: `python3 bench/hip_runtime.py`."
        self.parts["manners"] = self.manners() or "Not measured yet: `scripts/manners --cost --json bench/results/manners.json`."
        self.parts["fuzz"] = self.fuzz() or "Not measured yet: `scripts/fuzz 3600 1 bench/results/fuzz.json`."
        self.parts["rocm-clients"] = rocm_clients(self.results) or "Not run yet: `scripts/rocm-clients --json bench/results/rocm-clients.json`."
        self.parts["faults"] = self.faults() or "Not measured yet: `scripts/faults --output bench/results/faults.json`."

    def picture(self, name, svg, description):
        self.pictures[f"{FIGURES}/{name}.svg"] = svg
        return f"![{description}](../{FIGURES}/{name}.svg)"

    def table(self):
        table, data, name = self.results.section("table", "scenes")
        if not table or "alone" not in table:
            return None
        whole, _, _ = self.results.section("table")
        alone = whole.get("background_alone_it_per_s", {}).get("native")
        return table, mean(alone) if alone else None, whole, data, name

    def comparison(self):
        found = self.table()
        if not found:
            return None
        scenarios, background, whole, data, name = found
        alone = scenarios["alone"]
        lines, bars = [], []
        for scenario in (key for key in NAMES if key in scenarios):
            figure, low = scenarios[scenario], scenarios[scenario].get("background_it_per_s")
            part = mean(low) / background if low and background else None
            ratio = figure["p99_ms"] / alone["p99_ms"]
            speed = f"{background:.1f} it/s" if scenario == "alone" and background else ""
            if part is not None:
                speed = f"{mean(low):.1f} it/s, {part * 100:.0f} %"
            lines.append((SHORT[scenario], times(figure), f"{ratio:.2f}", speed))
            if not scenario.startswith("alone"):
                bars.append((NAMES[scenario], ratio, part))
        svg = figures.comparison("A service beside training, on one GPU",
                                 f"{whole['foreground'].split(',')[0]}, beside {whole['background'].split(';')[0]}. {data['gpu']}.", bars)
        same = [scenarios[scenario].get("same_output_as_alone") for scenario in scenarios if "same_output_as_alone" in scenarios[scenario]]
        checked = "The service's output is the same, bit for bit, in all of them.\n\n" if same and all(same) else ""
        if not all(same):
            checked = "**The service's output was not the same in all of them.**\n\n"
        return (f"{source(data, name)}.\nForeground: {whole['foreground']}. Background: {whole['background']}.\n\n"
                f"{head('', 'foreground p50 / p99 / max', 'p99 / alone', 'background')}\n{rows(*lines)}\n\n{checked}{self.other_runs(name)}"
                + self.picture("comparison", svg, "p99 of the service and speed of the training, by scheduler"))

    def other_runs(self, shown):
        """The same table of other runs, in one line each."""
        lines = []
        for scenarios, data, name in self.results.all("table", "scenes"):
            if name == shown or "alone" not in scenarios:
                continue
            alone = scenarios["alone"]["p99_ms"]
            cells = [f"{SHORT[key]} {scenarios[key]['p99_ms']:.2f} ms ({scenarios[key]['p99_ms'] / alone:.2f})"
                     for key in NAMES if key in scenarios and not key.startswith("alone")]
            lines.append(f"Another run, [{name}](results/{name}), p99: alone {alone:.2f} ms, {', '.join(cells)}.")
        return "".join(f"{line}\n\n" for line in lines)

    def short(self, words=ENGLISH):
        """The table of the front page, in the words of a language."""
        found = self.table()
        if not found:
            return None
        scenarios, background, whole, data, _ = found
        lines = [(words["alone"], f"{scenarios['alone']['p99_ms']:.2f} ms", f"{background:.1f} it/s" if background else "")]
        for scenario in ("native", "mps", "xsched auto"):
            if scenario in scenarios:
                rate = f"{mean(scenarios[scenario]['background_it_per_s']):.1f} it/s"
                lines.append((words[scenario], f"{scenarios[scenario]['p99_ms']:.2f} ms", rate))
        return (f"{words['intro'].format(gpu=data['gpu'])}\n\n{head('', *words['columns'])}\n{rows(*lines)}\n\n{self.tokens_in_short(words)}"
                f"![{words['picture']}]({FIGURES}/comparison.svg)")

    def tokens_in_short(self, words):
        part, _, _ = self.complete_services("tokens")
        if not part:
            return ""
        scenarios = part["tokens-graph"]["scenes"]
        alone, native, scheduled = (f"{scenarios[scenario]['p99_ms']:.1f} ms" for scenario in ("alone", "native", "xsched auto"))
        return words["tokens"].format(alone=alone, native=native, scheduled=scheduled) + "\n\n"

    def micro(self):
        part, data, name = self.results.section("table", "micro")
        if not part:
            return None
        lines = []
        for row in part.values():
            scenarios = row["scenes"]
            alone = scenarios.get("alone")
            for scenario, figure in scenarios.items():
                ratio = f"{figure['p99_ms'] / alone['p99_ms']:.2f}" if alone else ""
                utilization = figure.get("background_gpu_utilization", figure.get("background_gpu_share"))
                lines.append((row["what"], SHORT[scenario], f"{figure['p50_ms']:.3f} / {figure['p99_ms']:.3f} ms", ratio,
                              f"{100 * mean(utilization):.0f} %" if utilization else ""))
        return (f"{source(data, name)}.\n\n{head('', '', 'p50 / p99', 'p99 / alone', 'background: GPU utilization')}\n{rows(*lines)}")

    def latency(self):
        part, data, name = self.results.section("latency")
        if not part or not part.get("settings"):
            return None
        series, lines = {}, []
        for setting in (key for key in NAMES if key in part["settings"]):
            scenarios = part["settings"][setting]
            line = [(float(length), figure["p50_ms"], figure["p99_ms"]) for length, figure in scenarios.items()]
            series["without XSched" if setting == "native" else NAMES[setting]] = sorted(line)
            cells = [f"{scenarios[f'{length:g}']['p50_ms']:.2f} / {scenarios[f'{length:g}']['p99_ms']:.2f}" if f"{length:g}" in scenarios else ""
                     for length in part["lengths_ms"]]
            lines.append((SHORT[setting], *cells))
        alone = part["alone"]["p99_ms"] if part.get("alone") else None
        svg = figures.latency("Latency of one short kernel", f"One kernel of 20 us beside endless kernels of a given length: p99 solid, p50 dotted. {data['gpu']}.",
                              alone, series)
        lengths = [f"{length:g} ms" for length in part["lengths_ms"]]
        return (f"{source(data, name)}. One kernel of 20 us beside endless kernels of a given length, p50 / p99 in ms"
                f"{f'; alone p99 {alone:.3f} ms' if alone else ''}.\n\n{head('', *lengths)}\n{rows(*lines)}\n\n"
                + self.picture("latency", svg, "Latency of a short kernel by the length of the kernels beside it"))

    def overhead(self):
        part, data, name = self.results.section("overhead")
        if not part:
            return None
        lines, points = [], []

        def add(description, before, after, ratio, unit):
            lines.append((description, f"{before['median']:.2f} {unit}", f"{after['median']:.2f} {unit}",
                          f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"))
            points.append((description, ratio["median"], ratio["low"], ratio["high"]))

        for length, cell in part.get("launches", {}).items():
            description = "an empty kernel" if length == "0" else f"a kernel of {length} us"
            whole = cell["end_to_end_us"]
            add(description + ", launched back to back", whole["native"], whole["xsched"], whole["ratio"], "us")
        for model, cell in part.get("models", {}).items():
            add(MODELS.get(model, model) + ", one iteration", cell["native_ms"], cell["xsched_ms"], cell["ratio"], "ms")
        if not lines:
            return None
        svg = figures.overhead("The cost of scheduling for a program alone on the GPU", f"Time per kernel and per iteration, with and without `xsched run`. {data['gpu']}.", points)
        return (f"{source(data, name)}. Medians of several alternating runs; ratio with minimum and maximum.\n\n"
                f"{head('alone on the GPU', 'without', 'under XSched', 'ratio')}\n{rows(*lines)}\n\n"
                + self.picture("overhead", svg, "Cost of scheduling, alone on the GPU"))

    def shares(self):
        part, data, name = self.results.section("shares")
        if not part or not part.get("cases"):
            return None
        lines, cases = [], []
        for case, cell in part["cases"].items():
            throughput = cell.get("throughput_of_alone")
            measured, requested = cell.get("measured", cell.get("seen")), cell.get("requested", cell.get("wanted"))
            lines.append((case, " : ".join(f"{part:.1f}" for part in measured), f"{cell['error_points']:.1f} points",
                          f"{100 * throughput:.0f} %" if throughput else ""))
            cases.append((case, requested, measured, cell["error_points"]))
        svg = figures.shares("Shares of the GPU, requested and measured", f"Policy share (UP), equal kernels unless stated otherwise; GPU time in percent. {data['gpu']}.", cases)
        return (f"{source(data, name)}. Policy {part['policy']}; {part['what']}.\n\n"
                f"{head('requested', 'measured, percent of GPU time', 'largest error', 'total throughput / alone')}\n{rows(*lines)}\n\n"
                + self.picture("shares", svg, "Shares of GPU time, requested and measured"))

    def backgrounds(self):
        part, data, name = self.results.section("backgrounds")
        if not part or not part.get("settings"):
            return None
        alone, lines = part.get("alone"), []
        for setting, counts in part["settings"].items():
            for count, figure in counts.items():
                each = figure.get("background_it_per_s_each", [])
                total = figure.get("background_sum_of_alone")
                lines.append((f"{count} trainings, {SHORT[setting]}", times(figure),
                              f"{figure['p99_ms'] / alone['p99_ms']:.2f}" if alone else "",
                              " + ".join(f"{rate:.1f}" for rate in each) + (f" it/s, {100 * total:.0f} %" if total else "")))
        return (f"{source(data, name)}. {part['foreground']}, beside {part['background']}.\n\n"
                f"{head('', 'foreground p50 / p99 / max', 'p99 / alone', 'backgrounds, and their sum / one alone')}\n{rows(*lines)}")

    def busy_cpus(self):
        """Services beside training while other processes keep the CPUs busy, and decisions of the service."""
        part, data, name = self.results.section("busy_cpus")
        if not part:
            return None
        lines, counts = [], set()
        for scenario in (scenario for scenario in part.values() if "loads" in scenario):
            for load, cells in scenario["loads"].items():
                for setting, cell in cells.items():
                    background, requests = cell.get("background_it_per_s"), cell["all_requests"]
                    counts.add(len(cell["repetitions"]))
                    lines.append((scenario["what"], load, "time slices set once, no scheduler" if setting == "static" else SHORT[BUSY[setting]],
                                  f"{cell['p50_ms']['median']:.2f} / {cell['p90_ms']['median']:.2f}", spread(cell["p99_ms"]),
                                  f"{cell['p99_ms']['median'] / cells['alone']['p99_ms']['median']:.2f}", f"{requests['p99_ms']:.2f} of {requests['n']}",
                                  f"{spread(background, 1)} it/s" if background else ""))
        runs = {f"{run['date']}, xsched {run['xsched']}, driver {run['driver']}: `{run['command']}`" for run in data.get("runs", {}).values()}
        several = f" The scenarios are from {len(runs)} runs: {'; '.join(sorted(runs))}." if len(runs) > 1 else ""
        text = (f"{source(data, name)}, {data['cpus']} cores. Medians of {' or '.join(map(str, sorted(counts)))} interleaved repetitions, with the lowest and the highest, and the p99 of "
                f"the requests of all repetitions. The p99 of a repetition of fewer than 100 requests is its maximum.{several}\n\n"
                f"{head('', 'busy processes', '', 'p50 / p90 ms', 'p99 ms', 'p99 / alone', 'p99 ms, all requests', 'backgrounds, sum')}\n{rows(*lines)}")
        decisions = [(load, f"{cell['p50_us']:.0f}", f"{cell['p99_us']:.0f}", f"{cell['max_us']:.0f}")
                     for load, cell in part.get("decisions", {}).items()]
        if decisions:
            text += (f"\n\nTime from a leader's launch to the orders of eight other clients, in us:\n\n"
                     f"{head('busy processes', 'p50', 'p99', 'max')}\n{rows(*decisions)}")
        return text

    def complete_services(self, kind):
        def is_complete(found):
            return all({"native", "xsched auto"} <= model["scenes"].keys() for model in found[0].values())

        return next(filter(is_complete, self.results.all("table", kind)), (None, None, None))

    def tokens(self):
        part, data, name = self.complete_services("tokens")
        if not part:
            return None
        lines = []
        for model in part.values():
            for scenario, figure in model["scenes"].items():
                alone = figure.get("own_alone")
                low = figure.get("background_it_per_s")
                lines.append((model["what"], SHORT[scenario], times(figure),
                              f"{figure['p99_ms'] / alone['p99_ms']:.2f}" if alone else "", f"{mean(low):.1f} it/s" if low else ""))
        return f"{source(data, name)}. Alone: measured in the same process.\n\n{head('', '', 'p50 / p99 / max', 'p99 / alone', 'background')}\n{rows(*lines)}"

    def services(self):
        """Services beside trainings; those that are limited by their host are also measured alone in the process that XSched schedules."""
        part, data, name = self.results.section("services")
        if not part:
            return None
        lines = []
        for scenario in part.values():
            settings = scenario["settings"]
            for setting, cell in settings.items():
                alone = settings.get("alone under xsched", settings["alone"]) if setting == "xsched" else settings["alone"]
                training, native = cell.get("trainings_it_per_s"), settings["native"]["trainings_it_per_s"]["median"]
                beside = "".join(f"; {model} p99 {spread(other['p99_ms'])}" for model, other in cell["others"].items())
                requests = cell["all_requests"]
                ratios = " / ".join(f"{cell[key]['median'] / alone[key]['median']:.2f}" for key in ("p50_ms", "p99_ms"))
                lines.append((scenario["what"], SHORT[BUSY.get(setting, setting)], spread(cell["p50_ms"]), spread(cell["p99_ms"]) + beside,
                              "" if setting.startswith("alone") else ratios, f"{requests['p99_ms']:.2f} of {requests['n']}",
                              f"{spread(training)} it/s, {training['median'] / native:.2f}" if training else ""))
        return (f"{source(data, name)}, {data['cpus']} cores. Medians of interleaved repetitions, with the lowest and the highest. The p99 of a repetition of fewer than 100 requests is its "
                f"maximum. The ratios of XSched are to the same process alone, where that was measured.\n\n"
                f"{head('', '', 'p50 ms', 'p99 ms', 'p50 / p99, ratio to alone', 'p99 ms, all requests', 'trainings, and ratio to native')}\n{rows(*lines)}")

    def hip_runtime(self):
        """Figures of AMD's real runtimes, a column each."""
        files = self.results.hip_runtimes
        if not files:
            return None

        def span(values, unit="", digits=2, sign=""):
            low, high = f"{values['low']:{sign}.{digits}f}", f"{values['high']:{sign}.{digits}f}"
            return f"{values['median']:{sign}.{digits}f}{unit} ({low} to {high})"

        def row(what, goal, cell):
            lines.append((what, goal, *(cell(data) for _, data in files)))

        lines = []
        for kind, what in (("cpu", "CPU time of the launching thread, median of the batches"), ("cpu_min", "the same, cheapest batch"),
                           ("clock", "on the clock, median of the batches"), ("clock_min", "the same, cheapest batch")):
            goal = "100 ns" if kind == "cpu" else ""
            row(f"a launch, alone, more than the runtime's own: {what}", goal,
                lambda data, kind=kind: f"{span(data['launch_ns']['added'][kind], ' ns', 0, '+')} on {data['launch_ns']['without XSched'][kind]['median']:.0f} ns")
        for scenario in files[0][1]["latency"]:
            if scenario == "alone":
                row("a request alone, without XSched, p99", "",
                    lambda data: f"{span(data['latency']['alone']['p99_ms'], ' ms')}; p50 {data['latency']['alone']['p50_ms']['median']:.2f} ms")
                continue
            setting, beside = scenario.split(", ")
            what = f"{'without XSched' if setting == 'native' else setting}, {beside}"
            goals = {"level 3": "1.2", "level 2": "1.2"}

            def ratio(data, scenario=scenario):
                own, alone = (data["latency"][name] for name in (scenario, "alone"))
                return f"{span(own['p99_of_alone'])}; p50 {own['p50_ms']['median'] / alone['p50_ms']['median']:.2f}"
            row(f"p99 / alone, {what}", goals.get(setting, ""), ratio)
            row(f"slowest of the first {files[0][1]['warm_up']} requests, {what}", "",
                lambda data, scenario=scenario: span(data["latency"][scenario]["first_ms"], " ms"))
            if setting == "level 1":
                length = float(beside.split()[-2])
                row(f"p99 more than alone, {what}", f"{files[0][1]['budget_ms'] + length:g} ms: the window and one kernel",
                    lambda data, scenario=scenario: f"{span(data['latency'][scenario]['p99_added_ms'], ' ms')}; p50 "
                    f"{data['latency'][scenario]['p50_ms']['median'] - data['latency']['alone']['p50_ms']['median']:.2f} ms")
        for scenario in (name for name in files[0][1]["latency"] if name.startswith("level")):
            def cell(data, scenario=scenario):
                counts = data["latency"][scenario]["low_kernels"]
                return f"{counts['submitted_later']} launches, {counts['started_later']} starts in {counts['requests']} requests"
            row(f"kernels of the other program that are launched, and that start, during a request and later than "
                f"{files[0][1]['reaction_ms']:g} ms after its first launch: {scenario}", "0 launches", cell)
        described = "\n".join(
            f"[{name}](results/{name}): {data['runtime']}, {data['machine']}, load average {span(data['load_average'])}, {data['date']};\n"
            f"medians of {data['repetitions']} alternating repetitions with minimum and maximum; a request is {data['request']}, {data['requests']} in each repetition after the first {data['warm_up']}.\n"
            for name, data in files)
        return f"{described}\n{head('', 'goal', *(name for name, _ in files))}\n{rows(*lines)}"

    def manners(self):
        """Ordinary programs with and without XSched, and what their start costs."""
        data = self.results.named.get("manners.json")
        if not data or "cost" not in data:
            return None
        programs, cost = data["programs"], data["cost"]
        packages = len({result["package"] for result in programs})
        different = [result for result in programs if result["preload"] or result["run"]]
        named = "; ".join(f"`{result['command']}` ({'; '.join(sorted(set(result['reasons'].values()))) or 'not explained'})" for result in different)
        lines = [f"[manners.json](results/manners.json); {data['machine']}, {data['date']}. {len(programs)} commands from {packages} packages, "
                 f"{len(programs) - len(different)} with the same output, status and files."
                 + (f" The remaining commands: {named}." if named else ""), "",
                 head("start of `true`, median of " + str(cost["starts"]), "goal", "added", "quartiles of the difference"),
                 *(rows([f"{name}", goal, f"{cost[way]['added_ms']:.2f} ms", " to ".join(f"{value:.2f}" for value in cost[way]["added_quartiles_ms"]) + " ms"])
                   for name, goal, way in (("preloaded", "0.3 ms", "preload"), ("`xsched run`", "2 ms", "run"))), "",
                 f"Without XSched: {cost['native']['median_ms']:.2f} ms."]
        return "\n".join(lines)

    def faults(self):
        """How many faults of each kind, and what came of them."""
        data = self.results.named.get("faults.json")
        if not data:
            return None
        steps = {step: count for step, count in data["steps"].items() if not step.endswith("(by time)")}
        hit = sum(1 for count in steps.values() if count)
        columns = ["passed", "failed", "expected failure", "passed, expected to fail", "skipped"]
        columns = [column for column in columns if column in ("passed", "failed") or any(column in counts for counts in data["kinds"].values())]
        lines = [f"[faults.json](results/faults.json), {data['date']}, seed {data['seed']}: {data['faults']:,} faults on {data['machines']} machines, {len(data['failures'])} failed; "
                 f"{sum(steps.values())} of them at {hit} of {len(steps)} steps. {data['skipped']} more were skipped.", "",
                 head("fault", *columns), *(rows([name, *(str(counts.get(column, 0)) for column in columns)]) for name, counts in sorted(data["kinds"].items()))]
        lines += [f"\nExpected to fail: {kind} ({why})." for kind, why in sorted(data["expected_to_fail"].items())]
        lines += [f"\nNot possible on that computer: {kind} ({why})." for kind, why in sorted(data["unavailable"].items())]
        return "\n".join(lines)

    def fuzz(self):
        """Executions of each fuzz target."""
        data = self.results.named.get("fuzz.json")
        if not data:
            return None
        total = sum(target["executions"] for target in data["targets"])
        failures = [f"{target['name']}: {target['failure']}" for target in data["targets"] if target["failure"]]
        table = [rows([target["name"], target["about"], f"{target['executions']:,}", f"{target['seconds']:.0f}", f"{target['executions'] / target['cpu_seconds']:,.0f}"])
                 for target in data["targets"]]
        return "\n".join([f"[fuzz.json](results/fuzz.json), seed {data['seed']}: {total:,} executions in {sum(target['seconds'] for target in data['targets']):,.0f} s, "
                          f"{'; '.join(failures) or 'no failure'}.", "", head("target", "input", "executions", "seconds", "executions per second of CPU time"), *table])


def rocm_clients(results):
    """Real clients of AMD's runtimes with and without XSched."""
    data = results.named.get("rocm-clients.json")
    if not data:
        return None
    lines = []
    for row in data["rows"]:
        beside = f"{row['low_launches_during_high']} of {row['low_launches']} in {row['checked_seconds']:.2f} s" if row["low_launches"] is not None else ""
        output = {True: "same", False: "differs", None: ""}[row["is_same_output"]]
        kernels = "" if row["kernels"] is None else f"{row['kernels']}{'' if row['are_same_kernels'] else ', others without XSched'}"
        result = row["result"] if not row["reason"] else f"{row['result']}: {' '.join(row['reason'].split()).replace('|', '/')[:200]}"
        lines.append((row["client"], " ".join(filter(None, (row["package"], row["version"]))), row["hip"], row["way"] or "", output, kernels,
                      "" if row["level"] is None else str(row["level"]), beside, result))
    counts = ", ".join(f"{count} {name}" for name, count in data["counts"].items())
    dates = sorted({row["date"] for row in data["rows"]})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    missing = f" Not run: {', '.join(data['missing'])}." if data["missing"] else ""
    return (f"[rocm-clients.json](results/rocm-clients.json); {data['machine']}, {when}: {counts}.{missing}\n\n"
            f"{head('client', 'package', 'HIP', 'by', 'output', 'kernels', 'level', 'launches of low priority during work of high priority', 'result')}\n{rows(*lines)}")


def fill(page, text, parts):
    """The page with its generated parts replaced."""
    def part(match):
        name = match[1]
        if name not in parts:
            sys.exit(f"{page}: unknown figure {name}: use one of {', '.join(sorted(parts))}")
        return f"<!-- figures:{name} -->\n{parts[name]}\n<!-- end -->"
    return re.sub(r"<!-- figures:([a-z-]+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    parser.add_argument("--root", default=ROOT, help="another copy of the repository")
    args = parser.parse_args()
    report = Report(Results(os.path.join(args.root, "bench/results")))
    expected = dict(report.pictures)
    for page in PAGES:
        with open(os.path.join(args.root, page)) as file:
            expected[page] = fill(page, file.read(), report.parts)
    stale = [os.path.relpath(path, args.root) for path in glob.glob(os.path.join(args.root, FIGURES, "*.svg"))]
    stale = [path for path in stale if path not in expected]
    different = []
    for path, text in expected.items():
        whole = os.path.join(args.root, path)
        present = None
        if os.path.exists(whole):
            with open(whole) as file:
                present = file.read()
        if present != text:
            different.append(path)
            if not args.check:
                os.makedirs(os.path.dirname(whole), exist_ok=True)
                with open(whole, "w") as file:
                    file.write(text)
    for path in stale:
        if not args.check:
            os.remove(os.path.join(args.root, path))
    changed = different + stale
    if args.check and changed:
        sys.exit(f"not up to date with bench/results: {', '.join(changed)}. Run: python3 bench/report.py")
    print("changed: " + ", ".join(changed) if changed else "up to date")


if __name__ == "__main__":
    main()
