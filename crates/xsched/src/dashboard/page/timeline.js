// The timelines of the devices: one row for each task.
//
// A column of pixels shows the parts of its time in which the task ran (from the bottom), was held and was stalled. Where no events were
// recorded, it shows the mean utilization of that time.

import { bytes, element, percent, setText, taskName } from "./format.js";

const KEEP_US = 61e6;
const RUNNING = 0;
const HELD = 1;

// What was received and is not older than a minute.
export class History {
  constructor() {
    this.clear();
  }

  clear() {
    this.sequence = 0;
    this.spans = [];
    this.open = [];
    this.recorded = [];
    this.samples = [];
    this.now = 0;
  }

  add(timeline, now) {
    this.sequence = timeline.sequence;
    this.spans.push(...timeline.spans);
    this.recorded.push(...timeline.recorded);
    this.samples.push(...timeline.samples);
    this.open = timeline.open;
    this.openRecord = timeline.recording_since === null ? [] : [[timeline.recording_since, now]];
    this.now = now;
    const oldest = now - KEEP_US;
    this.spans = this.spans.filter((span) => span[3] >= oldest);
    this.recorded = this.recorded.filter((period) => period[1] >= oldest);
    this.samples = this.samples.filter((sample) => sample[1] >= oldest);
  }

  // All spans of a task, with those that have not ended.
  spansOf(task) {
    const open = this.open.filter((span) => span[0] === task);
    return [
      ...this.spans.filter((span) => span[0] === task),
      ...open.map(([number, state, from]) => [number, state, from, this.now, 0]),
    ];
  }
}

// The parts of each of `columns` columns that a task ran, was held and was stalled, and when it was preempted.
function columnsOf(history, task, from, to, columns) {
  const width = (to - from) / columns;
  const parts = [0, 1, 2, 3].map(() => new Float32Array(columns));
  const sampled = parts[3];
  const recorded = new Float32Array(columns);
  const add = (into, begin, end, weight) => {
    const first = Math.max(0, Math.floor((begin - from) / width));
    const last = Math.min(columns - 1, Math.floor((end - from) / width));
    for (let column = first; column <= last; column += 1) {
      const low = from + column * width;
      const overlap = Math.min(end, low + width) - Math.max(begin, low);
      if (overlap > 0) into[column] += (overlap / width) * weight;
    }
  };
  const preempted = [];
  const total = [0, 0, 0];
  for (const [, state, begin, end, stopped] of history.spansOf(task)) {
    add(parts[state], begin, end, 1);
    total[state] += Math.max(0, Math.min(end, to) - Math.max(begin, from));
    if (stopped && end >= from && end <= to) preempted.push(Math.floor((end - from) / width));
  }
  for (const [begin, end] of [...history.recorded, ...history.openRecord]) add(recorded, begin, end, 1);
  for (const [begin, end, tasks] of history.samples) {
    const found = tasks.find((entry) => entry[0] === task);
    if (found) add(sampled, begin, end, found[1]);
  }
  return { parts, recorded, preempted, total };
}

function draw(canvas, history, task, from, to) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [Math.round(canvas.clientWidth * ratio), Math.round(canvas.clientHeight * ratio)];
  if (width === 0) return;
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  const style = getComputedStyle(canvas);
  const color = { task: style.color, held: style.outlineColor, stalled: style.borderTopColor, mark: style.caretColor };
  const { parts, recorded, preempted, total } = columnsOf(history, task, from, to, width);
  const top = Math.round(4 * ratio);
  const room = height - top;
  for (let column = 0; column < width; column += 1) {
    let bottom = height;
    const bar = (part, fill, alpha) => {
      const tall = Math.min(bottom - top, Math.round(part * room));
      if (tall <= 0) return;
      context.globalAlpha = alpha;
      context.fillStyle = fill;
      context.fillRect(column, bottom - tall, 1, tall);
      bottom -= tall;
    };
    bar(parts[0][column], color.task, 1);
    bar(parts[1][column], color.held, 1);
    bar(parts[2][column], color.stalled, 1);
    if (recorded[column] < 0.5) bar(parts[3][column] * (1 - recorded[column]), color.task, 0.4);
  }
  context.globalAlpha = 1;
  context.fillStyle = color.mark;
  for (const column of new Set(preempted)) context.fillRect(column, 0, Math.max(1, Math.round(ratio)), top);
  return { ran: total[RUNNING] / (to - from), held: total[HELD] / (to - from), preempted: preempted.length };
}

// The devices and the rows of their tasks. Elements are kept from one update to the next.
export class Timelines {
  constructor(root) {
    this.root = root;
    this.devices = new Map();
    this.seconds = 5;
  }

  update(state, history, colors) {
    for (const [id, device] of this.devices) {
      if (!state.devices.some((known) => known.device === id)) {
        device.root.remove();
        this.devices.delete(id);
      }
    }
    for (const known of state.devices) this.device(known, state, colors);
    this.draw(history);
  }

  device(known, state, colors) {
    let device = this.devices.get(known.device);
    if (!device) {
      const [title, figures] = [element("h3"), element("p", { class: "quiet" })];
      const rows = element("div", { class: "rows" });
      const [begin, end] = [element("span"), element("span", { text: "now" })];
      const axis = element("div", { class: "axis", "aria-hidden": "true" }, element("span"), element("div", {}, begin, end));
      const root = element("article", { class: "device" }, element("div", { class: "title" }, title, figures), rows, axis);
      this.root.append(root);
      device = { root, title, figures, rows, begin, tasks: new Map() };
      this.devices.set(known.device, device);
    }
    const tasks = state.status.tasks.filter((task) => task.device === known.device);
    const used = tasks.reduce((sum, task) => sum + (task.rates ? task.rates.utilization : 0), 0);
    const count = (wanted) => tasks.filter((task) => task.state === wanted).length;
    const figures = [`utilization ${percent(Math.min(1, used))}`, `${count("running")} running`, `${count("held")} held`];
    if (known.memory) figures.push(`memory ${bytes(known.memory.used)} of ${bytes(known.memory.total)}`);
    setText(device.title, known.name);
    setText(device.figures, figures.join(", "));
    for (const [number, row] of device.tasks) {
      if (!tasks.some((task) => task.task === number)) {
        row.root.remove();
        device.tasks.delete(number);
      }
    }
    tasks.forEach((task, index) => {
      let row = device.tasks.get(task.task);
      if (!row) {
        const name = element("span", { class: "name" });
        const label = element("div", { class: "label" }, element("span", { class: "swatch" }), name);
        const canvas = element("canvas", { role: "img" });
        row = { root: element("div", { class: "row" }, label, canvas), name, canvas };
        device.tasks.set(task.task, row);
      }
      if (device.rows.children[index] !== row.root) device.rows.insertBefore(row.root, device.rows.children[index] || null);
      row.root.dataset.color = colors(task.task);
      row.title = taskName(task);
      setText(row.name, row.title);
      row.name.title = `${row.title}, process ${task.pid}`;
    });
  }

  draw(history) {
    const from = history.now - this.seconds * 1e6;
    for (const device of this.devices.values()) {
      setText(device.begin, `${this.seconds} s ago`);
      for (const [number, row] of device.tasks) {
        const figures = draw(row.canvas, history, number, from, history.now);
        if (!figures) continue;
        const text = `${row.title}: ran ${percent(figures.ran)} of the last ${this.seconds} s, held ${percent(figures.held)}, preempted ${figures.preempted} times`;
        row.canvas.setAttribute("aria-label", text);
        row.canvas.title = text;
      }
    }
  }
}
