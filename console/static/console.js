// Light, dark, or as the system has it. Before the page is drawn, so that it does not flash.
const themes = ["", "light", "dark"];
const chosen = () => {
  let theme = "";
  try { theme = localStorage.getItem("holdfast-theme"); } catch { /* it is not to be had */ }
  return themes.includes(theme) ? theme : "";
};
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

  // All of a list's page are ticked at once. A refresh makes the box anew, so the document hears of it.
  document.addEventListener("change", (event) => {
    if (event.target.id !== "every") return;
    for (const f of document.querySelectorAll('input[name="ids"]')) f.checked = event.target.checked;
  });

  // What is sent once is not sent twice. After the event, so that the button is part of what is sent. Nothing is put into the page meanwhile.
  let sending = false;
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    sending = true;
    const buttons = event.target.querySelectorAll("button");
    setTimeout(() => { for (const b of buttons) b.disabled = true; }, 0);
    addEventListener("pageshow", () => { sending = false; for (const b of buttons) b.disabled = false; }, { once: true });
  });

  live(() => sending);
});

// A page that is live is asked for again and again, and its parts with data-live are put in the place of the old ones. A part in which
// somebody has typed, has a field's focus, or marks a text stays as it is. What is ticked and open stays so.
function live(sending) {
  const asof = document.getElementById("asof"), alarm = document.getElementById("stale");
  if (!asof) return;
  const every = Number(asof.dataset.every) * 1000;
  let last = Date.now(), trouble = "", kept = false, ended = false;

  const busy = (part) => {
    const focus = document.activeElement, mark = getSelection();
    if (part.contains(focus) && /^(INPUT|TEXTAREA|SELECT)$/.test(focus.tagName) && focus.type !== "checkbox") return true;
    if (mark && !mark.isCollapsed && part.contains(mark.anchorNode)) return true;
    return [...part.querySelectorAll("input, textarea")].some((f) => f.type !== "checkbox" && f.value !== f.defaultValue);
  };
  // What something that can have the focus is, on this page and on the next.
  const is = (e) => [e.tagName, e.getAttribute("href"), e.name, e.value, ...[...(e.form?.querySelectorAll("input[type=hidden]") || [])].map((f) => f.value)].join("\n");
  const put = (part, now) => {
    if (part.innerHTML === now.innerHTML) return;
    if (busy(part)) { kept = true; return; }
    const ticked = new Set([...part.querySelectorAll("input:checked")].map(is));
    const open = new Map([...part.querySelectorAll("details[id]")].map((d) => [d.id, d.open]));
    const focus = part.contains(document.activeElement) ? is(document.activeElement) : "";
    const scrolled = [...part.querySelectorAll(".table")].map((t) => t.scrollLeft);
    part.replaceChildren(...now.childNodes);
    for (const f of part.querySelectorAll("input[type=checkbox]")) f.checked = ticked.has(is(f));
    for (const d of part.querySelectorAll("details[id]")) if (open.has(d.id)) d.open = open.get(d.id);
    part.querySelectorAll(".table").forEach((t, i) => { t.scrollLeft = scrolled[i] || 0; });
    if (focus) [...part.querySelectorAll("a, button, input, summary")].find((e) => is(e) === focus)?.focus({ preventScroll: true });
  };
  const look = async () => {
    const answer = await fetch(location.href, { credentials: "same-origin", signal: AbortSignal.timeout(20000) });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.status === 401 || answer.status === 403 || answer.ok && !page.getElementById("asof")) {
      ended = true; // of a login: nothing is asked for any more
      throw new Error("you may not see it any more: load the page again");
    }
    if (!answer.ok) throw new Error(page.querySelector("h1")?.textContent || "the answer is " + answer.status);
    if (sending()) return;
    kept = false;
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
    asof.textContent = trouble ? "Not refreshed for " + age + ": " + trouble : "As of " + age + " ago" + (kept ? ", but for what you work on" : "");
    asof.classList.toggle("bad", trouble !== "");
    document.body.classList.toggle("stale", trouble !== "");
    if (alarm.textContent !== trouble) alarm.textContent = trouble;
  };
  // The next look begins after this one has ended, and the later the longer it took, up to a minute: a database in trouble is not asked more
  // often. A page that nobody sees is asked for once a minute, for its title, and at once when it is seen again.
  let next = 0, looking = false;
  const again = async () => {
    clearTimeout(next);
    if (looking || ended) return;
    looking = true;
    const began = Date.now();
    try {
      await look();
      trouble = "";
    } catch (error) {
      trouble = error.name === "TypeError" || error.name === "TimeoutError" ? "the console does not answer" : error.message;
    }
    looking = false;
    say();
    next = setTimeout(again, document.hidden ? 60000 : Math.min(60000, Math.max(every, 5 * (Date.now() - began))));
  };
  next = setTimeout(again, every);
  setInterval(say, 1000);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) again(); });
}
