// Writes an answer that was chosen by clicks into the cell of its exercise, so that the file of the notebook has it. Only
// JupyterLab gives a widget the notebook; elsewhere the words below the widget ask the learner to copy the answer.
function render({ model, el }) {
  const write = () => {
    const cells = [...(model.widget_manager?.context?.model?.cells ?? [])].map((cell) => cell.sharedModel);
    const cell = cells.find((each) => each?.getSource().startsWith(model.get("begins")));
    cell?.setSource(model.get("source"));
    el.textContent = cell ? "" : model.get("otherwise");
  };
  model.on("change:source", write);
  return () => model.off("change:source", write);
}
export default { render };
