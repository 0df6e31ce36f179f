// Where the view is shown: `render` serves anywidget, `startPage` a page of its own.

/** For anywidget: the view of a model of the kernel. Returns how to let go of it. */
function render({ model, el }) {
  const waiting = new Map();
  const session = Math.random().toString(36).slice(2);
  let asked = 0;
  const answered = (content) => {
    if (content.place) shown.place(content.place);
    const resolve = waiting.get(content.request);
    waiting.delete(content.request);
    if (resolve) resolve(content);
  };
  model.on("msg:custom", answered);
  const root = element("div");
  el.append(root);
  const host = {
    beside: true,
    get view() {
      return model.get("view");
    },
    get columns() {
      return model.get("columns");
    },
    actions: model.get("actions"),
    states: () => model.get("states"),
    onStates(callback) {
      model.on("change:states", callback);
      return () => model.off("change:states", callback);
    },
    request(action, target) {
      asked += 1;
      const request = `${session}-${asked}`;
      return new Promise((resolve, reject) => {
        waiting.set(request, resolve);
        try {
          model.send({ request, action, target });
        } catch {
          reject(new Error("the kernel that made this view is gone; run its cell again"));
        }
      });
    },
  };
  let shown = new ReportView(root, host);
  root.grape = shown;
  const changed = () => {
    if (shown.view.coming !== host.view.coming) {
      shown.close();
      root.grape = shown = new ReportView(root, host);
    } else {
      shown.update(host.view);
    }
  };
  model.on("change:view", changed);
  setTimeout(() => {
    const cell = root.closest(".jp-Notebook .jp-CodeCell");
    try {
      model.send({ request: `${session}-0`, action: "places", target: Boolean(cell && editorOf(cell)) });
    } catch {
      // no kernel: nobody would ask for it
    }
  });
  return () => {
    model.off("msg:custom", answered);
    model.off("change:view", changed);
    shown.close();
    delete root.grape;
  };
}

/** For a page of its own: the view of the JSON text that `grape view` reads. */
async function startPage(root, text, beside = false) {
  const content = JSON.parse(text);
  const packed = Uint8Array.from(atob(content.columns), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const columns = new Uint8Array(await new Response(stream).arrayBuffer());
  const nothing = { level: 1, beside, actions: [], states: () => ({}), onStates: () => () => {}, request: async () => ({}) };
  root.grape = new ReportView(root, { view: content.view, columns, ...nothing });
}

export { startPage };
export default { render };
