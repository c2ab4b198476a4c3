// The key / goes to the search, from anywhere but a field.
document.addEventListener("keydown", (event) => {
  const field = document.getElementById("search");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || !field) return;
  if (document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
  event.preventDefault();
  field.focus();
});
