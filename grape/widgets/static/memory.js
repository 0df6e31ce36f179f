// Memory of the cell: curves over its time, and their peaks as a table.

class MemoryPanel {
  constructor(app) {
    this.app = app;
    this.canvas = null;
  }

  /** The panel's elements; "" where nothing was recorded. */
  section() {
    const { memory } = this.app.view;
    if (!memory.bars.length) return "";
    const table = element("table", { class: "grape-bars" });
    const body = element("tbody");
    for (const bar of memory.bars) {
      const fill = element("div", { class: "grape-fill" });
      fill.style.width = `${100 * bar.share}%`;
      fill.style.background = TONES.memory;
      body.append(
        element(
          "tr",
          {},
          element("th", { scope: "row" }, bar.label),
          element("td", { class: "grape-track" }, fill),
          element("td", {}, bar.value),
        ),
      );
    }
    table.append(element("caption", {}, "peaks of the cell"), body);
    this.canvas = null;
    if (memory.samples > 1 && memory.curves.length) {
      const said = memory.curves.map((curve) => `${curve.label} at most ${curve.shown}`).join(", ");
      this.canvas = element("canvas", {
        class: "grape-memory",
        role: "img",
        "aria-label": `${memory.title} over ${memory.wall}: ${said}`,
      });
      this.canvas.addEventListener("pointermove", (event) => this._tooltip(event));
      this.canvas.addEventListener("pointerleave", () => this.app.hideTooltip());
    }
    const title = element("p", { class: "grape-title" }, memory.title);
    return element("section", { "aria-label": "Memory" }, title, this.canvas, this.canvas && this._legend(), table);
  }

  _legend() {
    const legend = element("ul", { class: "grape-legend", "aria-label": "Curves" });
    this.app.view.memory.curves.forEach((curve, number) => {
      const swatch = element("span", { class: "grape-swatch" });
      swatch.style.background = CURVES[number % CURVES.length];
      const before = curve.before ? `, ${curve.before} before the first graph` : "";
      legend.append(element("li", {}, swatch, `${curve.label}, at most ${curve.shown}${before}`));
    });
    const { captured_ms: captured = [] } = this.app.view.memory;
    if (captured.length) {
      const swatch = element("span", { class: "grape-swatch" });
      swatch.style.background = CAPTURED;
      const [what, when] = captured.length === 1 ? ["graph", ""] : [`${captured.length} graphs`, "the first "];
      legend.append(element("li", {}, swatch, `${what} captured, ${when}at ${time(captured[0] * 1e6)}`));
    }
    return legend;
  }

  draw() {
    if (!this.canvas) return;
    const { memory } = this.app.view;
    const height = 110;
    const { context, width } = prepared(this.canvas, height);
    const gutter = width < 480 ? 56 : 112;
    const { ink } = this.app.theme;
    const most = Math.max(...memory.curves.map((curve) => curve.peak)) * 1.15 || 1;
    const at = new Float32Array(this.app.buffer, memory.at, memory.samples);
    const longest = Math.max(memory.wall_ms, at[at.length - 1], 1e-6);
    const x = (ms) => gutter + (ms / longest) * (width - gutter - 4);
    const y = (value) => height - 16 - (value / most) * (height - 22);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = ink;
    context.textAlign = "right";
    for (const tick of byteTicks(most, 4)) {
      context.globalAlpha = 0.15;
      context.fillRect(gutter, y(tick), width - gutter, 1);
      context.globalAlpha = 1;
      context.fillText(bytes(tick), gutter - 6, Math.max(6, y(tick)));
    }
    for (const tick of ticks(0, longest, Math.max(2, (width - gutter) / 110))) {
      context.globalAlpha = 0.15;
      context.fillRect(x(tick), 4, 1, height - 20);
      context.globalAlpha = 1;
      context.textAlign = tick ? "center" : "left";
      if (x(tick) < width - 20) context.fillText(time(tick * 1e6), x(tick), height - 7);
    }
    context.fillStyle = CAPTURED;
    for (const pixel of new Set((memory.captured_ms || []).map((ms) => Math.round(x(ms))))) {
      context.fillRect(pixel, 4, 1, height - 20);
    }
    memory.curves.forEach((curve, number) => {
      const values = new Float32Array(this.app.buffer, curve.offset, memory.samples);
      context.strokeStyle = context.fillStyle = CURVES[number % CURVES.length];
      context.lineWidth = 1.5;
      context.beginPath();
      let peak = 0;
      for (let i = 0; i < values.length; i++) {
        if (values[i] > values[peak]) peak = i;
        if (i) context.lineTo(x(at[i]), y(values[i - 1]));
        context.lineTo(x(at[i]), y(values[i]));
      }
      context.stroke();
      context.beginPath();
      context.arc(x(at[peak]), y(values[peak]), 3, 0, 7);
      context.fill();
    });
  }

  _tooltip(event) {
    const { memory } = this.app.view;
    const canvas = this.canvas;
    const gutter = canvas.clientWidth < 480 ? 56 : 112;
    const at = new Float32Array(this.app.buffer, memory.at, memory.samples);
    const longest = Math.max(memory.wall_ms, at[at.length - 1], 1e-6);
    const ms = ((event.offsetX - gutter) / (canvas.clientWidth - gutter - 4)) * longest;
    if (ms < 0) return this.app.hideTooltip();
    const i = Math.max(0, bisect(0, at.length, (k) => at[k] > ms) - 1);
    const lines = memory.curves.map((curve) => {
      const values = new Float32Array(this.app.buffer, curve.offset, memory.samples);
      return `${curve.label}: ${bytes(values[i])}`;
    });
    return this.app.tooltipAt(event, [`at ${time(at[i] * 1e6)}`, ...lines]);
  }
}
