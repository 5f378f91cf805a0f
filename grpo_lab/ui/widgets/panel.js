// The panel's part in the browser: it scrolls into view when a run begins, gives pictures their alternative text, tells
// whether the theme is dark, and lets a screen reader read the value of a logarithmic slider, of which ipywidgets gives
// the exponent.
function render({ model, el }) {
  el.style.display = "none";
  const frame = () => el.closest(".grpo-lab-panel");
  const words = () => {
    for (const picture of frame()?.querySelectorAll("img") ?? []) {
      const alt = picture.classList.contains("grpo-lab-plot") ? model.get("alt") : "";
      if (picture.alt !== alt || !picture.hasAttribute("alt")) picture.alt = alt;
    }
    for (const handle of frame()?.querySelectorAll(".grpo-lab-log [role=slider]") ?? []) {
      const value = Number((10 ** Number(handle.getAttribute("aria-valuenow"))).toPrecision(3)).toString();
      if (handle.getAttribute("aria-valuetext") !== value) handle.setAttribute("aria-valuetext", value);
    }
  };
  const reveal = () => {
    const panel = frame();
    if (!model.get("running") || !panel) return;
    const view = panel.closest(".jp-WindowedPanel-outer, .jp-Notebook")?.getBoundingClientRect();
    const { top, bottom } = panel.getBoundingClientRect();
    if (top < (view?.top ?? 0) || bottom > (view?.bottom ?? innerHeight)) panel.scrollIntoView({ block: "start" });
  };
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
    reveal();
  };
  let waiting = requestAnimationFrame(bind);
  model.on("change:alt", words);
  model.on("change:running", reveal);
  return () => {
    cancelAnimationFrame(waiting);
    watch?.disconnect();
    themes.disconnect();
    model.off("change:alt", words);
    model.off("change:running", reveal);
  };
}
export default { render };
