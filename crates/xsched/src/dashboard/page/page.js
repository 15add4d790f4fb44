// The dashboard: requests the state once a second and shows it.

import { element, openWithArrows, setText } from "./format.js";
import { Grants } from "./grants.js";
import { History, Timelines } from "./timeline.js";
import { Tasks, showWaits } from "./tasks.js";

const INTERVAL_MS = 1000;
const REQUEST_TIMEOUT_MS = 8000;
const COLORS = 8;

const find = (id) => document.getElementById(id);
const history = new History();
const timelines = new Timelines(find("devices"));
const tasks = new Tasks(find("tasks"), changeTask, askPriority);
const grants = new Grants(find("grants"), changeGrant);
const colorOf = new Map();
let state = null;
let servicePid = null;
let policies = [];
let timer = null;
let isPaused = false;
let isOver = false;

// The storage of the tab belongs to this address and port; the address bar and the history do not keep the token.
function takeToken() {
  const given = new URLSearchParams(window.location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("token", given);
    window.history.replaceState(null, "", "/");
  }
}

function color(task) {
  if (!colorOf.has(task)) colorOf.set(task, colorOf.size % COLORS);
  return String(colorOf.get(task));
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem("token") || ""}` };
  const response = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });
  const body = await response.json();
  if (!response.ok) throw Object.assign(new Error(body.error), { status: response.status });
  return body;
}

function alert(text) {
  setText(find("alert"), text || "");
  find("alert").hidden = !text;
  document.body.classList.toggle("outdated", Boolean(text));
}

let messageTimer = null;
function message(text, isError) {
  const shown = find("message");
  shown.className = isError ? "failed" : "";
  setText(shown, text);
  shown.hidden = false;
  clearTimeout(messageTimer);
  messageTimer = setTimeout(() => { shown.hidden = true; }, isError ? 12000 : 4000);
}

async function send(path, change, done) {
  try {
    await request(path, { method: "POST", body: JSON.stringify(change) });
    message(done);
  } catch (error) {
    message(`Not changed: ${error.message}`, true);
  }
  setTimeout(poll, 150);
}

function changeTask(task, what) {
  const words = { priority: "priority", share: "share", suspended: "state" };
  const names = Object.keys(what).map((key) => words[key]).join(", ");
  return send("/api/task", { service: servicePid, task: task.task, ...what }, `Changed the ${names} of process ${task.pid}`);
}

async function changeGrant(name, suspended) {
  await send("/api/grant", { name, suspended }, `${suspended ? "Suspended" : "Resumed"} the processes of grant ${name}`);
  grants.reset();
}

// Asks for a priority. Returns null if the user cancels.
function askPriority(task) {
  const [dialog, value] = [find("dialog"), find("dialog-value")];
  setText(find("dialog-task"), task.name);
  value.value = String(task.priority);
  dialog.showModal();
  value.select();
  return new Promise((resolve) => {
    const finish = (result) => {
      controller.abort();
      dialog.close();
      resolve(result);
    };
    const accept = () => (value.value !== "" && value.reportValidity() ? finish(value.value) : undefined);
    const controller = new AbortController();
    const { signal } = controller;
    find("dialog-set").addEventListener("click", accept, { signal });
    find("dialog-cancel").addEventListener("click", () => finish(null), { signal });
    value.addEventListener("keydown", (event) => { if (event.key === "Enter") accept(); }, { signal });
    dialog.addEventListener("cancel", () => finish(null), { signal });
  });
}

function showPolicy() {
  const select = find("policy");
  if (document.activeElement === select) return;
  if (select.options.length !== policies.length) {
    select.replaceChildren(...policies.map((policy) =>
      element("option", { value: policy.name, text: `${policy.plain} (${policy.name})`, title: policy.summary })));
  }
  select.value = state.policy.name;
  const used = policies.find((policy) => policy.name === state.policy.name);
  select.title = used ? used.summary : "";
  select.disabled = false;
}

function show() {
  const { status } = state;
  const slice = state.policy.timeslice_us / 1000;
  setText(find("service"), `Service ${status.version}, process ${status.pid}, time slice ${slice} ms`);
  showPolicy();
  // Colors in the order of the tasks' numbers, so that a new page has the same.
  [...status.tasks].sort((a, b) => a.task - b.task).forEach((task) => color(task.task));
  const hasTasks = status.tasks.length > 0;
  find("empty").hidden = hasTasks;
  find("legend").hidden = !hasTasks;
  find("tasks-section").hidden = !hasTasks;
  timelines.update(state, history, color);
  tasks.update(state, color);
  grants.update(state.grants);
  find("grants-section").hidden = state.grants.length === 0;
  find("waits-section").hidden = !showWaits(find("waits"), state, color);
  document.body.dataset.updated = String(status.now_ns);
}

function receive(received) {
  if (received.policies) policies = received.policies;
  if (received.service === "disconnected") {
    alert(`No connection to the scheduler: ${received.error}. The page connects again when it runs.`);
    find("policy").disabled = true;
    return;
  }
  if (received.service !== "connected") return;
  if (servicePid !== null && servicePid !== received.status.pid) {
    // Task numbers belong to one service.
    history.clear();
    colorOf.clear();
  }
  servicePid = received.status.pid;
  state = received;
  history.add(received.timeline, received.now_us);
  alert(received.notes.join(" "));
  document.body.classList.remove("outdated");
  show();
}

async function poll() {
  clearTimeout(timer);
  if (isOver || isPaused || document.visibilityState === "hidden") return;
  let next = INTERVAL_MS;
  try {
    const received = await request(`/api/state?after=${history.sequence}&events=${find("events").checked ? 1 : 0}`);
    if (received.service === "connecting") next = 100;
    receive(received);
  } catch (error) {
    if (error.status === 403) {
      isOver = true;
      alert(error.message);
      return;
    }
    alert("The program `xsched dashboard` does not reply. If it has ended, start it again and open the address that it prints.");
  }
  clearTimeout(timer);
  timer = setTimeout(poll, next);
}

function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  find("theme").value = theme;
}

find("theme").addEventListener("change", () => {
  localStorage.setItem("theme", find("theme").value);
  setTheme(find("theme").value);
  timelines.draw(history);
});
find("span").addEventListener("change", (event) => {
  timelines.seconds = Number(event.target.value);
  timelines.draw(history);
});
find("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  find("pause").setAttribute("aria-pressed", String(isPaused));
  setText(find("pause"), isPaused ? "Continue" : "Pause");
  poll();
});
openWithArrows(find("policy"));
find("policy").addEventListener("change", () => {
  const name = find("policy").value;
  find("policy").blur();
  send("/api/policy", { name }, `Changed the policy to ${name}`);
});
document.addEventListener("visibilitychange", poll);
window.addEventListener("resize", () => timelines.draw(history));
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => timelines.draw(history));
window.addEventListener("hashchange", () => {
  takeToken();
  isOver = false;
  poll();
});

takeToken();
setTheme(localStorage.getItem("theme") || "auto");
poll();
