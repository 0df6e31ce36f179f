// Where in the whole time the view is, and how busy each timeline is there; dragging chooses what is shown.

class Overview {
  constructor(app) {
    this.app = app;
    this.brush = null;
    this.canvas = element("canvas", {
      class: "grape-overview",
      role: "img",
      "aria-label": "Overview: share of time in which the GPU works, or operators run where there is no GPU",
    });
    this._listen();
  }

  draw() {
    const { pictures, viewport, theme } = this.app;
    const each = 14;
    const { context, width } = prepared(this.canvas, each * pictures.length + 8);
    const gutter = pictures[0].gutter;
    const inner = Math.max(1, width - gutter);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    pictures.forEach((picture, number) => {
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
    context.strokeRect(x0 + 0.5, 0.5, Math.max(2, x1 - x0 - 1), each * pictures.length + 6);
    if (this.brush) {
      context.fillStyle = "rgba(79, 143, 208, 0.35)";
      const from = gutter + (this.brush.from / viewport.longest) * inner;
      context.fillRect(from, 0, ((this.brush.to - this.brush.from) / viewport.longest) * inner, 100);
    }
  }

  /** Busy share of each of `count` parts of the whole time; of the host where the device did nothing. */
  _shares(picture, count) {
    const known = picture.shares;
    if (known && known.length === count && picture.sharesOf === this.app.viewport.longest) return known;
    const shares = new Float32Array(count);
    const { starts, ends } = picture.busy.starts.length ? picture.busy : picture.working;
    const scale = (count * picture.timeline.tick_ns) / this.app.viewport.longest;
    for (let k = 0; k < starts.length; k++) {
      const from = starts[k] * scale;
      const to = Math.min(count, ends[k] * scale);
      for (let x = Math.floor(from); x < to; x++) shares[x] += Math.min(to, x + 1) - Math.max(from, x);
    }
    picture.shares = shares.map((share) => Math.min(1, share));
    picture.sharesOf = this.app.viewport.longest;
    return picture.shares;
  }

  _listen() {
    const { canvas, app } = this;
    const at = (event) => {
      const gutter = app.pictures[0].gutter;
      const share = (event.offsetX - gutter) / Math.max(1, canvas.clientWidth - gutter);
      return Math.min(1, Math.max(0, share)) * app.viewport.longest;
    };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !app.pictures.length) return;
      canvas.setPointerCapture(event.pointerId);
      this.brush = { from: at(event), to: at(event) };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.brush) return;
      this.brush.to = at(event);
      app.redraw();
    });
    canvas.addEventListener("pointerup", () => {
      const { brush } = this;
      const { viewport } = app;
      this.brush = null;
      if (!brush) return;
      const from = Math.min(brush.from, brush.to);
      const to = Math.max(brush.from, brush.to);
      if (to - from > viewport.longest / 200) viewport.show(from, to);
      else {
        const half = (viewport.to - viewport.from) / 2;
        viewport.show(from - half, from + half);
      }
    });
  }
}
