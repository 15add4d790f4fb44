"""Draws the figures as plain SVG that is readable on light and dark pages. Each function takes values and returns the SVG text."""
import math
from html import escape

STYLE = """
  .card { fill: #ffffff; stroke: #d8dee4 } text { fill: #1f2328; font: 13px system-ui, sans-serif }
  .title { font-size: 15px; font-weight: 600 } .note { fill: #656d76; font-size: 12px } .strong { font-weight: 600 }
  .axis { stroke: #8c959f } .grid { stroke: #d8dee4 } .plain { fill: #afb8c1 } .ours { fill: #0969da }
  .level { fill: #80b7f0 } .line { fill: none; stroke-width: 2.2 } .whisker { stroke-width: 2 }
  .halo { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
  .in-bar { fill: #ffffff } .in-light { fill: #1f2328 } .dots { stroke-dasharray: 2 4 }
  .s0 { stroke: #8c959f } .s1 { stroke: #d4820a } .s2 { stroke: #2da44e } .s3 { stroke: #0969da }
  .f0 { fill: #6e7781 } .f1 { fill: #b06a00 } .f2 { fill: #1a7f37 } .f3 { fill: #0969da }
  .p0 { fill: #0969da } .p1 { fill: #80b7f0 } .p2 { fill: #cfe3f8 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #0d1117; stroke: #30363d } text { fill: #e6edf3 } .note { fill: #8d96a0 }
    .axis { stroke: #6e7681 } .grid { stroke: #262c34 } .plain { fill: #57606a } .ours { fill: #4493f8 }
    .halo { stroke: #0d1117 } .level { fill: #2b5f9e } .in-bar { fill: #0d1117 } .in-light { fill: #0d1117 } .s0 { stroke: #8d96a0 } .s1 { stroke: #e3a03c } .s2 { stroke: #3fb950 }
    .s3 { stroke: #4493f8 } .f0 { fill: #9ea7b3 } .f1 { fill: #e3a03c } .f2 { fill: #3fb950 } .f3 { fill: #4493f8 }
    .p0 { fill: #4493f8 } .p1 { fill: #8ebcf5 } .p2 { fill: #c9def8 }
  }"""


class Sheet:
    def __init__(self, width, height, title, note):
        self.width, self.height, self.title, self.parts = width, height, title, []
        self.text(24, 34, title, "title")
        self.text(24, 54, note, "note")

    def add(self, name, text=None, **attributes):
        shown = " ".join(f'{key.rstrip("_").replace("_", "-")}="{self.number(value)}"' for key, value in attributes.items())
        self.parts.append(f"<{name} {shown}/>" if text is None else f"<{name} {shown}>{escape(text)}</{name}>")

    @staticmethod
    def number(value):
        return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else escape(str(value))

    def text(self, x, y, text, kind="", anchor="start"):
        self.add("text", text, x=x, y=y, class_=kind, text_anchor=anchor)

    def line(self, x1, y1, x2, y2, kind):
        self.add("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)

    def bar(self, x, y, width, height, kind):
        self.add("rect", x=x, y=y, width=max(width, 1.0), height=height, rx=2, class_=kind)

    def finish(self):
        body = "\n  ".join(self.parts)
        return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
                f'height="{self.height}" role="img" aria-label="{escape(self.title)}">\n<style>{STYLE}\n</style>\n'
                f'  <rect class="card" x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8"/>\n'
                f"  {body}\n</svg>\n")


def kind_of(name):
    """The CSS class of a bar: XSched's default setting is emphasized."""
    return "ours" if name == "XSched" else "level" if name.startswith("XSched") else "plain"


def comparison(title, note, rows):
    """`rows`: (name, p99 as a multiple of alone, background as a fraction of alone or none)."""
    row, top, left, middle, width = 34, 104, 214, 560, 820
    sheet = Sheet(width, top + row * len(rows) + 34, title, note)
    highest = max(2.0, *(ratio for _, ratio, _ in rows)) * 1.02
    scale, scale2 = (middle - left - 76) / highest, (width - middle - 90) / 1.0
    bottom = top + row * len(rows) - 4
    for alone in (left + scale, middle + scale2):
        sheet.line(alone, top - 8, alone, bottom, "axis dots")
        sheet.text(alone, bottom + 18, "alone", "note", "middle")
    sheet.text(left, top - 16, "service: p99, times alone", "note")
    sheet.text(middle, top - 16, "training: fraction of its speed alone", "note")
    for y, (name, ratio, part) in zip(range(top, top + row * len(rows), row), rows):
        kind, strong = kind_of(name), "strong" if name == "XSched" else ""
        sheet.text(left - 12, y + 16, name, strong, "end")
        sheet.bar(left, y, ratio * scale, 22, kind)
        sheet.text(left + ratio * scale + 7, y + 16, f"{ratio:.2f}", f"halo {strong}")
        if part is not None:
            sheet.bar(middle, y, part * scale2, 22, kind)
            sheet.text(middle + part * scale2 + 7, y + 16, f"{part * 100:.0f} %", f"halo {strong}")
    return sheet.finish()


