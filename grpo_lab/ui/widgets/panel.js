// The panel's part in the browser: it scrolls into view when a run begins, gives pictures their alternative text, tells
// where a picture is clicked and whether the theme is dark, and lets a screen reader read the value of a logarithmic
// slider, of which ipywidgets gives the exponent.
function render({ model, el }) {
  el.style.display = "none";
  const frame = () => el.closest(".grpo-lab-panel");
  const words = () => {
    for (const picture of frame()?.querySelectorAll("img") ?? []) {
      const alt = picture.classList.contains("grpo-lab-plot") ? model.get("alt") : "";
      if (picture.alt !== alt || !picture.hasAttribute("alt")) picture.alt = alt;
      if (alt && picture.tabIndex) { picture.tabIndex = 0; picture.dataset.lmSuppressShortcuts = "true"; }
    }
    for (const handle of frame()?.querySelectorAll(".grpo-lab-log [role=slider]") ?? []) {
      const value = Number((10 ** Number(handle.getAttribute("aria-valuenow"))).toPrecision(3)).toString();
      if (handle.getAttribute("aria-valuetext") !== value) handle.setAttribute("aria-valuetext", value);
    }
  };
  const HALVES = { "grpo-lab-plot": "curves", "grpo-lab-chain": "chain" };
  const half = ({ target }) => Object.entries(HALVES).find(([name]) => target.matches?.(`img.${name}`))?.[1];
  const tell = (what) => {
    model.set("clicked", { ...what, n: (model.get("clicked").n ?? 0) + 1 });
    model.save_changes();
  };
  const click = (event) => {
    if (!half(event)) return;
    // The picture fills its box as far as its shape allows, and stands in the middle of it.
    const { left, top, width, height } = event.target.getBoundingClientRect();
    const { naturalWidth: wide, naturalHeight: high } = event.target;
    const scale = Math.min(width / wide, height / high);
    const x = (event.clientX - left - width / 2) / (wide * scale) + 0.5;
    const y = (event.clientY - top - height / 2) / (high * scale) + 0.5;
    tell({ half: half(event), x, y });
  };
  const press = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || half(event) !== "curves" || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    tell({ half: "curves", by });
  };
  let clicks = null;
  const view = () => frame()?.closest(".jp-WindowedPanel-outer, .jp-Notebook");
  const show = () => {
    if (!began || document.body.dataset.grpoLabShown !== began || !frame()) return;
    const inside = view()?.getBoundingClientRect();
    const { top, bottom } = frame().getBoundingClientRect();
    if (top < (inside?.top ?? 0) || bottom > (inside?.bottom ?? innerHeight)) frame().scrollIntoView({ block: "start" });
  };
  // JupyterLab scrolls to the next cell, and the panel grows, after the run began: the panel that began last stays in
  // view until the user does something.
  let began = "";
  const reveal = () => {
    if (!model.get("running") || !frame()) { began = ""; return; }
    document.body.dataset.grpoLabShown = began = String(performance.now());
    show();
  };
  const release = () => { began = ""; };
  const GESTURES = ["wheel", "touchmove", "pointerdown", "keydown"];
  const sizes = new ResizeObserver(show);
  let scrolled = null;
  const theme = () => {
    const dark = document.body.dataset.jpThemeLight === "false";
    if (model.get("dark") !== dark) { model.set("dark", dark); model.save_changes(); }
  };
  const themes = new MutationObserver(theme);
  let watch = null;
  const bind = () => {
    if (!frame()?.isConnected) { waiting = requestAnimationFrame(bind); return; }
    theme();
    themes.observe(document.body, { attributeFilter: ["data-jp-theme-light"] });
    watch = new MutationObserver(words);
    watch.observe(frame(), { subtree: true, childList: true, attributeFilter: ["aria-valuenow", "aria-valuetext"] });
    words();
    clicks = frame();
    clicks.addEventListener("click", click);
    clicks.addEventListener("keydown", press);
    sizes.observe(frame());
    scrolled = view();
    scrolled?.addEventListener("scroll", show);
    for (const gesture of GESTURES) addEventListener(gesture, release, { capture: true, passive: true });
    reveal();
  };
  let waiting = requestAnimationFrame(bind);
  model.on("change:alt", words);
  model.on("change:running", reveal);
  return () => {
    cancelAnimationFrame(waiting);
    watch?.disconnect();
    clicks?.removeEventListener("click", click);
    clicks?.removeEventListener("keydown", press);
    themes.disconnect();
    sizes.disconnect();
    scrolled?.removeEventListener("scroll", show);
    for (const gesture of GESTURES) removeEventListener(gesture, release, { capture: true });
    model.off("change:alt", words);
    model.off("change:running", reveal);
  };
}
export default { render };
