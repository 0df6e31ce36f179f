// The columns of a view, and what events are coloured by. Times are nanoseconds.

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

/** Merged spans in which something of a lane ran, as two arrays of ticks. */
function busySpans(timeline, kinds, lane) {
  const spans = [];
  for (const row of timeline.rows) {
    if (row.lane !== lane) continue;
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

/** Round amounts below `most`, in powers of 1024, 0 and at most `count` more (4 or more). */
function byteTicks(most, count) {
  const unit = 1024 ** Math.floor(Math.log(Math.max(1, most)) / Math.log(1024));
  const steps = [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1024].map((m) => m * unit);
  const step = steps.find((one) => most / one <= count);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, k) => k * step);
}

// Each has at least 3:1 against white and against the dark grounds of notebooks, and 4.5:1 under black text.
const PALETTE = [
  "#4f8fd0", "#d0802f", "#4a9e5c", "#a77bd1", "#d9706b", "#2f9e9e", "#9a8f2c", "#cc6fa3", "#a9825a", "#8a8f98",
];
const OTHERS = PALETTE.length - 1;
const TONES = { before: "#808a94", after: "#9461d6", memory: "#3f83c4" };
const CURVES = ["#3f83c4", "#9461d6", "#808a94"];
const CAPTURED = "#d0802f";
const IDLE = "rgba(217, 112, 107, 0.22)";

/** What events are coloured by: a key for the event `i` of `timeline`. */
const COLOUR_BY = {
  operator: (view, timeline, i) => {
    const [name, category] = view.kinds[timeline.kind[i]];
    return category === "python" ? "" : name;
  },
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

/**
 * A colour number per event, the same for the same key in all `timelines`, and the legend. What takes most time comes
 * first, of host and device in turn: kernels are short beside what launches them, and would share the last colour.
 */
function colours(view, timelines, mode) {
  const totals = { host: new Map(), device: new Map() };
  const keys = timelines.map((timeline) => {
    const cache = new Map();
    const found = new Array(timeline.n);
    for (const row of timeline.rows) {
      const total = row.lane === "device" ? totals.device : totals.host;
      for (let i = row.first; i < row.first + row.count; i++) {
        const known = timeline.kind[i] * 65536 + timeline.place[i];
        let key = cache.get(known);
        if (key === undefined) cache.set(known, (key = COLOUR_BY[mode](view, timeline, i)));
        if (key !== "") total.set(key, (total.get(key) || 0) + timeline.duration[i] * timeline.tick_ns);
        found[i] = key;
      }
    }
    return found;
  });
  const longest = (total) => [...total].sort((a, b) => b[1] - a[1]);
  const [host, device] = [longest(totals.host), longest(totals.device)];
  const chosen = new Map();
  for (let k = 0; k < Math.max(host.length, device.length); k++) {
    for (const one of [host[k], device[k]]) {
      if (one && chosen.size < OTHERS) chosen.set(one[0], (chosen.get(one[0]) || 0) + one[1]);
    }
  }
  const ranked = [...chosen];
  const numbers = new Map(ranked.map(([key], number) => [key, number]));
  timelines.forEach((timeline, t) => {
    timeline.colour = Uint8Array.from(keys[t], (key) => numbers.get(key) ?? OTHERS);
  });
  return ranked.map(([key, ns], number) => ({ key, ns, colour: PALETTE[number] }));
}
