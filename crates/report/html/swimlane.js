// Every rank a band, every lane of a rank a row of boxes; predicted above measured where both exist.

const AXIS_HEIGHT = 24;
const COMPUTE_HEIGHT = 24;
const COMMUNICATION_HEIGHT = 14;
const LANE_GAP = 2;
const BAND_GAP = 10;
// What a picture for print is drawn at, in pixels, of which a sheet has about 700 by 1000.
const PRINTED_WIDTH = 1000;
const PRINTED_HEIGHT = 1000;
// Over the last rows that are in sight, while there are more below.
const HINT_HEIGHT = 30;
// Pixels between boxes of one pass over which its label goes on.
const MOST_BETWEEN = 3;
const LANE_NAMES = {
  compute: "compute",
  "communication-in": "receiving and collectives",
  "communication-out": "sending",
};

class Swimlane {
  constructor(root, data, view) {
    this.data = data;
    this.view = view;
    this.root = root;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.spacer = document.createElement("div");
    this.spacer.className = "spacer";
    this.printed = document.createElement("div");
    this.printed.className = "printed";
    this.printed.setAttribute("aria-hidden", "true");
    this.tip = document.createElement("div");
    this.tip.className = "tip";
    this.tip.hidden = true;
    root.append(this.canvas, this.spacer);
    root.after(this.printed);
    document.body.append(this.tip);
    this.layOut();
    this.textWidths = new Map();
    this.pending = false;
    view.onChange(() => this.redraw());
    root.addEventListener("scroll", () => this.redraw());
    // Drawn before the page is shown: observers and frames come later, after a picture of the page perhaps.
    this.resize();
    // Resizing changes the height of what is observed: only a new width calls for it, in a new frame.
    new ResizeObserver(() => {
      if (root.clientWidth !== this.width) requestAnimationFrame(() => this.resize());
    }).observe(root);
    window.addEventListener("beforeprint", () => this.drawForPrint());
    window.addEventListener("afterprint", () => this.printed.replaceChildren());
    this.listen();
  }

  // Rows from the top down, each with its place; ranks in both timelines lie together.
  layOut() {
    const byRank = new Map();
    for (const timeline of this.data.timelines) {
      for (const track of timeline.tracks) {
        if (!byRank.has(track.rank)) byRank.set(track.rank, []);
        byRank.get(track.rank).push({ timeline, track });
      }
    }
    const several = this.data.timelines.length > 1;
    this.bands = [];
    let top = AXIS_HEIGHT + 4;
    // In the order that they are given in: of very many, one pipeline after the other.
    for (const parts of byRank.values()) {
      const band = { top, rows: [], parts };
      for (const { timeline, track } of band.parts) {
        const partTop = top;
        for (const lane of track.lanes) {
          const height = lane.lane === "compute" ? COMPUTE_HEIGHT : COMMUNICATION_HEIGHT;
          band.rows.push({ timeline, track, lane, top, height });
          top += height + LANE_GAP;
        }
        // Room for the name in the margin, however few lanes there are.
        top = Math.max(top, partTop + (several ? 20 : 30));
        if (several) top += 3;
      }
      top = Math.max(top, band.top + 32) + BAND_GAP;
      band.bottom = top - BAND_GAP / 2;
      this.bands.push(band);
    }
    this.height = top;
    this.several = several;
  }

