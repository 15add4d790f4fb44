// Numbers and times as `xsched top` shows them.

// A time in microseconds, with at most three digits.
export function duration(us) {
  if (us < 1e3) return `${Math.round(us)} us`;
  if (us < 9950) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 999500) return `${Math.round(us / 1e3)} ms`;
  if (us < 9950000) return `${(us / 1e6).toFixed(1)} s`;
  return `${Math.round(us / 1e6)} s`;
}

// A number of times per second.
export function perSecond(n) {
  if (n < 0.05) return "0";
  if (n < 9.95) return n.toFixed(1);
  if (n < 999.5) return n.toFixed(0);
  if (n < 999500) return `${(n / 1e3).toFixed(n < 99950 ? 1 : 0)}k`;
  return `${(n / 1e6).toFixed(1)}M`;
}

// A part of a whole.
export function percent(part) {
  const value = part * 100;
  return value > 0 && value < 0.5 ? "<1 %" : `${value.toFixed(0)} %`;
}

// A number of bytes.
export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${n < 9.95 && unit > 0 ? n.toFixed(1) : n.toFixed(0)} ${units[unit]}`;
}

// An element with attributes and children. Text is always text: names of programs cannot become markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "text") made.textContent = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Sets text only if it differs: screen readers and selections are not disturbed.
export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

// Arrow keys open a menu that is closed: without this they would choose the next entry, and change the scheduler with every key.
export function openWithArrows(select) {
  select.addEventListener("keydown", (event) => {
    if (!["ArrowDown", "ArrowUp"].includes(event.key) || !select.showPicker || !CSS.supports("selector(:open)")) return;
    if (!select.matches(":open")) {
      event.preventDefault();
      select.showPicker();
    }
  });
}

// The name of a task.
export function taskName(task) {
  const name = task.name || "(another user's)";
  return task.own ? `${name} [queue]` : name;
}
