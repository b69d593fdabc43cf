// Keys. They do nothing while a field has the focus, with a modifier, or when they are switched off in the help.

const help = document.getElementById("help");
const toggle = help.querySelector("[data-keys-toggle]");
const button = document.querySelector("[data-help-button]");
const STORED = "lazaret-keys";

function stored() {
  try {
    return localStorage.getItem(STORED) !== "off";
  } catch {
    return true;
  }
}

let active = stored();
toggle.checked = active;
toggle.addEventListener("change", () => {
  active = toggle.checked;
  try {
    localStorage.setItem(STORED, active ? "on" : "off");
  } catch {
    // Only for this page.
  }
});
button.hidden = false;
button.addEventListener("click", () => help.showModal());

const rows = () => [...document.querySelectorAll("[data-rows] [data-row]")];
const linkOf = (row) => row?.querySelector("[data-open]") ?? row?.querySelector("a");

// The row that has the focus, or -1.
const current = () => rows().findIndex((row) => row.contains(document.activeElement));

function step(by) {
  const all = rows();
  if (all.length === 0) return;
  const at = current();
  const next = at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(Math.max(at + by, 0), all.length - 1);
  linkOf(all[next])?.focus();
  all[next].scrollIntoView({ block: "nearest" });
}

function mark() {
  const box = rows()[current()]?.querySelector("input[type=checkbox]");
  if (!box) return;
  box.checked = !box.checked;
  box.dispatchEvent(new Event("change", { bubbles: true }));
}

// The first visible control for a key.
function press(key) {
  const marked = document.querySelector("[data-rows] input[type=checkbox]:checked");
  const control = (marked && document.querySelector(`[data-marked-key="${key}"]`)) ?? document.querySelector(`[data-key="${key}"]`);
  if (!control || control.disabled) return;
  control.focus();
  control.click();
}

function search() {
  const box = document.querySelector('[data-search="page"]') ?? document.querySelector("[data-search]");
  if (!box) return;
  box.focus();
  box.select();
}

let waiting = false;
const single = {
  "?": () => help.showModal(),
  "/": search,
  j: () => step(1),
  k: () => step(-1),
  x: mark,
  R: () => press("R"),
  E: () => press("E"),
  A: () => press("A"),
  "[": () => document.querySelector('a[rel="prev"]')?.click(),
  "]": () => document.querySelector('a[rel="next"]')?.click(),
  t: () => document.querySelector("[data-theme-button]")?.click(),
};

document.addEventListener("keydown", (event) => {
  const field = event.target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
  if (event.key === "Escape" && field) {
    field.blur();
    return;
  }
  if (field || !active || help.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (waiting) {
    waiting = false;
    const link = document.querySelector(`[data-go="${CSS.escape(event.key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (event.key === "g") {
    waiting = true;
    setTimeout(() => {
      waiting = false;
    }, 1200);
    return;
  }
  const act = single[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

// Marked rows look marked, and the head of a table marks all of its rows.
document.addEventListener("change", (event) => {
  const box = event.target;
  if (!(box instanceof HTMLInputElement) || box.type !== "checkbox") return;
  if (box.dataset.markAll !== undefined) {
    for (const other of box.closest("table").querySelectorAll("tbody input[type=checkbox]")) {
      other.checked = box.checked;
      other.closest("tr").toggleAttribute("data-marked", box.checked);
    }
  } else {
    box.closest("[data-row]")?.toggleAttribute("data-marked", box.checked);
  }
});
