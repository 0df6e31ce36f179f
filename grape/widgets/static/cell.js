// The cell at a glance: what its time was spent on, and its lines with what was found at them.

/** Bars of the cell before and after, to one scale, and what each part took; "" where nothing was measured. */
function spentSection(view) {
  if (!view.spent || !view.spent.length) return "";
  const rows = view.spent.map((one) => {
    const bar = element("div", { class: "grape-spent", role: "img", "aria-label": `${one.label}: ${one.value}` });
    bar.style.width = `${100 * one.share}%`;
    for (const part of one.parts) {
      const piece = element("span", { title: part.words });
      piece.style.width = `${100 * part.share}%`;
      piece.style.background = part.colour;
      bar.append(piece);
    }
    return [element("b", {}, one.label), element("span", {}, one.total), element("div", {}, bar)];
  });
  const totals = element("div", { class: "grape-totals" }, ...rows.flat());
  const legend = element("ul", { class: "grape-legend", "aria-label": "Parts of the time" });
  for (const { words, colour } of view.legend || []) {
    const swatch = element("span", { class: "grape-swatch" });
    swatch.style.background = colour;
    legend.append(element("li", {}, swatch, words));
  }
  return element("section", { "aria-label": "Time of the cell" }, totals, legend);
}

/**
 * The cell's source with the share of its time at each line; "" where that is not known. `findingAt(index)` is the
 * element of a finding, which stands below its line.
 */
function linesSection(view, findingAt) {
  if (!view.lines || !view.lines.rows.length) return "";
  const table = (rows, whole) => {
    const body = element("tbody");
    for (const row of rows) body.append(...(row ? lineRows(row, whole ? null : findingAt) : [gapRow()]));
    return element("table", { class: whole ? "grape-lines" : "grape-lines grape-cut" }, body);
  };
  const { title, rows, shown } = view.lines;
  const chosen = shown.map((number) => (number === null ? null : rows[number - 1]));
  const all = element("details", { class: "grape-quiet" }, element("summary", {}, "all lines"), table(rows, true));
  return element("section", { "aria-label": "Lines" }, element("p", { class: "grape-title" }, title), table(chosen), all);
}

function gapRow() {
  return element("tr", {}, element("td"), element("td", { class: "grape-took" }, "\u2026"), element("td"));
}

function lineRows(row, findingAt) {
  const took = element("td", { class: "grape-took" }, row.took);
  if (row.took) took.style.background = `rgba(214, 128, 30, ${0.12 + 0.55 * Math.min(1, row.share)})`;
  const found = findingAt ? row.found || [] : [];
  const notes = [...(found.length ? [] : row.codes), ...row.notes].join(", ");
  const source = element("span", { class: "grape-source" }, row.text);
  const beside = notes ? element("span", { class: "grape-notes" }, notes) : "";
  const line = element(
    "tr",
    {},
    element("td", { class: "grape-took" }, String(row.number)),
    took,
    element("td", {}, element("div", { class: "grape-line" }, source, beside)),
  );
  if (!found.length) return [line];
  const below = element("td", { colspan: 3 }, element("ol", { class: "grape-findings" }, ...found.map(findingAt)));
  return [line, element("tr", {}, below)];
}
