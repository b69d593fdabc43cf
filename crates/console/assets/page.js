// Small comforts of a page: the theme, ages that stay current, a command line that follows its form, and copying it.

const THEMES = ["system", "light", "dark"];
const button = document.querySelector("[data-theme-button]");

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

if (button) {
  const name = () => {
    button.textContent = `Theme: ${theme()}`;
  };
  button.hidden = false;
  name();
  button.addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      if (next === "system") localStorage.removeItem("lazaret-theme");
      else localStorage.setItem("lazaret-theme", next);
    } catch {
      // Only for this page.
    }
    name();
  });
}

// The two largest units of a time span, as the server writes them.
function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (number) => String(number).padStart(2, "0");
  const days = Math.floor(whole / 86400);
  const hours = Math.floor(whole / 3600) % 24;
  const minutes = Math.floor(whole / 60) % 60;
  if (days >= 100) return `${days}d`;
  if (days > 0) return `${days}d${two(hours)}h`;
  if (hours > 0) return `${hours}h${two(minutes)}m`;
  if (minutes > 0) return `${minutes}m${two(whole % 60)}s`;
  return `${whole}s`;
}

// Ages by the clock of the server, which may differ from that of this machine.
document.body.dataset.loaded ??= String(Date.now());
setInterval(() => {
  if (document.hidden) return;
  const now = Number(document.body.dataset.now) + Date.now() - Number(document.body.dataset.loaded);
  for (const time of document.querySelectorAll("time[data-age]")) {
    const seconds = (now - Date.parse(time.dateTime)) / 1000;
    const shown = seconds < 0 ? `in ${span(-seconds)}` : span(seconds);
    if (time.textContent !== shown) time.textContent = shown;
  }
}, 1000);

// One word of a shell.
function quoted(word) {
  if (/^[A-Za-z0-9_./:@%+,=][A-Za-z0-9_\-./:@%+,=]*$/.test(word)) return word;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

// The command line of a form: its start, then each option with a value.
for (const form of document.querySelectorAll("form[data-cli]")) {
  const line = document.getElementById(form.dataset.cli);
  const write = () => {
    const options = [...form.querySelectorAll("[data-option]")]
      .map((field) => [field.dataset.option, field.value.trim() || field.dataset.absent])
      .filter(([, value]) => value)
      .map(([option, value]) => ` ${option} ${value === "TEXT" ? value : quoted(value)}`);
    line.textContent = line.dataset.start + options.join("");
  };
  form.addEventListener("input", write);
  write();
}

// How long a plan takes at the rate of its form.
const duration = document.querySelector("[data-duration]");
if (duration) {
  const rate = document.querySelector('[data-option="--rate"]');
  const first = duration.textContent;
  rate?.addEventListener("input", () => {
    const [, number, unit] = /^\s*([0-9.]+)\s*\/\s*([smh])\s*$/.exec(rate.value) ?? [];
    const perSecond = Number(number) / { s: 1, m: 60, h: 3600 }[unit];
    if (rate.value.trim() === "unlimited") duration.textContent = "as fast as the handlers";
    else if (perSecond > 0) duration.textContent = `${span(Math.ceil(Number(duration.dataset.duration) / perSecond))} at least`;
    else duration.textContent = first;
  });
}

document.addEventListener("click", async (event) => {
  const copy = event.target.closest?.("[data-copy]");
  if (!copy) return;
  try {
    await navigator.clipboard.writeText(document.getElementById(copy.dataset.copy).textContent);
    copy.textContent = "Copied";
    document.getElementById("status").textContent = "Copied";
  } catch {
    copy.textContent = "Select it";
  }
});
for (const copy of document.querySelectorAll("[data-copy]")) copy.hidden = false;
