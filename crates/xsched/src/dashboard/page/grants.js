// The table of grants: the rights that a cluster manager gave to the processes of a job.

import { bytes, element } from "./format.js";

// The processes that a grant applies to.
function scope(status) {
  const { grant } = status;
  const parts = [];
  if (grant.cgroup) parts.push(`control group ${grant.cgroup}`);
  if (status.has_token) parts.push("processes with its token");
  if (grant.uid !== undefined) parts.push(`user ${grant.uid}`);
  for (const [key, value] of Object.entries(grant.labels || {})) parts.push(`${key}=${value}`);
  return parts.join(", ");
}

function row(status, change) {
  const { grant } = status;
  const cell = (label, text) => element("td", { "data-label": label, class: "number", text });
  const action = status.is_suspended ? "Resume" : "Suspend";
  const button = element("button", { type: "button", text: action, "aria-label": `${action} grant ${grant.name}` });
  button.addEventListener("click", () => {
    button.disabled = true;
    change(grant.name, !status.is_suspended);
  });
  return element("tr", { "data-grant": grant.name },
    element("th", { scope: "row" }, element("div", {},
      element("span", { class: "name", text: grant.name }), element("span", { class: "quiet", text: scope(status) }))),
    cell("Priority", grant.priority === undefined ? "-" : String(grant.priority)),
    cell("Share", grant.share === undefined ? "-" : `${grant.share} %`),
    cell("Memory", grant.memory === undefined ? "-" : bytes(grant.memory)),
    cell("Processes", status.processes.length === 0 ? "none" : status.processes.join(", ")),
    element("td", {}, button));
}

// Shows the grants. Rows are replaced only if a grant has changed, so that a button keeps the focus.
export class Grants {
  constructor(root, change) {
    Object.assign(this, { root, change, shown: "" });
  }

  update(grants) {
    const text = JSON.stringify(grants);
    if (text === this.shown) return;
    this.shown = text;
    this.root.replaceChildren(...grants.map((grant) => row(grant, this.change)));
  }

  // Shows the grants again with the next update, whether they have changed or not.
  reset() {
    this.shown = "";
  }
}
