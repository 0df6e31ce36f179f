// What was found: message, difference, buttons, and the way from a finding to its evidence.

class Findings {
  constructor(app) {
    this.app = app;
    this.buttons = [];
  }

  /** The panel's elements; "" where there is no finding. */
  section() {
    const { findings } = this.app.view;
    if (!findings.length) return "";
    const list = element("ol", { class: "grape-findings" });
    const { lines } = this.app.view;
    const placed = new Set(this.app.host.beside || !lines ? [] : lines.rows.flatMap((row) => row.found || []));
    const listed = findings.filter((finding, index) => !placed.has(index));
    listed.forEach((finding) => list.append(this._finding(finding)));
    if (this.app.host.beside) {
      const first = list.querySelector(".grape-bar:not(:empty)");
      return first ? element("section", { "aria-label": "Fixes" }, list) : "";
    }
    if (!listed.length) return "";
    const more = placed.size ? " more" : "";
    const words = listed.length === 1 ? `1${more} finding` : `${listed.length}${more} findings`;
    return element("section", { "aria-label": "Findings" }, element("p", { class: "grape-title" }, words), list);
  }

  /** One that stands below its line: neither the place nor the code around it is said again. */
  atLine(index) {
    return this._finding(this.app.view.findings[index], true);
  }

  _finding(finding, placed = false) {
    const where = placed ? "" : finding.where;
    const head = [`${finding.code} ${finding.name}`, where, finding.cost].filter(Boolean).join(", ");
    const message = element("p", { class: "grape-answer", role: "status" });
    const bar = element("div", { class: "grape-bar" });
    const code = element("div", {});
    const handed = element("div", {});
    const shows = finding.file !== null && (this.app.pictureBox || this.app.view.sources[finding.file] !== undefined);
    if (shows) {
      const label = `Show ${finding.code} at ${finding.where}`;
      const word = this.app.pictureBox ? "Show in timeline" : "Show line";
      if (!this.app.host.beside || this.app.pictureBox) {
        bar.append(this.app.button(word, () => this.show(finding, code), { "aria-label": label }));
      }
    }
    if (finding.offered && !finding.fix && this.app.host.actions.includes("fixes")) {
      const label = `Show a rewrite for ${finding.code} at ${finding.where}`;
      bar.append(this.app.button("Show a rewrite", () => this.askForFixes(finding, message), { "aria-label": label }));
    }
    if (finding.fix) {
      const target = `fix ${finding.fix.id}`;
      for (const [action, word] of [["apply", "Apply"], ["undo", "Undo"]]) {
        if (!this.app.host.actions.includes(action)) continue;
        const button = this.app.button(word, () => this.app.act(action, finding.fix.id, message), {
          "aria-label": `${word} ${finding.code} at ${finding.where}`,
        });
        bar.append(button);
        this.buttons.push({ button, action, target, message, handed });
      }
    }
    if (this.app.host.beside) return this._row(finding, head, bar, message, handed, code);
    const facts = element("tbody");
    for (const [what, value] of finding.evidence) {
      facts.append(element("tr", {}, element("th", { scope: "row" }, what), element("td", {}, value)));
    }
    if (finding.evidence.length) {
      bar.append(element("details", {}, element("summary", {}, "evidence"), element("table", {}, facts)));
    }
    return element(
      "li",
      { class: `grape-finding grape-${finding.severity}`, "data-code": finding.code },
      element("p", {}, element("span", { class: "grape-badge" }, finding.severity), " ", element("b", {}, head)),
      element("p", {}, ...prose(finding.message)),
      finding.advice ? element("p", {}, element("b", {}, "fix: "), ...prose(finding.advice)) : null,
      finding.fix ? diffBlock(placed ? finding.fix.changes : finding.fix.diff) : null,
      finding.refused ? element("p", { class: "grape-quiet" }, ...prose(finding.refused)) : null,
      bar,
      message,
      handed,
      code,
    );
  }

  /** Below a report that says it all: what can be done about the finding, in one row. */
  _row(finding, head, bar, message, handed, code) {
    if (!bar.children.length) return element("li", { class: "grape-finding", "data-code": finding.code, hidden: true });
    bar.prepend(element("b", {}, [finding.code, finding.where].filter(Boolean).join(", ")));
    return element(
      "li",
      { class: "grape-finding", "data-code": finding.code },
      bar,
      // The report above has the rewrite too: here it is for whoever can take it.
      finding.fix && this.app.host.actions.includes("apply") ? diffBlock(finding.fix.diff) : null,
      finding.refused ? element("p", { class: "grape-quiet" }, ...prose(finding.refused)) : null,
      message,
      handed,
      code,
    );
  }

  /** Have the kernel make the rewrites, of all findings; the focus goes on to what this finding has then. */
  async askForFixes(finding, message) {
    const { app } = this;
    const number = app.view.findings.indexOf(finding);
    await app.act("fixes", null, message);
    const items = app.findingsSection ? app.findingsSection.querySelectorAll(".grape-finding") : [];
    const item = items[number];
    const next = item && (item.querySelector(".grape-code") || item.querySelector("button"));
    if (next && !item.contains(message)) next.focus({ preventScroll: true });
  }

  /** Zoom to what a finding rests on, and show its line. */
  show(finding, code) {
    const { app } = this;
    const excerpt = app.excerpt(finding.file, finding.line, finding.end_line);
    code.replaceChildren(excerpt || "");
    if (!app.pictureBox) return;
    const fold = app.root.querySelector(".grape-more");
    if (fold) fold.open = true;
    const number = app.view.regions.findIndex((region) => region.name === finding.region);
    if (number >= 0 && app.view.regions[number] !== app.region) app.chooseRegion(number);
    const at = (place) =>
      place && place[0] && place[0][0] === finding.file && place[0][1] >= finding.line && place[0][1] <= finding.end_line;
    const hit = app.view.places.map(at);
    const longest = { picture: null, index: -1, ns: -1 };
    const picture = app.pictures[0];
    if (picture) {
      const { timeline } = picture;
      for (let i = 0; i < timeline.n; i++) {
        if (timeline.place[i] < 0 || !hit[timeline.place[i]]) continue;
        if (timeline.duration[i] > longest.ns) Object.assign(longest, { picture, index: i, ns: timeline.duration[i] });
      }
    }
    if (longest.index < 0) {
      app.viewport.fit();
      const whole = app.region && app.region.where === finding.where;
      const what = whole ? `is about all of ${app.region.name}, which is shown` : "stands at no recorded event";
      app.say(`${finding.code} at ${finding.where} ${what}${excerpt ? "; its code is below" : ""}`);
      return;
    }
    const { timeline } = picture;
    app.search(`${shortFile(finding.file)}, line ${finding.line},`);
    app.select(picture, longest.index);
    app.zoomTo(timeline.startNs(longest.index), timeline.endNs(longest.index));
    app.say(`${finding.code}: the longest event at ${finding.where} is shown`);
    picture.canvas.focus({ preventScroll: true });
    app.toolbar.scrollIntoView({ block: "nearest" });
  }
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
