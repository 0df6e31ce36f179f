// The view of one report: a plain ES module without dependencies. `render` serves anywidget, `startPage` a page of its
// own. Times are nanoseconds; positions on a canvas are CSS pixels.

// ---- data ----------------------------------------------------------------------------------------------------------

const COLUMN = { start: 0, duration: 1, kind: 2, place: 3, correlation: 4, size: 5 };

/** The columns of one timeline as typed arrays. `buffer` holds those of the whole view, little-endian. */
function readTimeline(spec, buffer) {
  const n = spec.events;
  const at = (column) => spec.offset + 4 * n * column;
  const timeline = {
    ...spec,
    n,
    start: new Uint32Array(buffer, at(COLUMN.start), n),
    duration: new Uint32Array(buffer, at(COLUMN.duration), n),
    kind: new Int32Array(buffer, at(COLUMN.kind), n),
    place: new Int32Array(buffer, at(COLUMN.place), n),
    correlation: new Int32Array(buffer, at(COLUMN.correlation), n),
    size: new Float32Array(buffer, at(COLUMN.size), n),
  };
  // Ticks covered by all events before the one of that number.
  timeline.covers = new Float64Array(n + 1);
  for (let i = 0; i < n; i++) timeline.covers[i + 1] = timeline.covers[i] + timeline.duration[i];
  timeline.startNs = (i) => timeline.start[i] * spec.tick_ns;
  timeline.endNs = (i) => (timeline.start[i] + timeline.duration[i]) * spec.tick_ns;
  return timeline;
}

/** Merged spans in which the device worked, as two arrays of ticks. */
function busySpans(timeline, kinds) {
  const spans = [];
  for (const row of timeline.rows) {
    if (row.lane !== "device") continue;
    for (let i = row.first; i < row.first + row.count; i++) {
      if (kinds[timeline.kind[i]][1] !== "graph") {
        spans.push([timeline.start[i], timeline.start[i] + timeline.duration[i]]);
      }
    }
  }
  spans.sort((a, b) => a[0] - b[0]);
  const starts = [];
  const ends = [];
  for (const [start, end] of spans) {
    const last = ends.length - 1;
    if (last >= 0 && start <= ends[last]) ends[last] = Math.max(ends[last], end);
    else {
      starts.push(start);
      ends.push(end);
    }
  }
  return { starts, ends };
}

