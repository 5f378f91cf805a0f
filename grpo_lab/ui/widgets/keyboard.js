// JupyterLab ignores its own shortcuts inside an element with data-lm-suppress-shortcuts. Number boxes, menus, sliders
// and buttons keep the keys that they use themselves.
const typing = "input, textarea, select, [contenteditable=true], [contenteditable=plaintext-only]";
const used = (target, key) =>
  target.matches(typing) ||
  (target.matches("[role=slider]") && key.startsWith("Arrow")) ||
  (target.matches("button") && (key === " " || key === "Enter"));

function render({ model, el }) {
  el.classList.add("grpo-lab-keys");
  el.setAttribute("role", "note");
  for (const [key, what] of model.get("legend")) {
    const pair = el.appendChild(document.createElement("span"));
    pair.appendChild(document.createElement("kbd")).textContent = key;
    pair.append(" " + what);
  }
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || used(event.target, event.key)) return;
    if (!model.get("wanted").includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    model.send({ key: event.key });
  };
  // After a click the frame takes the focus back: the next space plays or pauses and does not press the button again, and
  // an arrow moves the run after a click on a curve, too.
  const release = (event) => { if (event.detail > 0 && event.target.closest("button, img")) bound.focus(); };
  let bound = null;
  const bind = () => {
    const target = el.closest("." + model.get("frame"));
    if (!target?.isConnected) { waiting = requestAnimationFrame(bind); return; }
    bound = target;
    bound.tabIndex = 0;
    bound.dataset.lmSuppressShortcuts = "true";
    bound.addEventListener("keydown", press);
    bound.addEventListener("click", release);
    if (!model.get("focused")) return;
    bound.focus({ preventScroll: true });
    bound.scrollIntoView({ block: "start" });
  };
  let waiting = requestAnimationFrame(bind);
  return () => {
    cancelAnimationFrame(waiting);
    bound?.removeEventListener("keydown", press);
    bound?.removeEventListener("click", release);
  };
}
export default { render };
