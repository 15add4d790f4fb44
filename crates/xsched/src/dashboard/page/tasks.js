// The table of tasks, and the histograms of their waits.

import { duration, element, openWithArrows, perSecond, percent, setText, taskName } from "./format.js";

const PRIORITIES = [[100, "high"], [0, "normal"], [-100, "low"]];
// The lowest that can be reached by dragging: -256 means that the task never runs.
const MIN_PRIORITY = "-255";
// Arrow keys change the slider by 1 each: the value is sent when no key was pressed for this long.
const SLIDER_DELAY_MS = 400;
const MIN_BARS = 8;
const STATES = { idle: "idle", running: "running", held: "held", suspended: "suspended", stalled: "stalled", parked: "parked" };

// A row of the table. `change` sends a change of the task, `ask` asks the user for a number.
class Row {
  constructor(change, ask) {
    const cell = (label, ...children) => element("td", { "data-label": label }, ...children);
    this.name = element("span", { class: "name" });
    this.about = element("span", { class: "quiet" });
    this.state = element("span", { class: "state" });
    this.priority = element("select");
    this.slider = element("input", { type: "range", min: MIN_PRIORITY, max: "255", step: "1" });
    this.share = element("input", { type: "number", min: "0", max: "100", step: "1" });
    this.bar = element("div", { class: "fill" });
    this.utilization = element("span");
    this.suspend = element("button", { type: "button" });
    const number = (label) => {
      const made = cell(label);
      made.classList.add("number");
      return made;
    };
    this.held = number("Held");
    this.preempted = number("Preempted");
    this.launches = number("Launches/s");
    this.wait = number("Wait p99");
    this.root = element(
      "tr", {},
      element("th", { scope: "row" }, element("span", { class: "swatch" }), element("div", {}, this.name, this.about)),
      cell("State", this.state),
      cell("Priority", element("div", { class: "priority" }, this.priority, this.slider)),
      cell("Share", element("span", { class: "unit" }, this.share, " %")),
      cell("Utilization", element("div", { class: "meter" }, element("div", { class: "bar" }, this.bar), this.utilization)),
      this.held, this.preempted, this.launches, this.wait,
      element("td", {}, this.suspend),
    );
    openWithArrows(this.priority);
    this.priority.addEventListener("change", async () => {
      let value = this.priority.value;
      if (value === "other") value = await ask(this.task);
      if (value === null) this.show(this.shown);
      else this.send(change, { priority: Number(value) });
    });
    this.slider.addEventListener("input", () => {
      clearTimeout(this.sliderTimer);
      this.isDragged = true;
      this.show(Number(this.slider.value));
    });
    this.slider.addEventListener("change", () => {
      clearTimeout(this.sliderTimer);
      this.sliderTimer = setTimeout(async () => {
        const hadFocus = document.activeElement === this.slider;
        await this.send(change, { priority: Number(this.slider.value) });
        this.isDragged = false;
        // A disabled control loses the focus, and the next key would do nothing.
        if (hadFocus && document.activeElement === document.body) this.slider.focus();
      }, SLIDER_DELAY_MS);
    });
    this.share.addEventListener("change", () => {
      if (this.share.value === "" || !this.share.checkValidity()) this.share.reportValidity();
      else this.send(change, { share: Number(this.share.value) });
    });
    this.suspend.addEventListener("click", () => this.send(change, { suspended: this.task.state !== "suspended" }));
  }

  // Controls are disabled until the service has replied.
  async send(change, what) {
    this.isSending = true;
    this.enable();
    await change(this.task, what);
    this.isSending = false;
    this.shown = undefined;
    this.enable();
  }

  enable() {
    // The service hides the names of programs that this user may not change.
    const isForeign = this.task.name === "";
    const why = isForeign ? "Only administrators may change programs of other users" : "";
    for (const control of [this.priority, this.slider, this.share, this.suspend]) {
      control.disabled = isForeign || this.isSending === true;
      control.title = why;
    }
  }

  // Shows the priority in the menu.
  show(priority) {
    const known = PRIORITIES.some(([value]) => value === priority);
    const options = PRIORITIES.map(([value, name]) => [String(value), `${name} (${value})`]);
    if (!known) options.unshift([String(priority), String(priority)]);
    options.push(["other", "other..."]);
    this.priority.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
    this.priority.value = String(priority);
    if (!this.isDragged) this.slider.value = String(priority);
    this.shown = priority;
  }