/** The first index in [low, high) for which `isPast` holds; it must hold for all after it. */
function bisect(low, high, isPast) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isPast(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function placeText(place) {
  const position = place && (place[0] || place[1]);
  return position ? `${shortFile(position[0])}, line ${position[1]}, in ${position[2]}` : "";
}

function shortFile(file) {
  const parts = file.replaceAll("\\", "/").split("/");
  return parts.length > 2 ? parts.slice(-2).join("/") : parts.join("/");
}

/** Nanoseconds with three digits and a unit. */
function time(ns) {
  const size = Math.abs(ns);
  if (size < 1e-6) return "0";
  const [factor, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "us"] : [1, "ns"];
  return `${Number((ns / factor).toPrecision(3))} ${unit}`;
}

function bytes(size) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (size >= 1023.5 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${Number(size.toPrecision(3))} ${units[unit]}`;
}

// ---- colours -------------------------------------------------------------------------------------------------------

// Each has at least 3:1 against white and against the dark grounds of notebooks, and 4.5:1 under black text.
const PALETTE = [
  "#4f8fd0", "#d0802f", "#4a9e5c", "#a77bd1", "#d9706b", "#2f9e9e", "#9a8f2c", "#cc6fa3", "#a9825a", "#8a8f98",
];
const OTHERS = PALETTE.length - 1;
const TONES = { before: "#808a94", after: "#9461d6", memory: "#3f83c4" };
const CURVES = ["#3f83c4", "#9461d6", "#808a94"];
const IDLE = "rgba(217, 112, 107, 0.22)";

/** What events are coloured by: a key for the event `i` of `timeline`. */
const COLOUR_BY = {
  operator: (view, timeline, i) => view.kinds[timeline.kind[i]][0],
  module: (view, timeline, i) => {
    const place = view.places[timeline.place[i]];
    const position = place && (place[1] || place[0]);
    return position ? position[2].replace(/\.[^.]*$/, "") : "";
  },
  line: (view, timeline, i) => {
    const place = view.places[timeline.place[i]];
    return place ? placeText(place) : "";
  },
  kind: (view, timeline, i) => view.kinds[timeline.kind[i]][1],
};

/** A colour number per event, the same for the same key in all `timelines`, and the legend: what takes most time first. */
function colours(view, timelines, mode) {
  const totals = new Map();
  const keys = timelines.map((timeline) => {
    const cache = new Map();
    return Array.from({ length: timeline.n }, (_, i) => {
      const known = timeline.kind[i] * 65536 + timeline.place[i];
      let key = cache.get(known);
      if (key === undefined) cache.set(known, (key = COLOUR_BY[mode](view, timeline, i)));
      totals.set(key, (totals.get(key) || 0) + timeline.duration[i] * timeline.tick_ns);
      return key;
    });
  });
  const ranked = [...totals].filter(([key]) => key !== "").sort((a, b) => b[1] - a[1]).slice(0, OTHERS);
  const numbers = new Map(ranked.map(([key], number) => [key, number]));
  timelines.forEach((timeline, t) => {
    timeline.colour = Uint8Array.from(keys[t], (key) => numbers.get(key) ?? OTHERS);
  });
  return ranked.map(([key, ns], number) => ({ key, ns, colour: PALETTE[number] }));
}

// ---- elements ------------------------------------------------------------------------------------------------------

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

// ---- the time that is in view --------------------------------------------------------------------------------------

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

// ---- one timeline --------------------------------------------------------------------------------------------------

const ROW = 16;
const AXIS = 18;

class Picture {
  constructor(timeline, app) {
    this.timeline = timeline;
    this.app = app;
    this.busy = busySpans(timeline, app.view.kinds);
    this.height = AXIS + timeline.rows.length * ROW + 4;
    this.matches = null;
    const rows = [...new Set(timeline.rows.map((row) => row.label))].join(", ");
    this.canvas = element("canvas", {
      class: "grape-timeline",
      tabindex: "0",
      role: "application",
      "aria-label": `Timeline ${timeline.label}: ${time(timeline.wall_ns)}, ${timeline.n} events; rows: ${rows}`,
      "aria-describedby": app.helpId,
      "data-timeline": timeline.label,
    });
    this.canvas.style.height = `${this.height}px`;
    this._listen();
  }

  get gutter() {
    return this.canvas.clientWidth < 480 ? 56 : 112;
  }

  /** Time at a horizontal position, and the other way. */
  timeAt(x) {
    const { from, to } = this.app.viewport;
    return from + ((x - this.gutter) / Math.max(1, this.canvas.clientWidth - this.gutter)) * (to - from);
  }

  xAt(ns) {
    const { from, to } = this.app.viewport;
    return this.gutter + ((ns - from) / (to - from)) * (this.canvas.clientWidth - this.gutter);
  }

  /** The event under a position, or -1; what is too thin to hit is found three pixels around. */
  eventAt(x, y) {
    const row = this.timeline.rows[Math.floor((y - AXIS) / ROW)];
    if (!row || x < this.gutter) return -1;
    const { timeline } = this;
    const slack = (3 * (this.app.viewport.to - this.app.viewport.from)) / Math.max(1, this.canvas.clientWidth);
    const at = this.timeAt(x);
    const last = row.first + row.count;
    const i = bisect(row.first, last, (k) => timeline.endNs(k) > at - slack);
    let best = -1;
    let distance = slack;
    for (let k = i; k < last && timeline.startNs(k) <= at + slack; k++) {
      const away = Math.max(timeline.startNs(k) - at, at - timeline.endNs(k), 0);
      if (away <= distance && (best < 0 || away < distance)) {
        best = k;
        distance = away;
      }
      if (away === 0) break;
    }
    return best;
  }

  rowOf(i) {
    return this.timeline.rows.findIndex((row) => i >= row.first && i < row.first + row.count);
  }

  /** Take `isMatch` (of an event) as what stands out; null for all. */
  search(isMatch) {
    if (isMatch === null) {
      this.matches = null;
      return 0;
    }
    let found = 0;
    this.matches = this.timeline.rows.map((row) => {
      const hits = [];
      for (let i = row.first; i < row.first + row.count; i++) if (isMatch(this.timeline, i)) hits.push(i);
      found += hits.length;
      return hits;
    });
    return found;
  }

  draw() {
    const { context, width } = prepared(this.canvas, this.height);
    const { ink } = this.app.theme;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this._axis(context, width, ink);
    context.save();
    context.beginPath();
    context.rect(this.gutter, 0, width - this.gutter, this.height);
    context.clip();
    this._idle(context, width);
    this.timeline.rows.forEach((row, number) => {
      const y = AXIS + number * ROW;
      context.globalAlpha = this.matches ? 0.18 : 1;
      this._row(context, width, y, row.first, row.count, null);
      context.globalAlpha = 1;
      if (this.matches) this._row(context, width, y, 0, this.matches[number].length, this.matches[number]);
    });
    this._marks(context, ink);
    context.restore();
    this._labels(context, ink);
  }

  _axis(context, width, ink) {
    const { from, to } = this.app.viewport;
    context.fillStyle = ink;
    context.textAlign = "center";
    for (const at of ticks(from, to, Math.max(2, (width - this.gutter) / 110))) {
      const x = this.xAt(at);
      if (x < this.gutter) continue;
      context.globalAlpha = 0.15;
      context.fillRect(x, AXIS - 2, 1, this.height - AXIS + 2);
      context.globalAlpha = 1;
      if (x > this.gutter + 16 && x < width - 24) context.fillText(time(at), x, AXIS / 2);
    }
    context.textAlign = "left";
    context.font = "600 11px system-ui, sans-serif";
    context.fillText(this.timeline.label, 4, AXIS / 2);
    context.font = "11px system-ui, sans-serif";
  }

  _labels(context, ink) {
    context.fillStyle = ink;
    context.textAlign = "left";
    const room = Math.floor((this.gutter - 8) / 5.6);
    this.timeline.rows.forEach((row, number) => {
      if (row.depth === 0) context.fillText(clipped(row.label, room), 4, AXIS + number * ROW + ROW / 2);
    });
  }

  /** Shade the time in which the device waits, over all its rows. */
  _idle(context, width) {
    const rows = this.timeline.rows;
    const first = rows.findIndex((row) => row.lane === "device");
    if (first < 0) return;
    const count = rows.filter((row) => row.lane === "device").length;
    const { starts, ends } = this.busy;
    const tick = this.timeline.tick_ns;
    const { from, to } = this.app.viewport;
    const y = AXIS + first * ROW;
    const x0 = Math.max(this.gutter, this.xAt(0));
    context.fillStyle = IDLE;
    context.fillRect(x0, y, Math.max(0, Math.min(width, this.xAt(this.timeline.wall_ns)) - x0), count * ROW);
    const pixel = (to - from) / Math.max(1, width - this.gutter);
    let k = bisect(0, starts.length, (j) => ends[j] * tick > from);
    while (k < starts.length && starts[k] * tick < to) {
      if ((ends[k] - starts[k]) * tick >= pixel) {
        const x = this.xAt(starts[k] * tick);
        context.clearRect(x, y, this.xAt(ends[k] * tick) - x, count * ROW);
        k += 1;
      } else {
        // Too thin to be seen: the bars of such a pixel are as high as its busy share. On to the next pixel.
        const beyond = starts[k] * tick + pixel;
        k = bisect(k + 1, starts.length, (j) => ends[j] * tick > beyond);
      }
    }
  }

  /**
   * Draw the events of one row, at most one rectangle a pixel; `order` lists them where they are not consecutive. Events
   * thinner than a pixel share one, whose bar is as high as the share of the pixel that they cover.
   */
  _row(context, width, y, first, count, order) {
    const { timeline } = this;
    const { from, to } = this.app.viewport;
    const left = this.gutter;
    const scale = (width - left) / (to - from);
    const tick = timeline.tick_ns;
    const { start, duration, colour } = timeline;
    const last = first + count;
    const at = order ? (j) => order[j] : (j) => j;
    const endOf = (j) => (start[at(j)] + duration[at(j)]) * tick;
    const { covers } = timeline;
    const buckets = PALETTE.map(() => []);
    const thin = PALETTE.map(() => []);
    const labels = [];
    let j = bisect(first, last, (k) => endOf(k) > from);
    while (j < last) {
      const i = at(j);
      const begin = start[i] * tick;
      if (begin >= to) break;
      const x0 = left + (begin - from) * scale;
      const x1 = x0 + duration[i] * tick * scale;
      if (x1 - x0 >= 1) {
        buckets[colour[i]].push(x0, Math.max(1, x1 - x0 - (x1 - x0 > 4 ? 0.75 : 0)));
        if (x1 - x0 > 30) labels.push(i, Math.max(left, x0), Math.min(width, x1));
        j += 1;
      } else {
        const pixel = Math.floor(x0);
        const begun = j;
        const beyond = from + (pixel + 1 - left) / scale;
        // Nearly always the next event is beyond this pixel or very many are not: look near, then bisect.
        j += 1;
        for (let near = 0; near < 4 && j < last && endOf(j) <= beyond; near++) j += 1;
        if (j < last && endOf(j) <= beyond) j = bisect(j, last, (k) => endOf(k) > beyond);
        const covered = order ? 1 : Math.min(1, (covers[j] - covers[begun]) * tick * scale);
        thin[colour[i]].push(pixel, Math.max(1, covered * (ROW - 2)));
      }
    }
    PALETTE.forEach((fill, number) => {
      context.fillStyle = fill;
      const wide = buckets[number];
      for (let s = 0; s < wide.length; s += 2) context.fillRect(wide[s], y + 1, wide[s + 1], ROW - 2);
      const bars = thin[number];
      for (let s = 0; s < bars.length; s += 2) context.fillRect(bars[s], y + ROW - 1 - bars[s + 1], 1, bars[s + 1]);
    });
    context.fillStyle = "#000000";
    for (let s = 0; s < labels.length; s += 3) {
      const room = Math.floor((labels[s + 2] - labels[s + 1] - 6) / 6);
      if (room > 2) {
        const name = this.app.view.kinds[timeline.kind[labels[s]]][0];
        context.fillText(clipped(name, room), labels[s + 1] + 3, y + ROW / 2);
      }
    }
  }

  /** The cursor of all pictures, the brush, and the selected event with what was launched with it. */
  _marks(context, ink) {
    const { viewport, selected, brush } = this.app;
    if (selected && selected.picture === this) {
      context.strokeStyle = ink;
      for (const i of selected.related) this._outline(context, i, 1);
      this._outline(context, selected.index, 2);
    }
    if (brush) {
      const x = this.xAt(Math.min(brush.from, brush.to));
      context.fillStyle = "rgba(79, 143, 208, 0.25)";
      context.fillRect(x, 0, this.xAt(Math.max(brush.from, brush.to)) - x, this.height);
    }
    if (viewport.cursor !== null) {
      context.fillStyle = ink;
      context.globalAlpha = 0.6;
      context.fillRect(this.xAt(viewport.cursor), 0, 1, this.height);
      context.globalAlpha = 1;
    }
  }

  _outline(context, i, width) {
    const number = this.rowOf(i);
    if (number < 0 || this.timeline.endNs(i) < this.app.viewport.from || this.timeline.startNs(i) > this.app.viewport.to)
      return;
    const x = this.xAt(this.timeline.startNs(i));
    context.lineWidth = width;
    context.strokeRect(x, AXIS + number * ROW + 1, Math.max(2, this.xAt(this.timeline.endNs(i)) - x), ROW - 2);
  }

  _listen() {
    const { canvas, app } = this;
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      canvas.setPointerCapture(event.pointerId);
      drag = { x: event.offsetX, from: app.viewport.from, at: this.timeAt(event.offsetX), brush: event.shiftKey };
      drag.moved = false;
    });
    canvas.addEventListener("pointermove", (event) => {
      app.viewport.cursor = event.offsetX >= this.gutter ? this.timeAt(event.offsetX) : null;
      if (drag && Math.abs(event.offsetX - drag.x) > 3) drag.moved = true;
      if (drag && drag.moved && drag.brush) app.brush = { from: drag.at, to: this.timeAt(event.offsetX) };
      else if (drag && drag.moved) {
        const span = app.viewport.to - app.viewport.from;
        const from = drag.from - ((event.offsetX - drag.x) / Math.max(1, canvas.clientWidth - this.gutter)) * span;
        app.viewport.show(from, from + span);
      }
      const hovered = drag && drag.moved ? -1 : this.eventAt(event.offsetX, event.offsetY);
      app.showTooltip(this, hovered, event);
      app.redraw();
    });
    const end = (event) => {
      const done = drag;
      drag = null;
      if (!done) return;
      const { brush } = app;
      app.brush = null;
      if (brush) app.viewport.show(Math.min(brush.from, brush.to), Math.max(brush.from, brush.to));
      else if (!done.moved && event.type === "pointerup") {
        app.select(this, this.eventAt(event.offsetX, event.offsetY));
      }
      app.redraw();
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("pointerleave", () => {
      app.viewport.cursor = null;
      app.showTooltip(this, -1);
      app.redraw();
    });
    canvas.addEventListener("dblclick", (event) => {
      const i = this.eventAt(event.offsetX, event.offsetY);
      if (i >= 0) app.zoomTo(this.timeline.startNs(i), this.timeline.endNs(i));
    });
    canvas.addEventListener("wheel", (event) => app.wheel(event, this), { passive: false });
    canvas.addEventListener("keydown", (event) => app.key(event, this));
    canvas.addEventListener("focus", () => app.redraw());
  }
}

function clipped(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, room - 1))}\u2026`;
}

// ---- the view ------------------------------------------------------------------------------------------------------

let mounted = 0;

class ReportView {
  /**
   * `host` has `view`, `columns` (bytes), `actions` (names of what it can do), `states()`, `onStates(callback)`, which
   * returns how to stop, and `request(action, target)`, a promise of what the kernel answered.
   */
  constructor(root, host) {
    mounted += 1;
    this.root = root;
    this.host = host;
    this.view = host.view;
    this.helpId = `grape-help-${mounted}`;
    this.titleId = `grape-title-${mounted}`;
    const source = host.columns;
    this.buffer = source.buffer.slice(source.byteOffset, source.byteOffset + source.byteLength);
    this.viewport = new Viewport(() => this.redraw());
    this.pictures = [];
    this.selected = null;
    this.brush = null;
    this.mode = "operator";
    this.query = "";
    this.undoing = [];
    /** Milliseconds of script of the last frames: the benchmark and the tests read them. */
    this.frames = [];
    this._build();
    this._watch();
    this.chooseRegion(this.view.main);
  }

  close() {
    for (const undo of this.undoing.splice(0)) undo();
    cancelAnimationFrame(this.pending);
    this.pending = null;
    this.pictures = [];
    this.buffer = null;
    this.root.replaceChildren();
  }

  // -- the page --

  _build() {
    const { root, view } = this;
    root.classList.add("grape-report");
    root.setAttribute(OWN_KEYS, "true");
    root.setAttribute("role", "region");
    root.setAttribute("aria-labelledby", this.titleId);
    this.tooltip = element("div", { class: "grape-tooltip", "aria-hidden": "true", hidden: true });
    this.status = element("p", { class: "grape-status", role: "status" });
    root.replaceChildren(
      element(
        "header",
        { class: "grape-head" },
        element(
          "p",
          { class: "grape-verdict", id: this.titleId, role: "heading", "aria-level": this.host.level || 4 },
          view.verdict,
        ),
        element("p", { class: "grape-quiet" }, view.headline),
        view.error ? element("p", {}, `the cell raised ${view.error}`) : null,
        ...view.notes.map((note) => element("p", { class: "grape-quiet" }, `note: ${note}`)),
      ),
      this._regionBar(),
      this.status,
      this._timelines(),
      this._memory(),
      this._findings(),
      view.next ? element("p", { class: "grape-next" }, element("b", {}, "next: "), view.next) : "",
      this.tooltip,
    );
  }

  _regionBar() {
    const id = `${this.titleId}-region`;
    this.chooser = element("select", { id, onchange: () => this.chooseRegion(Number(this.chooser.value)) });
    this.view.regions.forEach((region, number) => {
      const where = region.where ? ` (${region.where})` : "";
      this.chooser.append(element("option", { value: number }, `${region.name}${where}`));
    });
    this.regionFacts = element("div", { class: "grape-facts" });
    const downloads = element("span", { class: "grape-downloads" });
    if (this.host.actions.includes("trace")) {
      downloads.append(this._button("Download trace", () => this._download("trace", "grape-trace.json")));
    }
    if (this.host.actions.includes("page")) {
      downloads.append(this._button("Download HTML", () => this._download("page", "grape-report.html")));
    }
    const choose = this.view.regions.length
      ? element("span", {}, element("label", { for: id }, "Region "), this.chooser)
      : "";
    return element("div", { class: "grape-bar" }, choose, downloads, this.regionFacts);
  }

  _button(text, onclick, more = {}) {
    return element("button", { type: "button", onclick, ...more }, text);
  }

  _timelines() {
    if (!this.view.timelines.length) {
      this.pictureBox = this.overview = null;
      return element("p", { class: "grape-quiet" }, "No timeline was recorded for this cell.");
    }
    const id = `${this.titleId}-colour`;
    const search = `${this.titleId}-search`;
    this.colourChooser = element("select", { id, onchange: () => this.colourBy(this.colourChooser.value) });
    const words = { operator: "operator or kernel", module: "module", line: "line", kind: "kind of event" };
    for (const [mode, word] of Object.entries(words)) {
      this.colourChooser.append(element("option", { value: mode }, word));
    }
    this.searchBox = element("input", {
      type: "search",
      id: search,
      placeholder: "name, file or line",
      oninput: () => this.search(this.searchBox.value),
      onkeydown: (event) => {
        if (event.key === "Enter") this.nextMatch(event.shiftKey ? -1 : 1);
      },
    });
    this.found = element("span", { class: "grape-quiet", role: "status" });
    this.toolbar = element(
      "div",
      { class: "grape-bar", role: "group", "aria-label": "Timeline controls" },
      element("span", {}, element("label", { for: id }, "Colour by "), this.colourChooser),
      element("span", {}, element("label", { for: search }, "Search "), this.searchBox, " ", this.found),
      element(
        "span",
        {},
        this._button("\u2212", () => this.viewport.zoom(1.5), { "aria-label": "Zoom out" }),
        this._button("+", () => this.viewport.zoom(1 / 1.5), { "aria-label": "Zoom in" }),
        this._button("Fit", () => this.viewport.fit(), { "aria-label": "Fit everything" }),
      ),
    );
    this.overview = element("canvas", {
      class: "grape-overview",
      role: "img",
      "aria-label": "Overview: share of time in which the GPU works; drag to choose what is shown",
    });
    this._listenOverview();
    this.pictureBox = element("div", { class: "grape-pictures" });
    this.leftOut = element("p", { class: "grape-quiet" });
    this.legend = element("ul", { class: "grape-legend", "aria-label": "Colours" });
    this.details = element("div", { class: "grape-details", "aria-live": "polite" });
    const help =
      "Drag to move, wheel to zoom (with Ctrl, or after a click), Shift and drag to zoom into a range, double click to " +
      "zoom to an event. Keys: left and right move, + and - zoom, 0 fits, up and down change the row, [ and ] choose " +
      "the event before and after, Enter zooms to it, Escape lets go.";
    return element(
      "section",
      { "aria-label": "Timelines" },
      this.toolbar,
      this.overview,
      this.pictureBox,
      this.leftOut,
      this.legend,
      element("details", { class: "grape-quiet" }, element("summary", {}, "Mouse and keys"), help),
      element("span", { id: this.helpId, hidden: true }, help),
      this.details,
    );
  }

  _memory() {
    const { memory } = this.view;
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
    this.memoryCanvas = null;
    if (memory.samples > 1 && memory.curves.length) {
      const said = memory.curves.map((curve) => `${curve.label} at most ${curve.shown}`).join(", ");
      this.memoryCanvas = element("canvas", {
        class: "grape-memory",
        role: "img",
        "aria-label": `${memory.title} over ${memory.wall}: ${said}`,
      });
      this.memoryCanvas.addEventListener("pointermove", (event) => this._memoryTooltip(event));
      this.memoryCanvas.addEventListener("pointerleave", () => this.hideTooltip());
    }
    const title = element("p", { class: "grape-title" }, memory.title);
    return element("section", { "aria-label": "Memory" }, title, this.memoryCanvas, table);
  }

  _findings() {
    const { findings } = this.view;
    if (!findings.length) return "";
    const list = element("ol", { class: "grape-findings" });
    this.buttons = [];
    findings.forEach((finding) => list.append(this._finding(finding)));
    const words = findings.length === 1 ? "1 finding" : `${findings.length} findings`;
    return element("section", { "aria-label": "Findings" }, element("p", { class: "grape-title" }, words), list);
  }

  _finding(finding) {
    const head = [`${finding.code} ${finding.name}`, finding.where, finding.cost].filter(Boolean).join(", ");
    const message = element("p", { class: "grape-answer", role: "status" });
    const bar = element("div", { class: "grape-bar" });
    const code = element("div", {});
    const shows = finding.file !== null && (this.pictureBox || this.view.sources[finding.file] !== undefined);
    if (shows) {
      const label = `Show ${finding.code} at ${finding.where}`;
      bar.append(this._button("Show", () => this.showFinding(finding, code), { "aria-label": label }));
    }
    if (finding.fix) {
      const target = `fix ${finding.fix.id}`;
      for (const [action, word] of [["apply", "Apply"], ["undo", "Undo"]]) {
        if (!this.host.actions.includes(action)) continue;
        const button = this._button(word, () => this._act(action, finding.fix.id, message), {
          "aria-label": `${word} ${finding.code} at ${finding.where}`,
        });
        bar.append(button);
        this.buttons.push({ button, action, target, message });
      }
    }
    const facts = element("tbody");
    for (const [what, value] of finding.evidence) {
      facts.append(element("tr", {}, element("th", { scope: "row" }, what), element("td", {}, value)));
    }
    return element(
      "li",
      { class: `grape-finding grape-${finding.severity}`, "data-code": finding.code },
      element("p", {}, element("span", { class: "grape-badge" }, finding.severity), " ", element("b", {}, head)),
      element("p", {}, finding.message),
      finding.advice ? element("p", {}, element("b", {}, "fix: "), finding.advice) : null,
      finding.fix ? diffBlock(finding.fix.diff) : null,
      finding.evidence.length
        ? element("details", {}, element("summary", {}, "evidence"), element("table", {}, facts))
        : null,
      bar,
      message,
      code,
    );
  }

  // -- what people do --

  chooseRegion(number) {
    const region = this.view.regions[number];
    if (this.chooser) this.chooser.value = String(number);
    this.region = region;
    this._facts(region);
    if (!this.pictureBox) return;
    const chosen = region ? [region.before_timeline, region.after_timeline].filter((one) => one !== null) : [];
    this.pictures = chosen.map((one) => new Picture(readTimeline(this.view.timelines[one], this.buffer), this));
    this.pictureBox.replaceChildren(...this.pictures.map((picture) => picture.canvas));
    const shown = this.pictures.length > 0;
    this.toolbar.hidden = this.overview.hidden = !shown;
    const left = this.pictures.map(({ timeline }) => timeline.left_out && `${timeline.label}: ${timeline.left_out}`);
    this.leftOut.textContent = shown ? left.filter(Boolean).join("; ") : "No timeline was recorded for this region.";
    this.select(null, -1);
    this.colourBy(this.mode);
    this.search(this.query);
    this.viewport.fit(Math.max(1, ...this.pictures.map(({ timeline }) => timeline.wall_ns)));
  }

  _facts(region) {
    this.regionButtons = [];
    if (!region) return;
    const message = element("p", { class: "grape-answer", role: "status" });
    const facts = element("dl", { class: "grape-figures" });
    const add = (what, value) => facts.append(element("div", {}, element("dt", {}, what), element("dd", {}, value)));
    if (region.outcome) add("outcome", region.reason ? `${region.outcome}, ${region.reason}` : region.outcome);
    if (region.calls) add("calls", `${region.calls}, ${region.replays} replayed`);
    for (const bar of region.bars) add(bar.label, bar.value);
    if (region.speedup && region.speedup !== "-") add("speedup", region.speedup);
    if (region.verified && region.verified !== "-") add("outputs", region.verified);
    for (const strip of region.strips) add(`GPU ${strip.label}`, strip.value);
    this.regionFacts.replaceChildren(facts);
    if (region.outcome === "replayed" && this.host.actions.includes("undo_region")) {
      const undo = this._button("Undo", () => this._act("undo_region", region.name, message), {
        "aria-label": `Undo: run ${region.name} eagerly again`,
      });
      this.regionFacts.append(undo, message);
      this.regionButtons.push({ button: undo, action: "undo", target: `region ${region.name}`, message, on: true });
    }
    this._showStates();
  }

  colourBy(mode) {
    this.mode = mode;
    if (this.colourChooser) this.colourChooser.value = mode;
    const entries = colours(this.view, this.pictures.map(({ timeline }) => timeline), mode);
    this.legend.replaceChildren(
      ...entries.map(({ key, ns, colour }) => {
        const swatch = element("span", { class: "grape-swatch" });
        swatch.style.background = colour;
        const pick = this._button(clipped(key, 44), () => this.search(key), { title: `${key}, ${time(ns)} in all` });
        return element("li", {}, swatch, pick);
      }),
      ...(this.pictures.some((picture) => picture.busy.starts.length) ? [idleEntry()] : []),
    );
    this.redraw();
  }

  search(query) {
    this.query = query;
    if (!this.searchBox) return;
    if (this.searchBox.value !== query) this.searchBox.value = query;
    const wanted = query.trim().toLowerCase();
    let isMatch = null;
    if (wanted) {
      const { kinds, places } = this.view;
      const kindHit = kinds.map(([name, category]) => name.toLowerCase().includes(wanted) || category === wanted);
      const placeHit = places.map((place) =>
        place.some((at) => at && `${placeText([at])}\n`.toLowerCase().includes(wanted)),
      );
      isMatch = (timeline, i) => kindHit[timeline.kind[i]] || (timeline.place[i] >= 0 && placeHit[timeline.place[i]]);
    }
    const found = this.pictures.map((picture) => picture.search(isMatch));
    const each = this.pictures.map((picture, k) => `${found[k]} ${picture.timeline.label}`).join(", ");
    this.found.textContent = wanted ? `matches: ${each || "none"}` : "";
    this.redraw();
  }

  /** Select the match after (before) the selected event, in the order of time. */
  nextMatch(step) {
    const all = this.pictures.flatMap((picture) =>
      (picture.matches || []).flat().map((index) => ({ picture, index, at: picture.timeline.startNs(index) })),
    );
    if (!all.length) return;
    const order = (one) => this.pictures.indexOf(one.picture);
    all.sort((a, b) => order(a) - order(b) || a.at - b.at || a.index - b.index);
    const { selected } = this;
    const now = selected
      ? all.findIndex((one) => one.picture === selected.picture && one.index === selected.index)
      : -1;
    const next = all[(now + step + all.length + (now < 0 && step < 0 ? 1 : 0)) % all.length];
    this.select(next.picture, next.index);
    this._bringIntoView();
  }

  select(picture, index) {
    if (!picture || index < 0) {
      this.selected = null;
      this.details.replaceChildren();
      this.redraw();
      return;
    }
    const { timeline } = picture;
    const correlation = timeline.correlation[index];
    const related = [];
    if (correlation > 0) {
      for (let i = 0; i < timeline.n; i++) if (timeline.correlation[i] === correlation && i !== index) related.push(i);
    }
    this.selected = { picture, index, related };
    this.details.replaceChildren(...this._describe(picture, index, related));
    this.redraw();
  }

  _describe(picture, index, related) {
    const { timeline } = picture;
    const [name, category] = this.view.kinds[timeline.kind[index]];
    const row = timeline.rows[picture.rowOf(index)];
    const facts = element("dl", {});
    const add = (what, value) => facts.append(element("dt", {}, what), element("dd", {}, value));
    add("event", name);
    add("kind", `${category}, ${row.label}, ${timeline.label}`);
    add("duration", time(timeline.duration[index] * timeline.tick_ns));
    add("start", time(timeline.startNs(index)));
    if (timeline.size[index] > 0) add("moved", bytes(timeline.size[index]));
    if (related.length) {
      const first = this.view.kinds[timeline.kind[related[0]]][0];
      add("launched with", related.length === 1 ? first : `${first} and ${related.length - 1} more`);
    }
    const place = this.view.places[timeline.place[index]] || [null, null];
    if (place[0]) add("line", placeText([place[0]]));
    if (place[1] && placeText([place[1]]) !== placeText([place[0]])) add("issued by", placeText([place[1]]));
    if (!place[0] && !place[1]) add("line", "not known");
    const zoom = this._button("Zoom to it", () => this.zoomTo(timeline.startNs(index), timeline.endNs(index)));
    return [facts, place[0] ? this.excerpt(place[0][0], place[0][1], place[0][1]) : "", zoom].filter(Boolean);
  }

  /** A few lines around [from, to] of a file of the person's, with those lines marked; null where it is not known. */
  excerpt(file, from, to) {
    const source = this.view.sources[file];
    if (source === undefined) return null;
    const lines = source.split("\n");
    if (from > lines.length) return null;
    const first = Math.max(1, from - 2);
    const last = Math.min(lines.length, Math.min(to, from + 10) + 2);
    const block = element("pre", { class: "grape-code", tabindex: "0", "aria-label": `${shortFile(file)}, line ${from}` });
    for (let number = first; number <= last; number++) {
      const marked = number >= from && number <= to;
      const text = `${String(number).padStart(4)}  ${lines[number - 1]}\n`;
      block.append(marked ? element("mark", {}, text) : text);
    }
    return block;
  }

  /** Zoom to what a finding rests on, and show its line. */
  showFinding(finding, code) {
    const excerpt = this.excerpt(finding.file, finding.line, finding.end_line);
    code.replaceChildren(excerpt || "");
    if (!this.pictureBox) return;
    const number = this.view.regions.findIndex((region) => region.name === finding.region);
    if (number >= 0 && this.view.regions[number] !== this.region) this.chooseRegion(number);
    const at = (place) =>
      place && place[0] && place[0][0] === finding.file && place[0][1] >= finding.line && place[0][1] <= finding.end_line;
    const hit = this.view.places.map(at);
    const longest = { picture: null, index: -1, ns: -1 };
    const picture = this.pictures[0];
    if (picture) {
      const { timeline } = picture;
      for (let i = 0; i < timeline.n; i++) {
        if (timeline.place[i] < 0 || !hit[timeline.place[i]]) continue;
        if (timeline.duration[i] > longest.ns) Object.assign(longest, { picture, index: i, ns: timeline.duration[i] });
      }
    }
    if (longest.index < 0) {
      this.viewport.fit();
      const whole = this.region && this.region.where === finding.where;
      const what = whole ? `is about all of ${this.region.name}, which is shown` : "stands at no recorded event";
      this.say(`${finding.code} at ${finding.where} ${what}${excerpt ? "; its code is below" : ""}`);
      return;
    }
    const { timeline } = picture;
    this.search(`${shortFile(finding.file)}, line ${finding.line},`);
    this.select(picture, longest.index);
    this.zoomTo(timeline.startNs(longest.index), timeline.endNs(longest.index));
    this.say(`${finding.code}: the longest event at ${finding.where} is shown`);
    picture.canvas.focus({ preventScroll: true });
    this.toolbar.scrollIntoView({ block: "nearest" });
  }

  zoomTo(from, to) {
    const air = Math.max(100, (to - from) * 0.25);
    this.viewport.show(from - air, to + air);
  }

  _bringIntoView() {
    const { picture, index } = this.selected;
    const from = picture.timeline.startNs(index);
    const to = picture.timeline.endNs(index);
    const { viewport } = this;
    if (from < viewport.from || to > viewport.to) {
      const span = Math.max(viewport.to - viewport.from, (to - from) * 1.5);
      const middle = (from + to) / 2;
      viewport.show(middle - span / 2, middle + span / 2);
    }
  }

  say(text) {
    this.status.textContent = text;
  }

  // -- the kernel --

  async _act(action, target, message) {
    message.textContent = "asked the kernel \u2026";
    const late = setTimeout(() => {
      message.textContent = "no answer yet: the kernel is busy, or was restarted since";
    }, 8000);
    try {
      const answer = await this.host.request(action, target);
      message.textContent = answer.error || answer.message || "";
    } catch (error) {
      message.textContent = String(error.message || error);
    } finally {
      clearTimeout(late);
    }
  }

  async _download(action, name) {
    this.say("asked the kernel \u2026");
    try {
      const answer = await this.host.request(action, null);
      if (answer.error) throw new Error(answer.error);
      const link = element("a", { download: name, href: URL.createObjectURL(new Blob([answer.text])) });
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
      this.say(`downloaded ${name}`);
    } catch (error) {
      this.say(String(error.message || error));
    }
  }

  /** Buttons as the kernel's last word about their targets: what is applied can be undone, and the other way. */
  _showStates() {
    const states = this.host.states();
    for (const { button, action, target, message, on } of [...(this.buttons || []), ...(this.regionButtons || [])]) {
      const state = states[target];
      const applied = state ? state.applied : Boolean(on);
      button.disabled = action === "apply" ? applied : !applied;
      if (state) message.textContent = state.message;
    }
  }

  // -- drawing --

  redraw() {
    if (this.pending || !this.buffer) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = null;
      const began = performance.now();
      this.draw();
      this.frames.push(performance.now() - began);
      if (this.frames.length > 1000) this.frames.splice(0, 500);
    });
  }

  draw() {
    if (!this.root.isConnected || !this.root.clientWidth) return;
    for (const picture of this.pictures) picture.draw();
    if (this.overview && this.pictures.length) this._drawOverview();
    if (this.memoryCanvas) this._drawMemory();
  }

  _drawOverview() {
    const each = 14;
    const { context, width } = prepared(this.overview, each * this.pictures.length + 8);
    const gutter = this.pictures[0].gutter;
    const inner = Math.max(1, width - gutter);
    const { viewport, theme } = this;
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.pictures.forEach((picture, number) => {
      const y = 2 + number * each;
      const shares = this._shares(picture, Math.floor(inner));
      context.fillStyle = theme.ink;
      context.fillText(picture.timeline.label, 4, y + each / 2);
      context.fillStyle = TONES[picture.timeline.label] || TONES.before;
      for (let x = 0; x < shares.length; x++) {
        if (shares[x] > 0) context.fillRect(gutter + x, y + (each - 2) * (1 - shares[x]), 1, (each - 2) * shares[x]);
      }
    });
    const x0 = gutter + (Math.max(0, viewport.from) / viewport.longest) * inner;
    const x1 = gutter + (Math.min(viewport.longest, viewport.to) / viewport.longest) * inner;
    context.strokeStyle = theme.ink;
    context.lineWidth = 1;
    context.strokeRect(x0 + 0.5, 0.5, Math.max(2, x1 - x0 - 1), each * this.pictures.length + 6);
    if (this.overBrush) {
      context.fillStyle = "rgba(79, 143, 208, 0.35)";
      const from = gutter + (this.overBrush.from / viewport.longest) * inner;
      context.fillRect(from, 0, ((this.overBrush.to - this.overBrush.from) / viewport.longest) * inner, 100);
    }
  }

  /** Busy share of each of `count` parts of the whole time. */
  _shares(picture, count) {
    const known = picture.shares;
    if (known && known.length === count && picture.sharesOf === this.viewport.longest) return known;
    const shares = new Float32Array(count);
    const { starts, ends } = picture.busy;
    const scale = (count * picture.timeline.tick_ns) / this.viewport.longest;
    for (let k = 0; k < starts.length; k++) {
      const from = starts[k] * scale;
      const to = Math.min(count, ends[k] * scale);
      for (let x = Math.floor(from); x < to; x++) shares[x] += Math.min(to, x + 1) - Math.max(from, x);
    }
    picture.shares = shares.map((share) => Math.min(1, share));
    picture.sharesOf = this.viewport.longest;
    return picture.shares;
  }

  _listenOverview() {
    const canvas = this.overview;
    const at = (event) => {
      const gutter = this.pictures[0].gutter;
      const share = (event.offsetX - gutter) / Math.max(1, canvas.clientWidth - gutter);
      return Math.min(1, Math.max(0, share)) * this.viewport.longest;
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.pictures.length) return;
      canvas.setPointerCapture(event.pointerId);
      this.overBrush = { from: at(event), to: at(event) };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.overBrush) return;
      this.overBrush.to = at(event);
      this.redraw();
    });
    canvas.addEventListener("pointerup", () => {
      const { overBrush, viewport } = this;
      this.overBrush = null;
      if (!overBrush) return;
      const from = Math.min(overBrush.from, overBrush.to);
      const to = Math.max(overBrush.from, overBrush.to);
      if (to - from > viewport.longest / 200) viewport.show(from, to);
      else {
        const half = (viewport.to - viewport.from) / 2;
        viewport.show(from - half, from + half);
      }
    });
  }

  _drawMemory() {
    const { memory } = this.view;
    const height = 110;
    const { context, width } = prepared(this.memoryCanvas, height);
    const gutter = width < 480 ? 56 : 112;
    const { ink } = this.theme;
    const most = Math.max(...memory.curves.map((curve) => curve.peak)) * 1.15 || 1;
    const at = new Float32Array(this.buffer, memory.at, memory.samples);
    const longest = Math.max(memory.wall_ms, at[at.length - 1], 1e-6);
    const x = (ms) => gutter + (ms / longest) * (width - gutter - 4);
    const y = (value) => height - 16 - (value / most) * (height - 22);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = ink;
    for (const tick of ticks(0, longest, Math.max(2, (width - gutter) / 110))) {
      context.globalAlpha = 0.15;
      context.fillRect(x(tick), 4, 1, height - 20);
      context.globalAlpha = 1;
      context.textAlign = tick ? "center" : "left";
      if (x(tick) < width - 20) context.fillText(time(tick * 1e6), x(tick), height - 7);
    }
    memory.curves.forEach((curve, number) => {
      const values = new Float32Array(this.buffer, curve.offset, memory.samples);
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
      context.fillRect(4, 10 + number * 15, 8, 8);
      context.textAlign = "left";
      context.fillStyle = ink;
      context.fillText(clipped(curve.label, Math.floor((gutter - 20) / 5.6)), 16, 14 + number * 15);
    });
  }

  _memoryTooltip(event) {
    const { memory } = this.view;
    const canvas = this.memoryCanvas;
    const gutter = canvas.clientWidth < 480 ? 56 : 112;
    const at = new Float32Array(this.buffer, memory.at, memory.samples);
    const longest = Math.max(memory.wall_ms, at[at.length - 1], 1e-6);
    const ms = ((event.offsetX - gutter) / (canvas.clientWidth - gutter - 4)) * longest;
    if (ms < 0) return this.hideTooltip();
    const i = Math.max(0, bisect(0, at.length, (k) => at[k] > ms) - 1);
    const lines = memory.curves.map((curve) => {
      const values = new Float32Array(this.buffer, curve.offset, memory.samples);
      return `${curve.label}: ${bytes(values[i])}`;
    });
    return this._tooltipAt(event, [`at ${time(at[i] * 1e6)}`, ...lines]);
  }

  showTooltip(picture, index, event) {
    if (index < 0) return this.hideTooltip();
    const { timeline } = picture;
    const [name, category] = this.view.kinds[timeline.kind[index]];
    const where = placeText(this.view.places[timeline.place[index]]);
    return this._tooltipAt(event, [name, `${time(timeline.duration[index] * timeline.tick_ns)}, ${category}`, where]);
  }

  _tooltipAt(event, lines) {
    const { tooltip, root } = this;
    tooltip.replaceChildren(...lines.filter(Boolean).map((line) => element("div", {}, line)));
    tooltip.hidden = false;
    const box = root.getBoundingClientRect();
    const left = Math.min(event.clientX - box.left + 14, Math.max(0, box.width - tooltip.offsetWidth - 4));
    tooltip.style.left = `${left}px`;
    tooltip.style.top = `${event.clientY - box.top + 16}px`;
  }

  hideTooltip() {
    this.tooltip.hidden = true;
  }

  wheel(event, picture) {
    const zooms = event.ctrlKey || event.metaKey || document.activeElement === picture.canvas;
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!zooms && !sideways) return; // the notebook scrolls
    event.preventDefault();
    event.stopPropagation();
    if (sideways) this.viewport.pan((event.deltaX || event.deltaY) / 1000);
    else this.viewport.zoom(Math.exp(Math.max(-200, Math.min(200, event.deltaY)) / 250), picture.timeAt(event.offsetX));
  }

  key(event, picture) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => this.viewport.pan(-0.15),
      ArrowRight: () => this.viewport.pan(0.15),
      "+": () => this.viewport.zoom(1 / 1.5),
      "=": () => this.viewport.zoom(1 / 1.5),
      "-": () => this.viewport.zoom(1.5),
      0: () => this.viewport.fit(),
      Home: () => this.viewport.fit(),
      ArrowUp: () => this._step(picture, -1, 0),
      ArrowDown: () => this._step(picture, 1, 0),
      "[": () => this._step(picture, 0, -1),
      "]": () => this._step(picture, 0, 1),
      Enter: () => {
        if (this.selected) {
          const { timeline } = this.selected.picture;
          this.zoomTo(timeline.startNs(this.selected.index), timeline.endNs(this.selected.index));
        }
      },
      Escape: () => {
        this.search("");
        this.select(null, -1);
      },
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** Select another event: `rows` down at the same time, or the one `events` further in its row. */
  _step(picture, rows, events) {
    const { timeline } = picture;
    const now = this.selected && this.selected.picture === picture ? this.selected.index : -1;
    const middle = now < 0 ? (this.viewport.from + this.viewport.to) / 2 : timeline.startNs(now);
    const last = timeline.rows.length - 1;
    let number = now < 0 ? 0 : Math.min(last, Math.max(0, picture.rowOf(now) + rows));
    while (timeline.rows[number] && !timeline.rows[number].count && number < last) number += 1;
    const row = timeline.rows[number];
    if (!row || !row.count) return;
    let index = now;
    if (now < 0 || rows) {
      index = bisect(row.first, row.first + row.count, (k) => timeline.endNs(k) > middle);
      index = Math.min(index, row.first + row.count - 1);
    }
    index = Math.min(row.first + row.count - 1, Math.max(row.first, now < 0 ? index : index + events));
    this.select(picture, index);
    this._bringIntoView();
  }

  // -- what changes around the view --

  _watch() {
    const theme = () => {
      this.theme = { ink: getComputedStyle(this.root).color };
      this.redraw();
    };
    theme();
    const sizes = new ResizeObserver(() => {
      theme();
      this.redraw();
    });
    sizes.observe(this.root);
    // Notebooks change their theme by attributes of the body or the root.
    const changes = new MutationObserver(() => {
      theme();
      setTimeout(theme, 250); // once the new style sheet is there
    });
    const filter = { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-light", "data-theme"] };
    changes.observe(document.body, filter);
    changes.observe(document.documentElement, filter);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", theme);
    const stopStates = this.host.onStates(() => this._showStates());
    this.undoing.push(
      () => sizes.disconnect(),
      () => changes.disconnect(),
      () => dark.removeEventListener("change", theme),
      stopStates,
    );
  }
}

