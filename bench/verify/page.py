"""The page of a report: one file that needs no other, for a phone as well as for a desk, light and dark."""

import json
from html import escape

from .charts import bars, number

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #5b6570; --line: #d8dee4; --soft: #f5f7f9;
  --good: #1a7f37; --bad: #c62828; --warn: #9a6700; --alone: #8b98a5; --native: #d0862b; --xsched: #2f6fde; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14181d; --faint: #9aa5b1; --line: #303942; --soft: #1c2229;
  --good: #4cc26a; --bad: #ff7b72; --warn: #e3b341; --alone: #74808c; --native: #e09b46; --xsched: #6ea2ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 52rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
.about { color: var(--faint); margin: 0; }
.verdict { border-left: .4rem solid var(--good); background: var(--soft); padding: .8rem 1rem; margin: 1.25rem 0 0; font-size: 1.1rem; font-weight: 600; }
.verdict.bad { border-color: var(--bad); } .verdict.warn { border-color: var(--warn); }
.verdict small { display: block; font-weight: 400; color: var(--faint); font-size: .95rem; }
.todo { padding-left: 1.1rem; } .todo li { margin-bottom: .6rem; } .todo p { margin: 0; }
.do { color: var(--faint); } .do b { color: var(--ink); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .95rem; }
th { text-align: left; color: var(--faint); font-weight: 500; } td, th { padding: .45rem .7rem .45rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
td.n, th.n { text-align: right; white-space: nowrap; overflow-wrap: normal; font-variant-numeric: tabular-nums; } td.name { min-width: 8rem; }
.state { white-space: nowrap; font-weight: 600; } .pass, .ok { color: var(--good); } .fail, .problem { color: var(--bad); } .warning { color: var(--warn); } .skipped { color: var(--faint); }
figure { margin: 1rem 0 1.5rem; } figcaption { font-weight: 500; margin-bottom: .35rem; } svg { width: 100%; max-width: 38rem; height: auto; display: block; }
svg text { fill: var(--ink); font: 13px system-ui, sans-serif; } svg .value { font-variant-numeric: tabular-nums; } svg .label { fill: var(--faint); }
rect.alone { fill: var(--alone); } rect.native { fill: var(--native); } rect.xsched { fill: var(--xsched); } path.spread { stroke: var(--ink); fill: none; stroke-width: 1.5; }
.key { color: var(--faint); font-size: .9rem; } .key i { display: inline-block; width: .8rem; height: .8rem; border-radius: 2px; margin: 0 .3rem 0 .9rem; vertical-align: -1px; } .key i:first-child { margin-left: 0; }
code, pre { font-family: ui-monospace, monospace; font-size: .88em; } pre { overflow: auto; max-height: 30rem; background: var(--soft); padding: .8rem; }
@media (max-width: 34rem) { svg text { font-size: 15px; } table.findings td { display: block; border: 0; padding: 0; } table.findings tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; } table.findings thead { display: none; } }
"""

COLOURS = '<p class="key"><i style="background:var(--alone)"></i>alone<i style="background:var(--native)"></i>as the device schedules them<i style="background:var(--xsched)"></i>under XSched</p>'


def code(text):
    """Text with `commands` as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if n % 2 else part for n, part in enumerate(parts))


def stage(content, stage_id):
    """A stage's metrics; empty if it did not run."""
    return next((one["metrics"] for one in content["stages"] if one["id"] == stage_id), {})


def verdict(content):
    """The class and the sentence at the top."""
    stages = content["stages"]
    failed = [one for one in stages if one["status"] == "fail"]
    problems = [check for check in content["findings"] if check["state"] == "problem"]
    level = stage(content, "preempt").get("highest_level") or stage(content, "interception").get("level")
    passed = sum(one["status"] == "pass" for one in stages)
    count = f"{passed} stages passed, {len(failed)} failed, {sum(one['status'] == 'skipped' for one in stages)} skipped"
    if content["state"] != "complete":
        return ("warn", f"Not complete: {content['state']}", count) if not failed else ("bad", f"{len(failed)} stages failed; not complete: {content['state']}", count)
    if failed:
        return "bad", f"{len(failed)} of {len(stages)} stages failed", count
    if problems:
        return "bad", f"{len(problems)} problems on this machine", count
    title = f"Works, at preemption level {level}" if level else "Works"
    return "good", title, count


