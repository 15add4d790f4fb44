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
PAGES = ["README.md", "bench/README.md"]
FIGURES = "docs/figures"
NAMES = {"alone": "alone", "alone under xsched": "alone, under XSched", "native": "as the GPU schedules them",
         "mps": "MPS, client priorities", "stream priorities": "stream priorities",
         "xsched level 1": "XSched, level 1", "xsched level 2": "XSched, level 2", "xsched level 3": "XSched, level 3",
         "xsched auto": "XSched"}
SHORT = {**NAMES, "xsched auto": "XSched (auto)"}
MODELS = {"resnet152-64": "ResNet-152, batch 64", "bert-large-64": "BERT-large, batch 64", "decoder": "GPT-2, 16 tokens"}


class Results:
    """The result files, newest first."""

    def __init__(self, directory):
        self.files = []
        for path in glob.glob(os.path.join(directory, "*.json")):
            with open(path) as file:
                data = json.load(file)
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
                failed = any(error["what"].startswith(f"{keys[0]}:") for error in data.get("errors", []))
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


def mean(values):
    return statistics.fmean(values)


class Report:
    """The generated parts by name, and the figures by path."""

    def __init__(self, results):
        self.results, self.parts, self.pictures = results, {}, {}
        for name in ("comparison", "latency", "micro", "overhead", "shares", "backgrounds", "eager", "tokens"):
            lines = getattr(self, name)()
            only = "table" if name in ("comparison", "micro") else name
            self.parts[name] = lines or f"Not measured yet: `python3 bench/gpu/run.py --xsched PATH/TO/xsched --only {only}`."
        self.parts["short"] = self.short() or "Not measured yet."

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

    def short(self):
        """The table of the front page."""
        found = self.table()
        if not found:
            return None
        scenarios, background, whole, data, _ = found
        lines = [("alone", f"{scenarios['alone']['p99_ms']:.2f} ms", f"{background:.1f} it/s" if background else "")]
        for scenario, description in (("native", "both, as the GPU schedules them"), ("mps", "both, under MPS with client priorities"),
                             ("xsched auto", "both under XSched")):
            if scenario in scenarios:
                rate = f"{mean(scenarios[scenario]['background_it_per_s']):.1f} it/s"
                lines.append((description, f"{scenarios[scenario]['p99_ms']:.2f} ms", rate))
        return (f"On an {data['gpu']} with the stock driver, PyTorch serving ResNet-152 beside ResNet-50 training\n"
                f"([how it was measured](bench/README.md)):\n\n{head('', 'service p99', 'training')}\n{rows(*lines)}\n\n{self.tokens_in_short()}"
                f"![p99 of the service and speed of the training, by scheduler]({FIGURES}/comparison.svg)")

    def tokens_in_short(self):
        part, _, _ = self.complete_services("tokens")
        if not part:
            return ""
        scenarios = part["tokens-graph"]["scenes"]
        alone, native, scheduled = (f"{scenarios[scenario]['p99_ms']:.1f} ms" for scenario in ("alone", "native", "xsched auto"))
        return (f"Beside the same training, a service that generates 20 tokens one by one takes {alone} alone, {native} as the GPU schedules them\n"
                f"and {scheduled} under XSched (p99).\n\n")

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

    def complete_services(self, kind):
        def is_complete(found):
            return all({"native", "xsched auto"} <= model["scenes"].keys() for model in found[0].values())

        return next(filter(is_complete, self.results.all("table", kind)), (None, None, None))

    def services(self, kind):
        part, data, name = self.complete_services(kind)
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

    def eager(self):
        return self.services("eager")

    def tokens(self):
        return self.services("tokens")


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