function idleEntry() {
  const swatch = element("span", { class: "grape-swatch" });
  swatch.style.background = IDLE;
  return element("li", {}, swatch, "GPU idle");
}

function diffBlock(diff) {
  const block = element("pre", { class: "grape-code", tabindex: "0", "aria-label": "Difference" });
  for (const line of diff.replace(/\n$/, "").split("\n")) {
    const head = line.startsWith("--- ") || line.startsWith("+++ ");
    const kind = head ? "grape-place" : { "+": "grape-added", "-": "grape-removed", "@": "grape-place" }[line[0]];
    block.append(kind ? element("span", { class: kind }, `${line}\n`) : `${line}\n`);
  }
  return block;
}

// ---- where it is shown ---------------------------------------------------------------------------------------------

/** For anywidget: the view of a model of the kernel. Returns how to let go of it. */
function render({ model, el }) {
  const waiting = new Map();
  const session = Math.random().toString(36).slice(2);
  let asked = 0;
  const answered = (content) => {
    const resolve = waiting.get(content.request);
    waiting.delete(content.request);
    if (resolve) resolve(content);
  };
  model.on("msg:custom", answered);
  const root = element("div");
  el.append(root);
  const shown = new ReportView(root, {
    view: model.get("view"),
    columns: model.get("columns"),
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
  });
  root.grape = shown;
  return () => {
    model.off("msg:custom", answered);
    shown.close();
    delete root.grape;
  };
}

/** For a page of its own: the view of the JSON text that `grape view` reads. */
async function startPage(root, text) {
  const content = JSON.parse(text);
  const packed = Uint8Array.from(atob(content.columns), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const columns = new Uint8Array(await new Response(stream).arrayBuffer());
  const nothing = { level: 1, actions: [], states: () => ({}), onStates: () => () => {}, request: async () => ({}) };
  root.grape = new ReportView(root, { view: content.view, columns, ...nothing });
}

export { startPage };
export default { render };