def todo(content):
    """What failed and what to do."""
    entries = [(one["name"], one["notes"], one.get("do_next")) for one in content["stages"] if one["status"] == "fail"]
    entries += [(check["name"], check["what"], check.get("do_next")) for state in ("problem", "warning")
                for check in content["findings"] if check["state"] == state]
    if not entries:
        return ""
    items = "".join(f'<li><p><b>{escape(name)}</b>: {code(what)}</p>' + (f'<p class="do"><b>Do:</b> {code(do_next)}</p>' if do_next else "") + "</li>"
                    for name, what, do_next in entries)
    return f'<h2>What failed or limits it, and what to do</h2><ul class="todo">{items}</ul>'


def milliseconds(us):
    return f"{us / 1000:.2f} ms"


def levels(content):
    """The table of levels."""
    metrics = stage(content, "preempt")
    if not metrics.get("levels"):
        return ""
    meaning = {"1": "launches that have not happened", "2": "commands in the hardware queue", "3": "the running kernel"}
    length = metrics["lengths_us"][min(1, len(metrics["lengths_us"]) - 1)]
    rows = []
    for level, row in metrics["levels"].items():
        figures = row.get(f"beside_{length}_us")
        works = '<span class="state ok">works</span>' if not row.get("unavailable") else f'<span class="state warning">not available</span>: {code(row["unavailable"])}'
        added = (milliseconds(figures["added_p50_us"]), milliseconds(figures["added_p99_us"])) if figures else ("", "")
        rows.append(f'<tr><td class="name">{level}: {meaning[level]}</td><td>{works}</td><td class="n">{added[0]}</td><td class="n">{added[1]}</td></tr>')
    native = metrics.get(f"native_beside_{length}_us")
    if native:
        rows.append(f'<tr><td class="name">none: as the device schedules them</td><td></td><td class="n">{milliseconds(native["added_p50_us"])}</td>'
                    f'<td class="n">{milliseconds(native["added_p99_us"])}</td></tr>')
    driver = stage(content, "driver")
    note = ""
    if "suspend_us" in driver:
        note = (f'<p>Stopping the queues of a running kernel takes {number(driver["suspend_us"]["p50"])} us (p99 {number(driver["suspend_us"]["p99"])} us), '
                f'resuming them {number(driver["resume_us"]["p50"])} us (p99 {number(driver["resume_us"]["p99"])} us).</p>')
    return (f'<h2>Preemption levels</h2><div class="scroll"><table><thead><tr><th>what is preempted</th><th></th><th class="n">added p50</th><th class="n">added p99</th></tr></thead>'
            f'<tbody>{"".join(rows)}</tbody></table></div><p class="key">Time added to one kernel of 100 us beside a batch of {number(length / 1000)} ms kernels.</p>{note}')


def charts(content):
    """The charts of what was measured."""
    parts = []
    corun = stage(content, "corun")
    if "alone_p50_us" in corun:
        rows = []
        for name, label in (("alone", "alone"), ("native", "beside a batch, as the device schedules them"), ("scheduled", "beside a batch, under XSched")):
            for percent in (50, 99):
                value = corun[f"{name}_p{percent}_us"]
                rows.append((f"{label}, p{percent}", value["median"] / 1000, "xsched" if name == "scheduled" else name, (value["min"] / 1000, value["max"] / 1000)))
        parts.append(bars(f"A request of 8 kernels of 1 ms; {corun['rounds']} x {corun['requests_each']} requests, median, least and greatest", "ms", rows))
    preempt = stage(content, "preempt")
    rows = []
    for length in preempt.get("lengths_us", []):
        title = f"beside {number(length / 1000)} ms kernels"
        native = preempt.get(f"native_beside_{length}_us")
        if native:
            rows.append((f"{title}, as the device schedules them", native["p50_us"] / 1000, "native", (native["p50_us"] / 1000, native["p99_us"] / 1000)))
        for level, row in preempt["levels"].items():
            figures = row.get(f"beside_{length}_us")
            if figures:
                rows.append((f"{title}, level {level}", figures["p50_us"] / 1000, "xsched", (figures["p50_us"] / 1000, figures["p99_us"] / 1000)))
    if rows:
        rows.insert(0, ("alone", preempt["alone_p50_us"] / 1000, "alone", (preempt["alone_p50_us"] / 1000, preempt["alone_p99_us"] / 1000)))
    parts.append(bars("Latency of one kernel of 100 us, p50 / p99", "ms", rows))
    overhead = stage(content, "overhead")
    if overhead:
        rows = [("without XSched", overhead["native_ns"] / 1000, "alone", None), ("under XSched", overhead["scheduled_ns"] / 1000, "xsched", None)]
        parts.append(bars("One launch from Python, alone on the device", "us", rows))
    exclusive = stage(content, "exclusive")
    rows = []
    for kind in ("kernel", "memset", "copy"):
        if kind in exclusive:
            rows += [(f"{kind}, as the device schedules them", exclusive[kind]["native"]["operations"], "native", None),
                     (f"{kind}, under XSched", exclusive[kind]["scheduled"]["operations"], "xsched", None)]
    parts.append(bars("Operations of the low-priority program while the other has work", "", rows))
    text = "".join(parts)
    return f"<h2>Measured</h2>{COLOURS}{text}" if text else ""


