// The key / goes to the search, from anywhere but a field.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("search");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || !field) return;
  if (document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  event.preventDefault();
  field.focus();
});

// Rates: the counts of two moments, a few seconds apart.
const flow = document.querySelector("[data-flow]");
if (flow) {
  let last = null;
  const rate = (now, before, seconds) => {
    const each = (now - before) / seconds;
    return each < 0 ? "–" : each < 10 ? each.toFixed(1) : Math.round(each).toString();
  };
  const look = async () => {
    if (document.hidden) { last = null; return; }
    const answer = await fetch(flow.dataset.flow, { credentials: "same-origin" });
    if (!answer.ok) { last = null; return; }
    const now = await answer.json();
    const seconds = last ? now.at - last.at : 0;
    if (seconds > 0) {
      for (const field of flow.querySelectorAll("[data-rate]")) field.textContent = rate(now[field.dataset.rate], last[field.dataset.rate], seconds);
      for (const field of document.querySelectorAll("[data-position]")) {
        const consumer = field.dataset.position;
        if (consumer in now.positions && consumer in last.positions) field.textContent = rate(now.positions[consumer], last.positions[consumer], seconds);
      }
      for (const shown of document.querySelectorAll(".flow")) shown.hidden = false;
    }
    last = now;
  };
  const again = () => look().catch(() => { last = null; });
  again();
  setInterval(again, 3000);
}