  resize() {
    const style = getComputedStyle(this.root);
    const most = parseFloat(style.maxHeight) || this.height;
    this.width = this.root.clientWidth;
    this.shown = Math.min(this.height, most);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.shown}px`;
    this.spacer.style.height = `${this.height - this.shown}px`;
    this.prepare(this.canvas);
    this.draw();
  }

  // Makes a canvas of the width and height that are drawn the one that is drawn on.
  prepare(canvas) {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(this.shown * ratio);
    this.narrow = this.width < 620;
    this.margin = this.narrow ? 116 : 220;
    this.context = canvas.getContext("2d");
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
  }

  // All ranks, in pictures that a sheet of paper has room for; style sheets make them as wide as it is.
  drawForPrint() {
    const { width, shown, context, margin, narrow } = this;
    const pictures = [];
    this.width = PRINTED_WIDTH;
    for (let first = 0; first < this.bands.length; ) {
      const top = this.bands[first].top - AXIS_HEIGHT - 4;
      let next = first + 1;
      while (next < this.bands.length && this.bands[next].bottom - top <= PRINTED_HEIGHT) next += 1;
      this.shown = Math.ceil(this.bands[next - 1].bottom - top);
      const canvas = document.createElement("canvas");
      this.prepare(canvas);
      this.draw(top, this.bands.slice(first, next));
      pictures.push(canvas);
      first = next;
    }
    this.printed.replaceChildren(...pictures);
    Object.assign(this, { width, shown, context, margin, narrow });
  }

  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  plotWidth() {
    return Math.max(1, this.width - this.margin - 8);
  }

  timeAt(x) {
    const { from, to } = this.view;
    return from + ((x - this.margin) / this.plotWidth()) * (to - from);
  }

  pixelAt(time) {
    const { from, to } = this.view;
    return this.margin + ((time - from) / (to - from)) * this.plotWidth();
  }

  // Draws bands as they are when scrolled so far.
  draw(scroll = this.root.scrollTop, bands = this.bands) {
    const g = this.context;
    if (!g || this.width === 0) return;
    this.colours = Object.fromEntries(
      ["--ink", "--muted", "--surface", "--idle", "--line"].map((name) => [name, themeColour(name)]),
    );
    const family = getComputedStyle(this.root).fontFamily;
    this.fonts = { name: `600 12px ${family}`, small: `11px ${family}`, box: `11px ${family}` };
    g.clearRect(0, 0, this.width, this.shown);
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(0, AXIS_HEIGHT, this.width, this.shown - AXIS_HEIGHT);
    g.clip();
    this.drawGrid();
    for (const band of bands) {
      if (band.bottom - scroll < AXIS_HEIGHT || band.top - scroll > this.shown) continue;
      this.drawNames(band, scroll);
      for (const row of band.rows) this.drawRow(row, row.top - scroll);
      g.fillStyle = this.colours["--line"];
      if (band !== bands.at(-1)) g.fillRect(0, Math.round(band.bottom - scroll), this.width, 1);
    }
    g.restore();
    this.drawAxis();
    if (bands === this.bands) this.drawHint(scroll);
  }

  // Says at the lower edge how many ranks are below it.
  drawHint(scroll) {
    const hidden = this.bands.filter((band) => band.bottom - BAND_GAP - scroll > this.shown).length;
    if (hidden === 0) return;
    const g = this.context;
    const top = this.shown - HINT_HEIGHT;
    const shade = g.createLinearGradient(0, top, 0, this.shown);
    shade.addColorStop(0, `${this.colours["--surface"]}00`);
    shade.addColorStop(0.45, this.colours["--surface"]);
    g.fillStyle = shade;
    g.fillRect(0, top, this.width, HINT_HEIGHT);
    g.font = this.fonts.name;
    g.textAlign = "center";
    g.fillStyle = this.colours["--ink"];
    const rows = hidden === 1 ? "1 more rank" : `${hidden} more ranks`;
    g.fillText(`▼ ${rows} below: scroll here`, this.width / 2, this.shown - 9);
  }

  ticks() {
    const { from, to } = this.view;
    const step = roundStep(((to - from) / this.plotWidth()) * 90);
    const ticks = [];
    for (let n = Math.ceil(from / step); n * step <= to; n += 1) ticks.push(n * step);
    return { step, ticks };
  }

  drawGrid() {
    const g = this.context;
    g.fillStyle = this.colours["--line"];
    for (const time of this.ticks().ticks) {
      g.fillRect(Math.round(this.pixelAt(time)), AXIS_HEIGHT, 1, this.shown);
    }
  }

  drawAxis() {
    const g = this.context;
    const { step, ticks } = this.ticks();
    g.font = this.fonts.small;
    g.fillStyle = this.colours["--muted"];
    for (const time of ticks) {
      const text = time === 0 ? "0" : formatTime(time, this.view.to, step);
      const half = g.measureText(text).width / 2;
      const x = this.pixelAt(time);
      const middle = Math.min(Math.max(x, this.margin + half), this.width - half - 2);
      g.textAlign = "center";
      g.fillText(text, middle, AXIS_HEIGHT / 2);
      g.fillRect(Math.round(x), AXIS_HEIGHT - 4, 1, 4);
    }
    g.fillRect(this.margin, AXIS_HEIGHT - 1, this.plotWidth(), 1);
  }

  drawNames(band, scroll) {
    const g = this.context;
    g.textAlign = "left";
    const { track } = band.parts[0];
    g.font = this.fonts.name;
    g.fillStyle = this.colours["--ink"];
    const top = band.top - scroll;
    const room = this.margin - (this.several ? (this.narrow ? 66 : 102) : 12);
    const name = this.several ? `rank ${track.rank}` : rankName(track);
    g.fillText(this.fitted(name, room), 2, top + 10);
    g.font = this.fonts.small;
    g.fillStyle = this.colours["--muted"];
    g.fillText(this.fitted(track.place, room), 2, top + 26);
    if (!this.several) return;
    g.textAlign = "right";
    for (const { timeline, track } of band.parts) {
      const row = band.rows.find((row) => row.track === track);
      if (!row) continue;
      const fold = this.narrow || track.multiplicity === 1 ? "" : ` ×${track.multiplicity}`;
      g.fillText(
        this.fitted(timeline.source + fold, 100),
        this.margin - 8,
        row.top - scroll + row.height / 2,
      );
    }
  }

  fitted(text, room) {
    const g = this.context;
    if (g.measureText(text).width <= room) return text;
    let end = text.length;
    while (end > 0 && g.measureText(`${text.slice(0, end)}…`).width > room) end -= 1;
    return end > 0 ? `${text.slice(0, end)}…` : "";
  }

  drawRow(row, top) {
    const g = this.context;
    const { lane, timeline, height } = row;
    const left = this.margin;
    const right = this.margin + this.plotWidth();
    g.fillStyle = this.colours["--idle"];
    g.fillRect(left, top, Math.max(0, Math.min(right, this.pixelAt(timeline.span)) - left), height);
    const rowHeight = height / lane.depth;
    const { from, to } = this.view;
    const scale = this.plotWidth() / (to - from);
    g.save();
    g.beginPath();
    g.rect(left, top, right - left, height);
    g.clip();
    g.textAlign = "left";
    g.font = this.fonts.box;
    // Boxes that end on a pixel already painted in their colour would not be seen.
    const painted = new Map();
    // By row the boxes of one pass that stand side by side: what communicates in between cuts it into many, each too
    // narrow for a label.
    const runs = new Map();
    for (let i = 0; i < lane.start.length; i += 1) {
      const start = lane.start[i];
      const length = lane.length[i];
      if (start > to) break;
      if (start + length < from) continue;
      const x = left + (start - from) * scale;
      const width = Math.max(length * scale, 0.75);
      const [colour, ink] = this.shade(lane, i);
      const gap = width > 4 ? 1 : 0;
      this.extendRun(runs, row, top, { i, ink, from: Math.max(x, left), to: x + width - gap });
      const key = `${lane.row[i]} ${colour}`;
      if (width < 1 && painted.get(key) === Math.floor(x)) continue;
      painted.set(key, Math.floor(x));
      const y = top + lane.row[i] * rowHeight;
      g.fillStyle = colour;
      g.fillRect(x, y, width - gap, rowHeight - (lane.depth > 1 ? 1 : 0));
    }
    for (const run of runs.values()) this.labelRun(row, top, run);
    g.restore();
  }

  // Adds a box to the run of its row if it is of the same pass and begins where that ends, or labels the run and begins
  // another with it.
  extendRun(runs, row, top, box) {
    const { lane } = row;
    const told = [lane.kind, lane.label, lane.microbatch, lane.chunk, lane.reverse];
    const run = runs.get(lane.row[box.i]);
    const isNear = run !== undefined && box.from - run.to <= MOST_BETWEEN;
    if (isNear && told.every((column) => column[run.i] === column[box.i])) {
      run.to = box.to;
      return;
    }
    if (run !== undefined) this.labelRun(row, top, run);
    runs.set(lane.row[box.i], box);
  }

  labelRun(row, top, { i, ink, from, to }) {
    const { lane, timeline, height } = row;
    const rowHeight = height / lane.depth;
    if (to - from <= 8 || rowHeight < 11) return;
    this.context.fillStyle = ink;
    const y = top + lane.row[i] * rowHeight;
    this.drawLabel(lane, timeline, i, this.data.kinds[lane.kind[i]], from, to, y, rowHeight);
  }

  // Background and text: paler for later chunks, dark where the pipeline runs the reverse way.
  shade(lane, i) {
    const shades = this.data.kinds[lane.kind[i]].shades[lane.reverse[i]];
    return shades[(lane.chunk[i] ?? 0) % shades.length];
  }

  // The first of the whole label, letter and micro-batch, letter that fits between two pixels. Of a
  // pipeline that runs the reverse way the short ones have a small letter.
  drawLabel(lane, timeline, i, kind, from, to, top, height) {
    const microbatch = lane.microbatch[i];
    const letter = lane.reverse[i] ? kind.letter.toLowerCase() : kind.letter;
    const short = microbatch === null ? letter : letter + microbatch;
    for (const text of [timeline.labels[lane.label[i]], short, letter]) {
      const width = this.textWidth(text);
      if (text === "" || width > to - from - 2) continue;
      this.context.fillText(text, Math.min(from + 4, (from + to - width) / 2), top + height / 2 + 0.5);
      return;
    }
  }

  textWidth(text) {
    let width = this.textWidths.get(text);
    if (width === undefined) {
      width = this.context.measureText(text).width;
      this.textWidths.set(text, width);
    }
    return width;
  }

  // The interval under a point of the canvas, the narrowest if there are several.
  hit(x, y) {
    if (x < this.margin || y < AXIS_HEIGHT) return null;
    const at = y + this.root.scrollTop;
    const band = this.bands.find((band) => at >= band.top && at < band.bottom);
    const row = band?.rows.find((row) => at >= row.top && at < row.top + row.height);
    if (!row) return null;
    const { lane } = row;
    const within = Math.floor(((at - row.top) / row.height) * lane.depth);
    const slack = ((this.view.to - this.view.from) / this.plotWidth()) * 1.5;
    const time = this.timeAt(x);
    let best = null;
    for (let i = 0; i < lane.start.length; i += 1) {
      const inside = lane.start[i] - slack <= time && time <= lane.start[i] + lane.length[i] + slack;
      if (!inside || lane.row[i] !== within) continue;
      const distance = Math.max(lane.start[i] - time, time - lane.start[i] - lane.length[i], 0);
      if (best === null || distance < best.distance) best = { row, i, distance };
    }
    return best;
  }

  showTip(event) {
    const box = this.canvas.getBoundingClientRect();
    const hit = this.hit(event.clientX - box.left, event.clientY - box.top);
    this.tip.hidden = hit === null;
    if (hit === null) return;
    const {
      row: { lane, track, timeline },
      i,
    } = hit;
    const facts = [
      [this.data.kinds[lane.kind[i]].name, LANE_NAMES[lane.lane]],
      ["where", [rankName(track), track.place].filter(Boolean).join(", ")],
      ["start", formatTime(lane.start[i])],
      ["end", formatTime(lane.start[i] + lane.length[i])],
      ["duration", formatTime(lane.length[i])],
    ];
    if (lane.microbatch[i] !== null) facts.push(["micro-batch", lane.microbatch[i]]);
    if (lane.chunk[i] !== null) facts.push(["chunk", lane.chunk[i]]);
    if (lane.reverse[i]) facts.push(["pipeline", "the reverse way"]);
    if (this.several) facts.push(["timeline", timeline.source]);
    const title = document.createElement("strong");
    title.textContent = timeline.labels[lane.label[i]];
    const list = document.createElement("dl");
    for (const [name, value] of facts) {
      const [term, description] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      description.textContent = value;
      list.append(term, description);
    }
    this.tip.replaceChildren(title, list);
    const { offsetWidth, offsetHeight } = this.tip;
    const x = Math.min(event.clientX + 14, window.innerWidth - offsetWidth - 8);
    const below = event.clientY + 16;
    const y = below + offsetHeight > window.innerHeight ? event.clientY - offsetHeight - 12 : below;
    this.tip.style.transform = `translate(${Math.max(4, x)}px, ${Math.max(4, y)}px)`;
  }

  listen() {
    const { canvas, root, view } = this;
    let drag = null;
    canvas.addEventListener(
      "wheel",
      (event) => {
        const along = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
        const zooms = event.ctrlKey || event.metaKey;
        // Without a key the wheel scrolls the page.
        if (!along && !zooms) return;
        event.preventDefault();
        // Some devices count in lines, not pixels.
        const unit = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 16 : 1;
        const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
        if (along && !zooms) {
          view.pan((sideways * unit) / this.plotWidth());
        } else {
          const at = this.timeAt(event.clientX - canvas.getBoundingClientRect().left);
          view.zoom(Math.exp(event.deltaY * unit * 0.002), at);
        }
      },
      { passive: false },
    );
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      drag = { x: event.clientX, y: event.clientY };
      canvas.setPointerCapture(event.pointerId);
      canvas.classList.add("dragged");
      this.tip.hidden = true;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag === null) {
        this.showTip(event);
        return;
      }
      view.pan((drag.x - event.clientX) / this.plotWidth());
      root.scrollTop += drag.y - event.clientY;
      drag = { x: event.clientX, y: event.clientY };
    });
    const release = () => {
      drag = null;
      canvas.classList.remove("dragged");
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    canvas.addEventListener("dblclick", () => view.showAll());
    root.addEventListener("keydown", (event) => {
      const actions = {
        "+": () => view.zoom(0.7),
        "=": () => view.zoom(0.7),
        "-": () => view.zoom(1 / 0.7),
        ArrowLeft: () => view.pan(-0.15),
        ArrowRight: () => view.pan(0.15),
        0: () => view.showAll(),
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    });
  }
}