def values(check):
    """The values behind a finding, in one line."""
    def plain(value):
        return ", ".join(f"{name} {item}" for name, item in value.items()) if isinstance(value, dict) else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    shown = [f"{name.replace('_', ' ')}: {plain(value)}" for name, value in (check.get("facts") or {}).items() if value not in (None, "", [], {})]
    return f'<br><small class="do">{escape("; ".join(shown))}</small>' if shown else ""


def machine(content):
    """The findings about the machine."""
    rows = "".join(f'<tr><td class="name">{escape(check["name"])}</td><td class="state {check["state"]}">{check["state"]}</td><td>{code(check["what"])}{values(check)}</td></tr>'
                   for check in content["findings"])
    host = content["host"]
    about = ", ".join(str(part) for part in (host.get("processor"), f'{host.get("cores")} cores', host.get("system"), f'Linux {host.get("kernel")}',
                                             f'Python {host.get("python")}') if part) if host else ""
    load = f'; load {host["load"][0]}' if host else ""
    return f'<h2>The machine</h2><p>{escape(about + load)}</p><table class="findings"><thead><tr><th>what</th><th></th><th>found</th></tr></thead><tbody>{rows}</tbody></table>'


def all_stages(content):
    rows = "".join(f'<tr><td class="name">{escape(one["name"])}</td><td class="state {one["status"]}">{one["status"]}</td><td>{code(one["notes"])}</td>'
                   f'<td class="n">{one["seconds"]:.0f} s</td></tr>' for one in content["stages"])
    return f'<h2>All stages</h2><table class="findings"><thead><tr><th>stage</th><th></th><th>notes</th><th class="n">took</th></tr></thead><tbody>{rows}</tbody></table>'


def render(content):
    """The whole page."""
    kind, title, count = verdict(content)
    device = content.get("device") or "this machine"
    about = [f"{content['devices']} devices" if content.get("devices", 1) > 1 else "", f"runtime {content['runtime_version']}" if content.get("runtime_version") else "",
             f"XSched {content['xsched_version']}" if content.get("xsched_version") else "", f"{content.get('build')} build" if content.get("build") else "",
             content["platform"], content["date"], f"{content['seconds']:.0f} s", "quick" if content["quick"] else ""]
    raw = escape(json.dumps(content, indent=1))
    return (f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>XSched on {escape(device)}</title><style>{STYLE}</style></head><body><main>'
            f'<h1>XSched on {escape(device)}</h1><p class="about">{escape(" · ".join(part for part in about if part))}</p>'
            f'<div class="verdict {kind}">{escape(title)}<small>{escape(count)}</small></div>'
            f'{todo(content)}{levels(content)}{charts(content)}{machine(content)}{all_stages(content)}'
            f'<h2>Everything as JSON</h2><details><summary>schema {escape(content["schema"])}, version {content["schema_version"]}</summary><pre>{raw}</pre></details>'
            f'</main></body></html>\n')