  update(task, user, color) {
    this.task = task;
    const name = taskName(task);
    this.root.dataset.color = color;
    this.root.dataset.task = task.task;
    setText(this.name, name);
    this.name.title = task.cmdline;
    const about = [`process ${task.pid}`, user];
    if (task.job) about.push(`job ${task.job}`);
    if (task.grant) about.push(`grant ${task.grant}`);
    for (const [key, value] of Object.entries(task.labels || {})) about.push(`${key}=${value}`);
    if (task.level) about.push(`level ${task.level}`);
    if (task.kind) about.push(task.kind === "gpu_bound" ? "GPU-bound" : task.kind.replace("_", "-"));
    if (task.deadline_us !== null) about.push(`deadline ${duration(task.deadline_us)}`);
    if (task.laxity_us !== null) about.push(`laxity ${duration(task.laxity_us)}`);
    setText(this.about, about.join(", "));
    setText(this.state, STATES[task.state] || task.state);
    this.state.dataset.state = task.state;
    // A control that the user is using keeps its value.
    if (document.activeElement !== this.priority && !this.isDragged && this.shown !== task.priority) this.show(task.priority);
    if (document.activeElement !== this.share) this.share.value = String(task.share);
    this.priority.setAttribute("aria-label", `Priority of ${name}`);
    this.slider.setAttribute("aria-label", `Priority of ${name}, -255 to 255`);
    this.share.setAttribute("aria-label", `Share of ${name} in percent`);
    const rates = task.rates;
    this.bar.style.width = `${Math.round((rates ? rates.utilization : 0) * 100)}%`;
    setText(this.utilization, rates ? percent(rates.utilization) : "-");
    setText(this.held, rates ? percent(rates.held) : "-");
    setText(this.preempted, String(task.preemptions));
    setText(this.launches, rates && rates.launches_per_s !== null ? perSecond(rates.launches_per_s) : "-");
    setText(this.wait, task.wait_p99_us === null ? "-" : duration(task.wait_p99_us));
    const action = task.state === "suspended" ? "Resume" : "Suspend";
    setText(this.suspend, action);
    this.suspend.setAttribute("aria-label", `${action} ${name}`);
    this.enable();
  }
}

// The rows of all tasks.
export class Tasks {
  constructor(root, change, ask) {
    Object.assign(this, { root, change, ask, rows: new Map() });
  }

  update(state, colors) {
    const { tasks } = state.status;
    for (const [number, row] of this.rows) {
      if (!tasks.some((task) => task.task === number)) {
        row.root.remove();
        this.rows.delete(number);
      }
    }
    tasks.forEach((task, index) => {
      let row = this.rows.get(task.task);
      if (!row) {
        row = new Row(this.change, this.ask);
        this.rows.set(task.task, row);
      }
      // A row that moves would lose the focus: it moves after the user has left it.
      const isInUse = this.root.contains(document.activeElement) && document.activeElement !== document.body;
      const place = this.root.children[index] || null;
      if (!row.root.isConnected || (place !== row.root && !isInUse)) this.root.insertBefore(row.root, place);
      row.update(task, state.users[task.uid] || String(task.uid), colors(task.task));
    });
  }
}

// A histogram for each task that has waited.
export function showWaits(root, state, colors) {
  const figures = state.status.tasks.filter((task) => state.waits[task.task]).map((task) => {
    const waits = state.waits[task.task];
    const highest = Math.max(...waits.buckets.map((bucket) => bucket[1]));
    let first = Math.log2(waits.buckets[0][0]);
    let last = Math.log2(waits.buckets[waits.buckets.length - 1][0]);
    // Few bars would be wide.
    while (last - first + 1 < MIN_BARS) [first, last] = first > 0 ? [first - 1, last + 1] : [first, last + 1];
    const bars = element("div", { class: "bars", "aria-hidden": "true" });
    for (let power = first; power <= last; power += 1) {
      const found = waits.buckets.find((bucket) => bucket[0] === 2 ** power);
      const bar = element("div", { title: `${found ? found[1] : 0} waits of ${duration(power === 0 ? 0 : 2 ** power)} to ${duration(2 ** (power + 1))}` });
      bar.style.height = `${found ? Math.max(3, (found[1] / highest) * 100) : 0}%`;
      bars.append(bar);
    }
    const figure = (name, us) => element("span", {}, element("span", { class: "quiet", text: `${name} ` }), duration(us));
    const text = element("p", { class: "percentiles" }, figure("p50", waits.p50_us), figure("p90", waits.p90_us), figure("p99", waits.p99_us));
    const ends = element("div", { class: "ends", "aria-hidden": "true" },
      element("span", { text: duration(first === 0 ? 0 : 2 ** first) }), element("span", { text: duration(2 ** (last + 1)) }));
    const made = element("figure", { "data-task": task.task },
      element("figcaption", {}, element("span", { class: "swatch" }), element("span", { class: "name", text: taskName(task) })),
      bars, ends, text, element("p", { class: "quiet", text: `${waits.count} waits` }));
    made.dataset.color = colors(task.task);
    return made;
  });
  root.replaceChildren(...figures);
  return figures.length > 0;
}
