// The cells of the notebook that a view stands in, where JupyterLab or Notebook 7 shows it.

/** The editor (CodeMirror 6) of a cell; null where the front end has another, or none now. */
function editorOf(cell) {
  const content = cell.querySelector(".cm-content");
  const tile = content && (content.cmTile || content.cmView);
  const root = tile && (tile.root || tile.rootView);
  return (tile && tile.view) || (root && root.view) || null;
}

/**
 * Put `source` in the place of `replaces`: in the cell whose output `root` is, or in the only other one that holds it.
 * False where no cell does, as after an edit, or where cells cannot be written: then it is the person who does.
 */
function placeSource(root, replaces, source) {
  const notebook = root.closest(".jp-Notebook");
  if (!notebook || typeof replaces !== "string") return false;
  const text = (one) => one.replace(/\n+$/, "");
  const holding = (cells) => cells.filter((cell) => {
    const editor = editorOf(cell);
    return editor && !editor.state.readOnly && text(editor.state.doc.toString()) === text(replaces);
  });
  const own = root.closest(".jp-CodeCell");
  const mine = own ? holding([own]) : [];
  const found = mine.length ? mine : holding([...notebook.querySelectorAll(".jp-CodeCell")]);
  if (found.length !== 1) return false;
  const editor = editorOf(found[0]);
  editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: text(source) }, userEvent: "input" });
  found[0].scrollIntoView({ block: "nearest" });
  return true;
}
