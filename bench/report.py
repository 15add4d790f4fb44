"""Makes the tables and figures of README.md and bench/README.md from the files in bench/results/.

  python3 bench/report.py            rewrites them
  python3 bench/report.py --check    fails if they are not what the files give

What is generated stands between `<!-- figures:NAME -->` and `<!-- end -->`. For every section the newest file that has it counts, or
the newest in which nothing of it failed; files of `run.py --quick` do not.
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
    """The files, newest first."""

    def __init__(self, directory):
        self.files = []
        for path in glob.glob(os.path.join(directory, "*.json")):
            with open(path) as file:
                data = json.load(file)
            if data.get("gpu") and not data.get("quick"):
                self.files.append((data.get("date", ""), os.path.basename(path), data))
        self.files.sort(reverse=True, key=lambda file: file[:2])

    def all(self, *place):
        """All that have it, with their files: first those in which nothing of it failed."""
        found = []
        for _, name, data in self.files:
            part = data
            for key in place:
                part = part.get(key) if isinstance(part, dict) else None
            if part:
                failed = any(error["what"].startswith(f"{place[0]}:") for error in data.get("errors", []))
                found.append((failed, part, data, name))
        return [rest for _, *rest in sorted(found, key=lambda file: file[0])]

    def section(self, *place):
        return next(iter(self.all(*place)), (None, None, None))


def where(data, name, path="results/"):
    pytorch = f", PyTorch {data['pytorch'].split('+')[0]}" if data.get("pytorch") else ""
    return f"[{name}]({path}{name}); one {data['gpu']}, driver {data['driver']}, CUDA {data['cuda']}{pytorch}, {data['date']}"


def rows(*lines):
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def head(*cells):
    return rows(cells, ["---"] * len(cells))


def times(scene):
    return f"{scene['p50_ms']:.2f} / {scene['p99_ms']:.2f} / {scene['max_ms']:.2f} ms"


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

    def picture(self, name, svg, words):
        self.pictures[f"{FIGURES}/{name}.svg"] = svg
        return f"![{words}](../{FIGURES}/{name}.svg)"

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
        scenes, background, whole, data, name = found
        alone = scenes["alone"]
        lines, bars = [], []
        for scene in (key for key in NAMES if key in scenes):
            figure, low = scenes[scene], scenes[scene].get("background_it_per_s")
            part = mean(low) / background if low and background else None
            ratio = figure["p99_ms"] / alone["p99_ms"]
            speed = f"{background:.1f} it/s" if scene == "alone" and background else ""
            if part is not None:
                speed = f"{mean(low):.1f} it/s, {part * 100:.0f} %"
            lines.append((SHORT[scene], times(figure), f"{ratio:.2f}", speed))
            if not scene.startswith("alone"):
                bars.append((NAMES[scene], ratio, part))
        svg = figures.comparison("A service beside training, on one GPU",
                                 f"{whole['foreground'].split(',')[0]}, beside {whole['background'].split(';')[0]}. {data['gpu']}.", bars)
        same = [scenes[scene].get("same_output_as_alone") for scene in scenes if "same_output_as_alone" in scenes[scene]]
        checked = "The service's output is the same, bit for bit, in all of them.\n\n" if same and all(same) else ""
        if not all(same):
            checked = "**The service's output was not the same in all of them.**\n\n"
        return (f"{where(data, name)}.\nForeground: {whole['foreground']}. Background: {whole['background']}.\n\n"
                f"{head('', 'foreground p50 / p99 / max', 'p99 / alone', 'background')}\n{rows(*lines)}\n\n{checked}{self.others(name)}"
                + self.picture("comparison", svg, "p99 of the service and speed of the training, by who schedules them"))

    def others(self, shown):
        """The same table of other runs, in a line each."""
        lines = []
        for scenes, data, name in self.results.all("table", "scenes"):
            if name == shown or "alone" not in scenes:
                continue
            alone = scenes["alone"]["p99_ms"]
            cells = [f"{SHORT[key]} {scenes[key]['p99_ms']:.2f} ms ({scenes[key]['p99_ms'] / alone:.2f})"
                     for key in NAMES if key in scenes and not key.startswith("alone")]
            lines.append(f"Another run, [{name}](results/{name}), p99: alone {alone:.2f} ms, {', '.join(cells)}.")
        return "".join(f"{line}\n\n" for line in lines)

    def short(self):
        """For the front page."""
        found = self.table()
        if not found:
            return None
        scenes, background, whole, data, _ = found
        lines = [("alone", f"{scenes['alone']['p99_ms']:.2f} ms", f"{background:.1f} it/s" if background else "")]
        for scene, words in (("native", "both, as the GPU schedules them"), ("mps", "both, under MPS with client priorities"),
                             ("xsched auto", "both under XSched")):
            if scene in scenes:
                rate = f"{mean(scenes[scene]['background_it_per_s']):.1f} it/s"
                lines.append((words, f"{scenes[scene]['p99_ms']:.2f} ms", rate))
        return (f"On an {data['gpu']} with the stock driver, PyTorch serving ResNet-152 beside ResNet-50 training\n"
                f"([how it was measured](bench/README.md)):\n\n{head('', 'service p99', 'training')}\n{rows(*lines)}\n\n{self.tokens_in_short()}"
                f"![p99 of the service and speed of the training, by who schedules them]({FIGURES}/comparison.svg)")

    def tokens_in_short(self):
        part, _, _ = self.whole_services("tokens")
        if not part:
            return ""
        scenes = part["tokens-graph"]["scenes"]
        alone, native, scheduled = (f"{scenes[scene]['p99_ms']:.1f} ms" for scene in ("alone", "native", "xsched auto"))
        return (f"Beside the same training, a service that generates 20 tokens one by one takes {alone} alone, {native} as the GPU schedules them\n"
                f"and {scheduled} under XSched (p99).\n\n")

    def micro(self):
        part, data, name = self.results.section("table", "micro")
        if not part:
            return None
        lines = []
        for row in part.values():
            scenes = row["scenes"]
            alone = scenes.get("alone")
            for scene, figure in scenes.items():
                ratio = f"{figure['p99_ms'] / alone['p99_ms']:.2f}" if alone else ""
                share = figure.get("background_gpu_share")
                lines.append((row["what"], SHORT[scene], f"{figure['p50_ms']:.3f} / {figure['p99_ms']:.3f} ms", ratio,
                              f"{100 * mean(share):.0f} %" if share else ""))
        return (f"{where(data, name)}.\n\n{head('', '', 'p50 / p99', 'p99 / alone', 'background has of the GPU')}\n{rows(*lines)}")

    def latency(self):
        part, data, name = self.results.section("latency")
        if not part or not part.get("settings"):
            return None
        series, lines = {}, []
        for setting in (key for key in NAMES if key in part["settings"]):
            scenes = part["settings"][setting]
            line = [(float(length), figure["p50_ms"], figure["p99_ms"]) for length, figure in scenes.items()]
            series["without XSched" if setting == "native" else NAMES[setting]] = sorted(line)
            cells = [f"{scenes[f'{length:g}']['p50_ms']:.2f} / {scenes[f'{length:g}']['p99_ms']:.2f}" if f"{length:g}" in scenes else ""
                     for length in part["lengths_ms"]]
            lines.append((SHORT[setting], *cells))
        alone = part["alone"]["p99_ms"] if part.get("alone") else None
        svg = figures.latency("How long one short kernel waits", f"One kernel of 20 us beside endless kernels of a given length: p99 solid, p50 dotted. {data['gpu']}.",
                              alone, series)
        lengths = [f"{length:g} ms" for length in part["lengths_ms"]]
        return (f"{where(data, name)}. One kernel of 20 us beside endless kernels of a given length, p50 / p99 in ms"
                f"{f'; alone p99 {alone:.3f} ms' if alone else ''}.\n\n{head('', *lengths)}\n{rows(*lines)}\n\n"
                + self.picture("latency", svg, "Latency of a short kernel by the length of the kernels beside it"))

    def overhead(self):
        part, data, name = self.results.section("overhead")
        if not part:
            return None
        lines, points = [], []

        def add(words, before, after, ratio, unit):
            lines.append((words, f"{before['median']:.2f} {unit}", f"{after['median']:.2f} {unit}",
                          f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"))
            points.append((words, ratio["median"], ratio["low"], ratio["high"]))

        for length, cell in part.get("launches", {}).items():
            words = "an empty kernel" if length == "0" else f"a kernel of {length} us"
            whole = cell["end_to_end_us"]
            add(words + ", launched back to back", whole["native"], whole["xsched"], whole["ratio"], "us")
        for model, cell in part.get("models", {}).items():
            add(MODELS.get(model, model) + ", one iteration", cell["native_ms"], cell["xsched_ms"], cell["ratio"], "ms")
        if not lines:
            return None
        svg = figures.overhead("What being scheduled costs a program that is alone", f"Time per kernel and per iteration, with and without `xsched run`. {data['gpu']}.", points)
        return (f"{where(data, name)}. Medians of several runs in turn; the ratio with its lowest and highest.\n\n"
                f"{head('alone on the GPU', 'without', 'under XSched', 'ratio')}\n{rows(*lines)}\n\n"
                + self.picture("overhead", svg, "Cost of being scheduled, alone on the GPU"))

    def shares(self):
        part, data, name = self.results.section("shares")
        if not part or not part.get("cases"):
            return None
        lines, cases = [], []
        for case, cell in part["cases"].items():
            throughput = cell.get("throughput_of_alone")
            lines.append((case, " : ".join(f"{share:.1f}" for share in cell["seen"]), f"{cell['error_points']:.1f} points",
                          f"{100 * throughput:.0f} %" if throughput else ""))
            cases.append((case, cell["wanted"], cell["seen"], cell["error_points"]))
        svg = figures.shares("Shares of the GPU, wanted and seen", f"Policy share (UP), loads of equal kernels unless said otherwise; GPU time in percent. {data['gpu']}.", cases)
        return (f"{where(data, name)}. Policy {part['policy']}; {part['what']}.\n\n"
                f"{head('wanted', 'seen, percent of GPU time', 'largest error', 'all together, of one alone')}\n{rows(*lines)}\n\n"
                + self.picture("shares", svg, "Shares of GPU time, wanted and seen"))

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
        return (f"{where(data, name)}. {part['foreground']}, beside {part['background']}.\n\n"
                f"{head('', 'foreground p50 / p99 / max', 'p99 / alone', 'backgrounds, and their sum of one alone')}\n{rows(*lines)}")

    def whole_services(self, kind):
        def is_whole(found):
            return all({"native", "xsched auto"} <= model["scenes"].keys() for model in found[0].values())

        return next(filter(is_whole, self.results.all("table", kind)), (None, None, None))

    def services(self, kind):
        part, data, name = self.whole_services(kind)
        if not part:
            return None
        lines = []
        for model in part.values():
            for scene, figure in model["scenes"].items():
                alone = figure.get("own_alone")
                low = figure.get("background_it_per_s")
                lines.append((model["what"], SHORT[scene], times(figure),
                              f"{figure['p99_ms'] / alone['p99_ms']:.2f}" if alone else "", f"{mean(low):.1f} it/s" if low else ""))
        return f"{where(data, name)}. Alone is the same process alone.\n\n{head('', '', 'p50 / p99 / max', 'p99 / alone', 'background')}\n{rows(*lines)}"

    def eager(self):
        return self.services("eager")

    def tokens(self):
        return self.services("tokens")


def fill(page, text, parts):
    """The page with its generated parts as they should be."""
    def part(match):
        name = match[1]
        if name not in parts:
            sys.exit(f"{page}: there are no figures called {name}: there are {', '.join(sorted(parts))}")
        return f"<!-- figures:{name} -->\n{parts[name]}\n<!-- end -->"
    return re.sub(r"<!-- figures:([a-z-]+) -->\n.*?<!-- end -->", part, text, flags=re.DOTALL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something would change")
    parser.add_argument("--root", default=ROOT, help="another copy of the repository")
    args = parser.parse_args()
    report = Report(Results(os.path.join(args.root, "bench/results")))
    wanted = dict(report.pictures)
    for page in PAGES:
        with open(os.path.join(args.root, page)) as file:
            wanted[page] = fill(page, file.read(), report.parts)
    stale = [os.path.relpath(path, args.root) for path in glob.glob(os.path.join(args.root, FIGURES, "*.svg"))]
    stale = [path for path in stale if path not in wanted]
    different = []
    for path, text in wanted.items():
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
        sys.exit(f"not what bench/results gives: {', '.join(changed)}. Run: python3 bench/report.py")
    print("changed: " + ", ".join(changed) if changed else "all as the files give it")


if __name__ == "__main__":
    main()
