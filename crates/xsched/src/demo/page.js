"use strict";
// The page is complete without this script, which scrolls and zooms the timeline and shows latencies at the pointer.

(() => {
  const plot = document.getElementById("timeline");
  const tools = document.getElementById("tools");
  if (!plot) return;
  const charts = [...plot.querySelectorAll("svg")];
  const axis = plot.querySelector(".axis");
  const whole = Number(plot.dataset.whole);
  const initial = charts[0].viewBox.baseVal.width;
  const labels = [...plot.querySelectorAll(".view b")].map(element => ({ element, time: Number(element.style.getPropertyValue("--t")) }));
  let from = 0, span = initial;

  function show(newFrom, newSpan) {
    span = Math.min(whole, Math.max(initial / 16, newSpan));
    from = Math.min(whole - span, Math.max(0, newFrom));
    plot.style.setProperty("--from", from);
    plot.style.setProperty("--span", span);
    plot.classList.toggle("far", span / axis.clientWidth > initial / 250);
    for (const chart of charts) {
      const height = chart.viewBox.baseVal.height;
      chart.setAttribute("viewBox", `${from} 0 ${span} ${height}`);
    }
    placeLabels();
    drawTicks();
  }

  // Keeps the label of a bracket that is partly visible inside the view, and hides one that would touch its predecessor.
  function placeLabels() {
    const ends = new Map();
    for (const label of labels) {
      const [at, half] = [(label.time - from) / span * axis.clientWidth, label.element.offsetWidth / 2];
      const isVisible = at > -half && at < axis.clientWidth + half;
      const kept = Math.max(half, Math.min(axis.clientWidth - half, at));
      const touches = isVisible && kept - half < (ends.get(label.element.parentElement) ?? -Infinity) + 4;
      label.element.style.left = isVisible ? `${kept}px` : "";
      label.element.style.visibility = touches ? "hidden" : "";
      if (isVisible && !touches) ends.set(label.element.parentElement, kept + half);
    }
  }

  function drawTicks() {
    const rough = span / Math.max(3, axis.clientWidth / 90);
    const magnitude = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(m => m * magnitude).find(s => s >= rough);
    const ticks = [];
    for (let i = Math.ceil(from / step); i * step <= from + span * 0.97; i++) {
      const tick = document.createElement("span");
      tick.style.setProperty("--t", i * step);
      tick.textContent = i ? `${+(i * step / 1e3).toFixed(3)}\u00a0ms` : "0";
      ticks.push(tick);
    }
    axis.replaceChildren(...ticks);
  }

  // Keeps the time at `part` of the width in place.
  const zoom = (factor, part) => {
    const wanted = Math.min(whole, Math.max(initial / 16, span * factor));
    show(from + part * (span - wanted), wanted);
  };
  const partAt = x => {
    const box = axis.getBoundingClientRect();
    return (x - box.left) / box.width;
  };

  const pointers = new Map();
  for (const chart of charts) {
    const view = chart.parentElement;
    view.addEventListener("pointerdown", event => {
      pointers.set(event.pointerId, event.clientX);
      view.setPointerCapture(event.pointerId);
    });
    view.addEventListener("pointermove", event => {
      if (!pointers.has(event.pointerId)) return;
      const before = [...pointers.values()];
      pointers.set(event.pointerId, event.clientX);
      const after = [...pointers.values()];
      if (after.length === 2) {
        const apart = ([a, b]) => Math.max(20, Math.abs(a - b));
        zoom(apart(before) / apart(after), partAt((after[0] + after[1]) / 2));
      } else {
        show(from - (after[0] - before[0]) / axis.clientWidth * span, span);
      }
    });
    for (const end of ["pointerup", "pointercancel"]) {
      view.addEventListener(end, event => pointers.delete(event.pointerId));
    }
    view.addEventListener("wheel", event => {
      if (event.ctrlKey || event.metaKey) zoom(Math.exp(event.deltaY / 300), partAt(event.clientX));
      else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) show(from + event.deltaX / axis.clientWidth * span, span);
      else return;
      event.preventDefault();
    }, { passive: false });
  }
  plot.tabIndex = 0;
  plot.addEventListener("keydown", event => {
    const act = {
      ArrowLeft: () => show(from - span / 8, span), ArrowRight: () => show(from + span / 8, span),
      "+": () => zoom(0.5, 0.5), "-": () => zoom(2, 0.5), "0": () => show(0, initial),
    }[event.key];
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) { act(); event.preventDefault(); }
  });
  tools.addEventListener("click", event => {
    const { zoom: by } = event.target.dataset;
    if (by === "reset") show(0, initial);
    else if (by) zoom(Number(by), 0.5);
  });
  plot.classList.add("live");
  tools.hidden = false;
  addEventListener("resize", () => show(from, span));
  show(from, span);
})();

(() => {
  const plot = document.getElementById("latency");
  const readout = document.getElementById("readout");
  if (!plot) return;
  const { low, high, log, scenes } = JSON.parse(plot.querySelector("script").textContent);
  const axis = plot.querySelector(".axis");
  const pointer = document.createElement("div");
  pointer.className = "pointer";
  const hint = "point at a latency to compare";
  readout.hidden = false;
  readout.textContent = hint;

  plot.addEventListener("pointermove", event => {
    const box = axis.getBoundingClientRect();
    const part = (event.clientX - box.left) / box.width;
    if (part < 0 || part > 1) return leave();
    const at = log ? low * (high / low) ** part : low + part * (high - low);
    const within = scenes.filter(([, all]) => all.length).map(([name, all]) => {
      const done = all.filter(us => us <= at).length / all.length;
      return `${name} ${(done * 100).toFixed(0)}\u00a0%`;
    });
    const shown = at < 1e3 ? `${at.toFixed(0)}\u00a0µs` : `${(at / 1e3).toFixed(1)}\u00a0ms`;
    readout.textContent = `Done within ${shown}: ${within.join(", ")}.`;
    pointer.style.left = `${event.clientX - plot.getBoundingClientRect().left}px`;
    plot.append(pointer);
  });
  plot.addEventListener("pointerleave", leave);
  function leave() {
    pointer.remove();
    readout.textContent = hint;
  }
})();
