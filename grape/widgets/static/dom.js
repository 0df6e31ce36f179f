// Elements, canvases, and the time that is in view. Positions on a canvas are CSS pixels.

// JupyterLab takes keys pressed in an output as its own (0 0 restarts the kernel), also where they are handled; it lets
// be what carries this attribute, which must stand on the focused element itself.
const OWN_KEYS = "data-lm-suppress-shortcuts";
const FOCUSED = new Set(["button", "select", "input", "canvas", "summary", "pre"]);

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  if (FOCUSED.has(tag)) node.setAttribute(OWN_KEYS, "true");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** A sentence, what stands between backticks as code. */
function prose(text) {
  return text.split(/`([^`\n]+)`/).map((part, index) => (index % 2 ? element("code", {}, part) : part));
}

/** The context of `canvas` for drawing in CSS pixels, cleared; its backing store fits the screen's density. */
function prepared(canvas, height) {
  const width = Math.max(1, Math.floor(canvas.clientWidth));
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

/** Mean width of a character in the font of `context`: names are clipped to the room that there is. */
function letterWidth(context) {
  const sample = "aten::scaled_dot_product, line 12";
  return context.measureText(sample).width / sample.length;
}

class Viewport {
  constructor(changed) {
    this.changed = changed;
    this.longest = 1;
    this.from = 0;
    this.to = 1;
    this.cursor = null;
  }

  fit(longest = this.longest) {
    this.longest = Math.max(1, longest);
    this.show(0, this.longest);
  }

  /** Shows [from, to] where it can: at least 100 ns, at most all there is and a little air. */
  show(from, to) {
    const span = Math.min(Math.max(100, to - from), this.longest * 1.05);
    const middle = (from + to) / 2;
    const air = this.longest * 0.025;
    this.from = Math.min(Math.max(middle - span / 2, -air), this.longest + air - span);
    this.to = this.from + span;
    this.changed();
  }

  zoom(factor, around = (this.from + this.to) / 2) {
    this.show(around - (around - this.from) * factor, around + (this.to - around) * factor);
  }

  pan(share) {
    const step = (this.to - this.from) * share;
    this.show(this.from + step, this.to + step);
  }
}

function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return found;
}
