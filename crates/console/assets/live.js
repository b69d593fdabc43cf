// Live updates. One tab of a browser listens to the server and tells the others; each tab then fetches its own page again and
// replaces the parts marked with data-region. Nothing moves under a selection, a marked row or a field that has the focus: such a
// part waits until one applies the update.

const pill = document.querySelector("[data-live-pill]");
const text = document.querySelector("[data-live-text]");
const apply = document.querySelector("[data-live-apply]");
const said = document.getElementById("status");
const regions = () => document.querySelectorAll("[data-region]");

// At most one refresh in this time, in milliseconds.
const PAUSE = 1000;
// A poll in this time while the event stream is broken.
const POLL = 15000;

let running = null;
let again = false;
let last = 0;
let timer = 0;

function show(state, words) {
  pill.hidden = false;
  if (pill.dataset.state !== state && (state === "stale" || state === "held")) said.textContent = words;
  pill.dataset.state = state;
  text.textContent = words;
  apply.hidden = state !== "held";
}

const clock = () => new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// A part that somebody is working in.
function isInUse(region) {
  const active = document.activeElement;
  if (active && active !== document.body && region.contains(active) && active.matches("input, textarea, select, button")) return true;
  if (region.querySelector("input[type=checkbox]:checked")) return true;
  const chosen = document.getSelection();
  return Boolean(chosen && !chosen.isCollapsed && chosen.anchorNode && region.contains(chosen.anchorNode));
}

// Returns whether the part was replaced.
function replace(region, fresh, force) {
  if (!fresh) return true;
  // Hidden without scripts, as on the first load.
  for (const copy of fresh.querySelectorAll("[data-copy]")) copy.hidden = false;
  if (fresh.isEqualNode(region)) return true;
  if (!force && isInUse(region)) return false;
  const node = document.importNode(fresh, true);
  for (const opened of region.querySelectorAll("details[open][id]")) {
    const same = node.querySelector(`#${CSS.escape(opened.id)}`);
    if (same) same.open = true;
  }
  const focused = region.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  region.replaceWith(node);
  if (focused) node.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  return true;
}

// The page as a document in which nothing runs.
function load() {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", location.href);
    request.responseType = "document";
    request.timeout = 20000;
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject());
    request.onerror = request.ontimeout = () => reject();
    request.send();
  });
}

async function refresh(force = false) {
  if (document.hidden || regions().length === 0) return;
  if (running) {
    again = true;
    return;
  }
  const wait = last + PAUSE - Date.now();
  if (wait > 0 && !force) {
    clearTimeout(timer);
    timer = setTimeout(refresh, wait);
    return;
  }
  last = Date.now();
  running = load();
  try {
    const fresh = await running;
    document.body.dataset.now = fresh.body.dataset.now;
    document.body.dataset.loaded = String(Date.now());
    let held = 0;
    for (const region of [...regions()]) {
      if (!replace(region, fresh.getElementById(region.id), force)) held += 1;
    }
    if (held > 0) show("held", "Updates wait");
    else show("live", "Live");
  } catch {
    show("stale", `Stale since ${clock()}`);
  } finally {
    running = null;
    if (again) {
      again = false;
      refresh();
    }
  }
}

// Other tabs of this browser: a browser opens few connections to one host.
const channel = "BroadcastChannel" in window ? new BroadcastChannel("lazaret-live") : null;
if (channel) channel.onmessage = (message) => heard(message.data);

let poll = 0;
function heard(message) {
  clearInterval(poll);
  if (message === "down") {
    show("stale", `Stale since ${clock()}`);
    poll = setInterval(() => refresh(), POLL);
  } else if (message === "up") {
    if (pill.dataset.state !== "held") show("live", "Live");
    if (Date.now() - last > PAUSE) refresh();
  } else {
    refresh();
  }
}

function tell(message) {
  channel?.postMessage(message);
  heard(message);
}

function listen() {
  const source = new EventSource("/console/events");
  source.onopen = () => tell("up");
  source.onerror = () => tell("down");
  source.addEventListener("change", () => tell("change"));
  return source;
}

if (pill && regions().length > 0) {
  last = Date.now();
  show("live", "Live");
  apply.addEventListener("click", () => refresh(true));
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  if (navigator.locks && channel) {
    // The lock is held until the tab closes; then another tab listens.
    navigator.locks.request("lazaret-live", () => {
      listen();
      return new Promise(() => {});
    });
  } else {
    listen();
  }
}
