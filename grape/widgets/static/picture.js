// One timeline as a picture.

const ROW = 16;
const AXIS = 18;

class Picture {
  constructor(timeline, app) {
    this.timeline = timeline;
    this.app = app;
    this.busy = busySpans(timeline, app.view.kinds, "device");
    this.working = busySpans(timeline, app.view.kinds, "host");
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
    this.letter = letterWidth(context);
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
    const room = Math.floor((this.gutter - 8) / this.letter);
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
      const room = Math.floor((labels[s + 2] - labels[s + 1] - 6) / this.letter);
      if (room > 2) {
        const name = this.app.view.kinds[timeline.kind[labels[s]]][0];
        context.fillText(clipped(name, room), labels[s + 1] + 3, y + ROW / 2, labels[s + 2] - labels[s + 1] - 5);
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