def ticks(low, high):
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [base * 10.0 ** power for power in powers for base in (1, 3) if low <= base * 10.0 ** power <= high]


def latency(title, note, alone, series):
    """`series`: name -> [(length in ms, p50, p99)]; both axes are logarithmic."""
    left, right, top, bottom, width, height = 74, 630, 84, 400, 820, 460
    sheet = Sheet(width, height, title, note)
    points = [point for line in series.values() for point in line]
    lengths = [length for length, _, _ in points]
    values = [value for _, p50, p99 in points for value in (p50, p99)] + ([alone] if alone else [])
    low, high = min(values) * 0.8, max(values) * 1.25
    first, last = min(lengths), max(max(lengths), min(lengths) * 1.01)

    def x(length):
        return left + (right - left) * math.log(length / first) / math.log(last / first)

    def y(value):
        return bottom - (bottom - top) * math.log(value / low) / math.log(high / low)

    for value in ticks(low, high):
        sheet.line(left, y(value), right, y(value), "grid")
        sheet.text(left - 8, y(value) + 4, f"{value:g}", "note", "end")
    for length in sorted(set(lengths)):
        sheet.line(x(length), bottom, x(length), bottom + 5, "axis")
        sheet.text(x(length), bottom + 20, f"{length:g}", "note", "middle")
    sheet.line(left, bottom, right, bottom, "axis")
    sheet.text((left + right) / 2, bottom + 42, "length of the background's kernels, ms", "note", "middle")
    sheet.text(left - 50, top - 8, "latency, ms", "note")
    ends = []
    if alone:
        sheet.line(left, y(alone), right, y(alone), "axis dots")
        ends.append((y(alone), "alone, p99", "note"))
    for number, (name, line) in enumerate(series.items()):
        line = sorted(line)
        for index, more in ((2, ""), (1, " dots")):
            path = " ".join(f"{'M' if n == 0 else 'L'}{x(point[0]):.1f} {y(point[index]):.1f}" for n, point in enumerate(line))
            sheet.add("path", d=path, class_=f"line s{number % 4}{more}")
        for point in line:
            sheet.add("circle", cx=x(point[0]), cy=y(point[2]), r=3.2, class_=f"f{number % 4}")
        ends.append((y(line[-1][2]), name, f"strong f{number % 4}"))
    # Names at the ends of their lines, moved apart where they would overlap.
    previous = -99.0
    for at, name, kind in sorted(ends):
        previous = max(at, previous + 17)
        sheet.text(right + 12, previous + 4, name, kind)
    return sheet.finish()


def overhead(title, note, rows):
    """`rows`: (name, ratio, minimum, maximum); drawn as the added percentage."""
    row, top, left, right, width = 30, 96, 300, 730, 820
    rows = [(name, *(100 * (value - 1) for value in values)) for name, *values in rows]
    sheet = Sheet(width, top + row * len(rows) + 52, title, note)
    low = min(-1.0, *(value for _, *values in rows for value in values)) * 1.1
    high = max(1.0, *(value for _, *values in rows for value in values)) * 1.1

    def x(percent):
        return left + (right - left) * (percent - low) / (high - low)

    step = next(s for s in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e9) if (high - low) / s <= 9)
    bottom = top + row * len(rows)
    for n in range(math.ceil(low / step), math.floor(high / step) + 1):
        sheet.line(x(n * step), top - 8, x(n * step), bottom, "axis" if n == 0 else "grid")
        sheet.text(x(n * step), bottom + 18, f"{n * step:+g} %" if n else "0", "note", "middle")
    for y, (name, middle, lowest, highest) in zip(range(top, bottom, row), rows):
        sheet.text(left - 14, y + 17, name, "", "end")
        sheet.line(x(lowest), y + 12, x(highest), y + 12, "whisker s3")
        sheet.add("circle", cx=x(middle), cy=y + 12, r=5, class_="ours")
        sheet.text(right + 14, y + 17, f"{middle:+.1f} %", "strong")
    sheet.text((left + right) / 2, bottom + 40, "added by scheduling, alone on the GPU: median, minimum and maximum", "note", "middle")
    return sheet.finish()


def shares(title, note, cases):
    """`cases`: (name, requested, measured, error in points)."""
    block, top, left, right, width = 84, 90, 130, 640, 820
    sheet = Sheet(width, top + block * len(cases) + 6, title, note)
    for y, (name, requested, measured, error) in zip(range(top, top + block * len(cases), block), cases):
        sheet.text(24, y, name, "strong")
        for offset, label, parts in ((10, "requested", requested), (36, "measured", measured)):
            sheet.text(left - 12, y + offset + 16, label, "note", "end")
            at = float(left)
            for number, part in enumerate(parts):
                wide = (right - left) * part / 100
                sheet.bar(at, y + offset, wide - 2, 22, f"p{number % 3}")
                if wide > 34:
                    sheet.text(at + wide / 2, y + offset + 16, f"{part:g}" if label == "requested" else f"{part:.1f}",
                               "in-bar" if number % 3 == 0 else "in-light", "middle")
                at += wide
        sheet.text(right + 16, y + 52, f"error {error:.1f} points", "strong")
    return sheet.finish()
