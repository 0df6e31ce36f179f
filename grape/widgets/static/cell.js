// The cell at a glance: what its time was spent on, and its lines.

/** Bars of the cell before and after; "" where nothing was measured that counts. */
function spentSection(view) {
  if (!view.spent || !view.spent.length) return "";
  const bars = view.spent.map((one) => {
    const bar = element("div", { class: "grape-spent", role: "img", "aria-label": `${one.label}: ${one.value}` });
    bar.style.width = `${100 * one.share}%`;
    for (const part of one.parts) {
      const piece = element("span", { title: part.words });
      piece.style.width = `${100 * part.share}%`;
      piece.style.background = part.colour;
      bar.append(piece);
    }
    return element("div", {}, element("p", {}, element("b", {}, one.label), ` ${one.value}`), bar);
  });
  const known = new Map(view.spent.flatMap((one) => one.parts.map((part) => [part.words, part.colour])));
  const legend = element("ul", { class: "grape-legend", "aria-label": "Parts of the time" });
  for (const [words, colour] of known) {
    const swatch = element("span", { class: "grape-swatch" });
    swatch.style.background = colour;
    legend.append(element("li", {}, swatch, words));
  }
  return element("section", { "aria-label": "Time of the cell" }, ...bars, legend);
}

/** The cell's source with the share of its time at each line; "" where that is not known. */
function linesSection(view) {
  if (!view.lines || !view.lines.rows.length) return "";
  const table = (rows) => {
    const body = element("tbody");
    for (const row of rows) body.append(row ? lineRow(row) : element("tr", {}, element("td"), element("td", {}, "\u2026")));
    return element("table", { class: "grape-lines" }, body);
  };
  const { title, rows, shown } = view.lines;
  const chosen = shown.map((number) => (number === null ? null : rows[number - 1]));
  const all =
    chosen.length < rows.length
      ? element("details", { class: "grape-quiet" }, element("summary", {}, "all lines"), table(rows))
      : "";
  return element("section", { "aria-label": "Lines" }, element("p", { class: "grape-title" }, title), table(chosen), all);
}

function lineRow(row) {
  const took = element("td", { class: "grape-took" }, row.took);
  if (row.took) took.style.background = `rgba(214, 128, 30, ${0.12 + 0.55 * Math.min(1, row.share)})`;
  const codes = row.codes.map((code) => element("b", {}, `${code} `));
  return element(
    "tr",
    {},
    element("td", { class: "grape-took" }, String(row.number)),
    took,
    element("td", { class: "grape-source" }, row.text),
    element("td", {}, ...codes, row.notes.join(", ")),
  );
}
