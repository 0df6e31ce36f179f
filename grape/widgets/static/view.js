// The view of one report.

let mounted = 0;

class ReportView {
  /**
   * `host` has `view`, `columns` (bytes), `actions` (names of what it can do), `states()`, `onStates(callback)`, which
   * returns how to stop, and `request(action, target)`, a promise of what the kernel answered. `beside`: the report as
   * HTML stands above, and nothing of it is said again.
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
    /** Sources that stand in their cells, with what is said of them. */
    this.placed = new Map();
    this.memory = new MemoryPanel(this);
    this.findings = new Findings(this);
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
    if (this.host.beside) root.setAttribute("aria-label", "Fixes and timelines");
    else root.setAttribute("aria-labelledby", this.titleId);
    this.tooltip = element("div", { class: "grape-tooltip", "aria-hidden": "true", hidden: true });
    this.taken = element("div", {});
    this.status = element("p", { class: "grape-status", role: "status" });
    const { beside } = this.host;
    const pictures = [this._regionBar(), this._timelines(), this.memory.section()];
    const fixes = (this.findingsSection = this.findings.section()); // which may lead to the pictures
    const report = [this._head(), spentSection(view), linesSection(view, (index) => this.findings.atLine(index))];
    root.replaceChildren(
      ...(beside ? [] : report),
      fixes,
      view.next && !beside ? element("p", { class: "grape-next" }, element("b", {}, "next: "), ...prose(view.next)) : "",
      this.status,
      this.taken,
      ...(beside ? [this._folded(pictures)] : pictures),
      runsSection(this.host),
      this.tooltip,
    );
  }

  _head() {
    const { view } = this;
    return element(
      "header",
      { class: "grape-head" },
      element(
        "p",
        { class: "grape-verdict", id: this.titleId, role: "heading", "aria-level": this.host.level || 4 },
        ...prose(view.verdict),
      ),
      element("p", { class: "grape-quiet" }, view.headline),
      view.error ? element("p", {}, `the cell raised ${view.error}`) : null,
      ...view.notes.map((note) => element("p", { class: "grape-quiet" }, "note: ", ...prose(note))),
      ...(view.streams || []).map((line) => element("p", { class: "grape-quiet" }, line)),
    );
  }

  /** Below a report that stands as HTML, pictures are opened by who wants to see them. */
  _folded(pictures) {
    const words = this.view.timelines.length || this.view.coming ? "timelines, memory over time" : "memory over time";
    const fold = element("details", { class: "grape-more" }, element("summary", {}, words), ...pictures);
    fold.addEventListener("toggle", () => this.redraw());
    return fold;
  }

  /** The same view with other findings, once their rewrites were asked for. */
  update(view) {
    this.view = view;
    const before = this.findingsSection;
    this.findings = new Findings(this);
    this.findingsSection = this.findings.section();
    if (before && this.findingsSection) before.replaceWith(this.findingsSection);
    this._showStates();
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
      downloads.append(this.button("Download trace", () => this._download("trace", "grape-trace.json")));
    }
    if (this.host.actions.includes("page")) {
      downloads.append(this.button("Download HTML", () => this._download("page", "grape-report.html")));
    }
    const choose = this.view.regions.length
      ? element("span", {}, element("label", { for: id }, "Region "), this.chooser)
      : "";
    return element("div", { class: "grape-bar" }, choose, downloads, this.regionFacts);
  }

  button(text, onclick, more = {}) {
    return element("button", { type: "button", onclick, ...more }, text);
  }

  _timelines() {
    if (!this.view.timelines.length) {
      this.pictureBox = this.overview = null;
      const none = this.view.coming ? "The timelines come in a moment." : "No timeline was recorded for this cell.";
      return element("p", { class: "grape-quiet" }, none);
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
        this.button("\u2212", () => this.viewport.zoom(1.5), { "aria-label": "Zoom out" }),
        this.button("+", () => this.viewport.zoom(1 / 1.5), { "aria-label": "Zoom in" }),
        this.button("Fit", () => this.viewport.fit(), { "aria-label": "Fit everything" }),
      ),
    );
    this.overview = new Overview(this);
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
      this.overview.canvas,
      this.pictureBox,
      this.leftOut,
      this.legend,
      element("details", { class: "grape-quiet" }, element("summary", {}, "Mouse and keys"), help),
      element("span", { id: this.helpId, hidden: true }, help),
      this.details,
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
    this.toolbar.hidden = this.overview.canvas.hidden = !shown;
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
    const add = (what, value, name) =>
      facts.append(element("div", { class: name }, element("dt", {}, what), element("dd", {}, value)));
    if (region.outcome) add("outcome", region.reason ? `${region.outcome}, ${region.reason}` : region.outcome);
    if (region.runs) add("calls", region.runs);
    else if (region.calls) add("calls", `${region.calls}, ${region.replays} replayed`);
    for (const bar of region.bars) add(bar.label, bar.value);
    if (region.speedup && region.speedup !== "-") add("speedup", region.speedup);
    if (region.verified && region.verified !== "-") add("outputs", region.verified);
    for (const strip of region.strips) add(`GPU ${strip.label}`, strip.value, "grape-wide");
    this.regionFacts.replaceChildren(facts);
    if (region.undoable && this.host.actions.includes("undo_region")) {
      const undo = this.button("Undo its graphs", () => this.act("undo_region", region.name, message), {
        "aria-label": `Undo its graphs: run ${region.name} eagerly again`,
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
        const pick = this.button(clipped(key, 44), () => this.search(key), { title: `${key}, ${time(ns)} in all` });
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
    const zoom = this.button("Zoom to it", () => this.zoomTo(timeline.startNs(index), timeline.endNs(index)));
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

  /** A cell's source that the person puts in its place: shown, and copied at a click. */
  sourceToTake(source) {
    const block = element("pre", { class: "grape-code", tabindex: "0", "aria-label": "Source to run" }, source);
    const copy = this.button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(source);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block); // no clipboard without a secure page: the person copies it
      }
    });
    return [block, copy];
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

  /** What a magic hands over: into its cell, or for the person to take. */
  place({ cell, replaces, source }) {
    const done = placeSource(this.root, replaces, source);
    this.say(done ? `${cell} holds the new source: run it` : `${cell} is not as it ran: put this in its place yourself`);
    this.taken.replaceChildren(...(done ? [] : this.sourceToTake(source)));
  }

  async act(action, target, message) {
    message.textContent = "asked the kernel \u2026";
    const late = setTimeout(() => {
      message.textContent = "no answer yet: the kernel is busy, or was restarted since";
    }, 8000);
    try {
      const answer = await this.host.request(action, target);
      message.textContent = answer.error || answer.message || "";
      if (answer.source && placeSource(this.root, answer.replaces, answer.source)) {
        this.placed.set(answer.source, `${answer.cell} holds the ${action === "undo" ? "source from before" : "rewrite"} now: run it`);
        this._showStates();
      }
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
    for (const { button, action, target, message, handed, on } of [...this.findings.buttons, ...(this.regionButtons || [])]) {
      const state = states[target];
      const applied = state ? state.applied : Boolean(on);
      button.disabled = action === "apply" ? applied : !applied;
      const placed = state && this.placed.get(state.source);
      if (state) message.textContent = placed || state.message;
      if (state && handed) handed.replaceChildren(...(state.source && !placed ? this.sourceToTake(state.source) : []));
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
    if (this.overview && this.pictures.length) this.overview.draw();
    this.memory.draw();
  }

  showTooltip(picture, index, event) {
    if (index < 0) return this.hideTooltip();
    const { timeline } = picture;
    const [name, category] = this.view.kinds[timeline.kind[index]];
    const where = placeText(this.view.places[timeline.place[index]]);
    return this.tooltipAt(event, [name, `${time(timeline.duration[index] * timeline.tick_ns)}, ${category}`, where]);
  }

  tooltipAt(event, lines) {
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
