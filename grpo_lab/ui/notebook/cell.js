// Writes an answer that was chosen by clicks into the cell of its exercise, so that the file of the notebook has it. Only
// JupyterLab gives a widget the notebook; elsewhere the words below the widget ask the learner to copy the answer.
function render({ model, el }) {
  const write = () => {
    const cells = [...(model.widget_manager?.context?.model?.cells ?? [])];
    const cell = cells.find((each) => each.sharedModel.getSource().startsWith(model.get("begins")));
    cell?.sharedModel.setSource(model.get("source"));
    // The cell was stopped with an error because it waited for this answer.
    const waited = (output) => output.output_type === "error";
    if (cell?.outputs.toJSON().some(waited)) cell.outputs.fromJSON(cell.outputs.toJSON().filter((each) => !waited(each)));
    el.textContent = cell ? "" : model.get("otherwise");
  };
  model.on("change:source", write);
  return () => model.off("change:source", write);
}
export default { render };
