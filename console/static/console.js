// Light, dark, or as the system has it. Before the page is drawn, so that it does not flash.
const themes = ["", "light", "dark"];
const chosen = () => { try { return localStorage.getItem("holdfast-theme") || ""; } catch { return ""; } };
const wear = (theme) => { if (theme) document.documentElement.dataset.theme = theme; else delete document.documentElement.dataset.theme; };
wear(chosen());

document.addEventListener("DOMContentLoaded", () => {
  const button = document.getElementById("theme");
  const name = () => {
    const [sign, says] = { "": ["◐", "Colours of the system"], light: ["☀", "Light colours"], dark: ["☾", "Dark colours"] }[chosen()];
    button.textContent = sign;
    button.title = says;
    button.setAttribute("aria-label", says);
  };
  name();
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(chosen()) + 1) % themes.length];
    try { localStorage.setItem("holdfast-theme", next); } catch { /* it lasts for this page */ }
    wear(next);
    name();
  });

  // The key / goes to the search, from anywhere but a field.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
    event.preventDefault();
    document.getElementById("search").focus();
  });

  // What is sent once is not sent twice. After the event, so that the button is part of what is sent.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    const buttons = event.target.querySelectorAll("button");
    setTimeout(() => { for (const b of buttons) b.disabled = true; }, 0);
    addEventListener("pageshow", () => { for (const b of buttons) b.disabled = false; }, { once: true });
  });

  live();
});

// A page that is live is asked for again and again, and its parts with data-live are put in the place of the old ones. A part in which
// somebody has typed, has a field's focus, or marks a text stays as it is. What is ticked and open stays so.
function live() {
  const asof = document.getElementById("asof");
  if (!asof) return;
  const every = Number(asof.dataset.every) * 1000;
  let last = Date.now(), trouble = "";

  const busy = (part) => {
    const focus = document.activeElement, mark = getSelection();
    if (part.contains(focus) && /^(INPUT|TEXTAREA|SELECT)$/.test(focus.tagName) && focus.type !== "checkbox") return true;
    if (mark && !mark.isCollapsed && part.contains(mark.anchorNode)) return true;
    return [...part.querySelectorAll("input, textarea")].some((f) => f.type !== "checkbox" && f.value !== f.defaultValue);
  };
  const put = (part, now) => {
    if (part.innerHTML === now.innerHTML || busy(part)) return;
    const ticked = new Set([...part.querySelectorAll("input:checked")].map((f) => f.name + "=" + f.value));
    const open = new Map([...part.querySelectorAll("details[id]")].map((d) => [d.id, d.open]));
    const focus = document.activeElement, had = part.contains(focus);
    const same = (e) => e.tagName === focus.tagName && e.getAttribute("href") === focus.getAttribute("href") && e.name === focus.name && e.value === focus.value;
    const scrolled = [...part.querySelectorAll(".table")].map((t) => t.scrollLeft);
    part.replaceChildren(...now.childNodes);
    for (const f of part.querySelectorAll("input[type=checkbox]")) f.checked = ticked.has(f.name + "=" + f.value);
    for (const d of part.querySelectorAll("details[id]")) if (open.has(d.id)) d.open = open.get(d.id);
    part.querySelectorAll(".table").forEach((t, i) => { t.scrollLeft = scrolled[i] || 0; });
    if (had) [...part.querySelectorAll("a, button, input, summary")].find(same)?.focus({ preventScroll: true });
  };
  const look = async () => {
    const answer = await fetch(location.href, { credentials: "same-origin" });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!answer.ok) throw new Error(page.querySelector("h1")?.textContent || "the answer is " + answer.status);
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = page.getElementById(part.id);
      if (now) put(part, now);
    }
    document.title = page.title;
    last = Date.now();
  };
  const say = () => {
    const seconds = Math.round((Date.now() - last) / 1000);
    const age = seconds < 120 ? seconds + " s" : Math.floor(seconds / 60) + " min";
    asof.textContent = trouble ? "Not refreshed for " + age + ": " + trouble : "As of " + age + " ago";
    asof.classList.toggle("bad", trouble !== "");
  };
  // The next look begins after this one has ended, and the later the longer it took: a database in trouble is not asked more often. A page
  // that nobody sees does not ask, and does so at once when it is seen again.
  let next = 0, looking = false;
  const again = async () => {
    clearTimeout(next);
    if (document.hidden || looking) return;
    looking = true;
    const began = Date.now();
    try { await look(); trouble = ""; } catch (error) { trouble = error instanceof TypeError ? "the console does not answer" : error.message; }
    looking = false;
    say();
    next = setTimeout(again, Math.max(every, 5 * (Date.now() - began)));
  };
  next = setTimeout(again, every);
  setInterval(say, 1000);
  document.addEventListener("visibilitychange", again);
}
