"use strict";
(() => {
  const trace = JSON.parse(document.getElementById("trace").textContent);
  const $ = id => document.getElementById(id);
  const [plot, canvas, names, readout] = [$("plot"), $("canvas"), $("names"), $("readout")];
  const QUEUE_TRACKS = 2 ** 30;
  const STATES = ["running", "held", "stalled"];
  const [PROGRAM_HEIGHT, TASK_HEIGHT, QUEUE_HEIGHT, AXIS_HEIGHT] = [24, 26, 16, 24];

  // Tracks by process and number. The scheduler's own track is number 0.
  const programs = new Map();
  const program = pid => {
    if (!programs.has(pid)) programs.set(pid, { pid, name: `process ${pid}`, tracks: new Map() });
    return programs.get(pid);
  };
  const track = event => {
    const { tracks } = program(event.pid);
    if (!tracks.has(event.tid)) tracks.set(event.tid, { tid: event.tid, name: "", slices: [], marks: [], kernels: [] });
    return tracks.get(event.tid);
  };
  let end = 0;
  for (const event of trace.traceEvents) {
    if (event.ph === "M" && event.name === "process_name") program(event.pid).name = event.args.name;
    else if (event.ph === "M" && event.name === "thread_name") track(event).name = event.args.name;
    else if (event.ph === "X") {
      const state = STATES.indexOf(event.name);
      if (state >= 0) track(event).slices.push({ from: event.ts, to: event.ts + event.dur, state });
    } else if (event.ph === "i" && event.cat === "kernel") {
      track(event).kernels.push({ at: event.ts, name: event.name, launches: event.args.launches });
    } else if (event.ph === "i" && event.tid > 0) track(event).marks.push({ at: event.ts, name: event.name });
    if (event.ts !== undefined) end = Math.max(end, event.ts + (event.dur || 0));
  }
  const whole = Math.max(end, 1);
  const shown = [...programs.values()].map(p => ({ ...p, tracks: [...p.tracks.values()].filter(t => t.tid > 0) })).filter(p => p.tracks.length);
  for (const p of shown) {
    p.tracks.sort((a, b) => a.tid - b.tid);
    for (const t of p.tracks) t.slices.sort((a, b) => a.from - b.from);
    // A task has the kernels of all its queues, which follow it in the list of its program.
    const kernels = p.tracks.flatMap(t => t.kernels);
    const tasks = p.tracks.filter(t => t.tid < QUEUE_TRACKS);
    if (tasks.length === 1) tasks[0].kernels = kernels;
  }

  function time(us) {
    if (us >= 1e6) return `${(us / 1e6).toFixed(2)}\u00a0s`;
    if (us >= 1e3) return `${(us / 1e3).toFixed(us < 1e4 ? 2 : 1)}\u00a0ms`;
    return `${us.toFixed(us < 10 ? 1 : 0)}\u00a0µs`;
  }
  const sum = (slices, state) => slices.filter(s => s.state === state).reduce((total, s) => total + s.to - s.from, 0);
  const percentile = (sorted, part) => sorted[Math.min(sorted.length - 1, Math.ceil(sorted.length * part) - 1)];

  for (const p of shown) {
    for (const t of p.tracks.filter(t => t.tid < QUEUE_TRACKS)) {
      const waits = t.slices.filter(s => s.state === 1).map(s => s.to - s.from).sort((a, b) => a - b);
      const wait = part => waits.length ? time(percentile(waits, part)) : "–";
      const cells = [p.name, t.name, `${(sum(t.slices, 0) / whole * 100).toFixed(1)}\u00a0%`, time(sum(t.slices, 1)),
        String(t.marks.filter(m => m.name === "preempted").length), wait(0.5), wait(0.99), wait(1)];
      const row = $("rows").insertRow();
      for (const text of cells) row.insertCell().textContent = text;
    }
  }
  const facts = trace.otherData || {};
  const lost = Number(facts["events lost"]) ? `, ${facts["events lost"]} lost` : "";
  $("summary").textContent = shown.length
    ? `${shown.length} program${shown.length === 1 ? "" : "s"}, ${time(whole)}, ${facts.events} events${lost}, xsched ${facts.xsched}`
    : "No task was scheduled during this trace.";

  // The kernels with most launches in a part of a track.
  function kernelsOf(row, from, to) {
    const counts = new Map();
    for (const { at, name, launches } of row.track.kernels) {
      if (at >= from && at <= to) counts.set(name, (counts.get(name) || 0) + launches);
    }
    const most = [...counts].sort((a, b) => b[1] - a[1]);
    const texts = most.slice(0, 3).map(([name, count]) => `${name} \u00d7${count}`);
    if (most.length > texts.length) texts.push(`${most.length - texts.length} more`);
    return texts.length ? `; kernels ${texts.join(", ")}` : "";
  }

  // The rows that are drawn, from top to bottom.
  let rows = [], height = 0;
  function layOut() {
    rows = [];
    let y = AXIS_HEIGHT;
    for (const p of shown) {
      rows.push({ y, height: PROGRAM_HEIGHT, label: `${p.name} (${p.pid})`, kind: "program" });
      y += PROGRAM_HEIGHT;
      for (const t of p.tracks) {
        const isQueue = t.tid >= QUEUE_TRACKS;
        if (isQueue && !$("queues").checked) continue;
        const rowHeight = isQueue ? QUEUE_HEIGHT : TASK_HEIGHT;
        rows.push({ y, height: rowHeight, label: t.name, kind: "task", track: t });
        y += rowHeight;
      }
      y += 6;
    }
    height = y;
    names.replaceChildren(...rows.map(row => {
      const div = document.createElement("div");
      Object.assign(div.style, { top: `${row.y}px`, lineHeight: `${row.height}px` });
      div.className = row.kind;
      div.textContent = div.title = row.label;
      return div;
    }));
    show(from, span);
  }

  let from = 0, span = whole;
  const gutter = () => names.offsetWidth;
  const width = () => Math.max(1, canvas.clientWidth - gutter());

  function show(newFrom, newSpan) {
    span = Math.min(whole, Math.max(whole / 1e6, 0.1, newSpan));
    span = Math.min(span, whole);
    from = Math.min(whole - span, Math.max(0, newFrom));
    draw();
  }

  // The first slice that ends after `at`.
  function firstAfter(slices, at) {
    let [low, high] = [0, slices.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (slices[middle].to > at) high = middle; else low = middle + 1;
    }
    return low;
  }

  function draw() {
    const style = getComputedStyle(document.documentElement);
    const color = name => style.getPropertyValue(`--${name}`);
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = `${height}px`;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const [left, wide] = [gutter(), width()];
    const x = at => left + (at - from) / span * wide;
    context.font = "11px system-ui, sans-serif";
    const rough = span / Math.max(2, wide / 110), magnitude = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * magnitude).find(s => s >= rough);
    for (let i = Math.ceil(from / step); i * step <= from + span; i++) {
      context.fillStyle = color("line");
      context.fillRect(x(i * step), 16, 1, height);
      context.fillStyle = color("soft");
      const [label, at] = [i ? time(i * step) : "0", x(i * step) + 3];
      if (at + context.measureText(label).width <= left + wide) context.fillText(label, at, 12);
    }
    const colors = STATES.map(color);
    for (const row of rows) {
      if (!row.track) continue;
      const { slices, marks } = row.track;
      context.fillStyle = color("lane");
      context.fillRect(left, row.y + 2, wide, row.height - 4);
      // Slices that fall into one column of pixels are drawn once for each state.
      const last = [-1, -1, -1];
      for (let i = firstAfter(slices, from); i < slices.length && slices[i].from < from + span; i++) {
        const slice = slices[i];
        const [a, b] = [Math.max(left, x(slice.from)), Math.min(left + wide, x(slice.to))];
        if (b - a < 1 && Math.floor(a) === last[slice.state]) continue;
        last[slice.state] = Math.floor(a);
        context.fillStyle = colors[slice.state];
        context.fillRect(a, row.y + 2, Math.max(1, b - a), row.height - 4);
      }
      context.fillStyle = color("mark");
      let lastMark = -1;
      for (const mark of marks) {
        const at = Math.floor(x(mark.at));
        if (mark.at < from || mark.at > from + span || at === lastMark) continue;
        lastMark = at;
        context.fillRect(at, row.y, 1.5, row.height);
      }
    }
  }

  const partAt = clientX => (clientX - canvas.getBoundingClientRect().left - gutter()) / width();
  const zoom = (factor, part) => {
    const wanted = Math.min(whole, span * factor);
    show(from + part * (span - wanted), wanted);
  };

  const pointers = new Map();
  canvas.addEventListener("pointerdown", event => {
    pointers.set(event.pointerId, event.clientX);
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", event => {
    if (pointers.has(event.pointerId)) {
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event.clientX);
      const after = [...pointers.values()];
      const apart = ([a, b]) => Math.max(20, Math.abs(a - b));
      if (after.length === 2) zoom(apart(before) / apart(after), partAt((after[0] + after[1]) / 2));
      else show(from - (after[0] - before[0]) / width() * span, span);
      return;
    }
    const y = event.clientY - canvas.getBoundingClientRect().top;
    const row = rows.find(row => row.track && y >= row.y && y < row.y + row.height);
    const part = partAt(event.clientX);
    if (!row || part < 0 || part > 1) return;
    const at = from + part * span;
    const slice = row.track.slices[firstAfter(row.track.slices, at)];
    readout.textContent = slice && slice.from <= at
      ? `${row.label}: ${STATES[slice.state]} for ${time(slice.to - slice.from)}, from ${time(slice.from)} to ${time(slice.to)}${kernelsOf(row, slice.from, slice.to)}`
      : `${row.label}: idle at ${time(at)}`;
  });
  for (const over of ["pointerup", "pointercancel"]) canvas.addEventListener(over, event => pointers.delete(event.pointerId));
  canvas.addEventListener("wheel", event => {
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), Math.min(1, Math.max(0, partAt(event.clientX))));
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + event.deltaX / width() * span, span);
    else return;
    event.preventDefault();
  }, { passive: false });
  plot.addEventListener("keydown", event => {
    const act = {
      ArrowLeft: () => show(from - span / 8, span), ArrowRight: () => show(from + span / 8, span),
      "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), "0": () => show(0, whole),
    }[event.key];
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { act(); event.preventDefault(); }
  });
  document.querySelector(".tools").addEventListener("click", event => {
    const { zoom: by } = event.target.dataset;
    if (by === "reset") show(0, whole);
    else if (by) zoom(Number(by), 0.5);
  });
  $("queues").addEventListener("change", layOut);
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  layOut();
})();
