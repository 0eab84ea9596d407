// Losses over steps and memory over time, drawn by uPlot in the page's colours.

// Told apart by people with any common colour blindness, on light and dark alike.
const SERIES_COLOURS = [
  "#0f7fc4",
  "#d97706",
  "#12946a",
  "#b5529a",
  "#7c6ee6",
  "#c2410c",
  "#5b8c1f",
  "#64748b",
];
const MOST_RANKS = SERIES_COLOURS.length;
// A memory of so many times the highest peak would leave the lines no height: it is told of instead of drawn.
const FAR = 4;

function axis(options) {
  return {
    stroke: () => themeColour("--muted"),
    font: "11px system-ui, sans-serif",
    grid: { stroke: () => themeColour("--line"), width: 1 },
    ticks: { stroke: () => themeColour("--line"), width: 1, size: 4 },
    ...options,
  };
}

function stepAxis() {
  return axis({
    incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6, 1e7, 1e8],
  });
}

// Draws a plot as wide as its element, and again whenever that or the theme changes.
function responsivePlot(root, options, columns) {
  const plot = new uPlot({ width: root.clientWidth, height: 260, ...options }, columns, root);
  new ResizeObserver(() => {
    if (root.clientWidth !== plot.width) plot.setSize({ width: root.clientWidth, height: 260 });
  }).observe(root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plot.redraw());
  return plot;
}

function drawLosses(root, losses) {
  const validated = losses.filter((point) => point.validation !== null);
  const digits = (plot, value) => (value === null ? "–" : value.toFixed(4));
  const sparse = losses.length <= 60;
  const series = [
    { label: "step" },
    {
      label: "training",
      stroke: SERIES_COLOURS[0],
      width: 1.75,
      value: digits,
      points: { show: sparse, size: 4 },
    },
  ];
  const columns = [losses.map((point) => point.step), losses.map((point) => point.train)];
  if (validated.length > 0) {
    series.push({
      label: "validation",
      stroke: SERIES_COLOURS[1],
      width: 1.75,
      dash: [6, 3],
      spanGaps: true,
      value: digits,
      points: { show: true, size: 6 },
    });
    columns.push(losses.map((point) => point.validation));
  }
  responsivePlot(
    root,
    {
      series,
      scales: { x: { time: false } },
      axes: [stepAxis(), axis({ size: 64 })],
    },
    columns,
  );
}

// The share of validation samples that got their class, on the steps that validated.
function drawAccuracies(root, losses) {
  const validated = losses.filter((point) => point.accuracy !== null);
  const percent = (value, digits) => `${(100 * value).toFixed(digits)}%`;
  responsivePlot(
    root,
    {
      series: [
        { label: "step" },
        {
          label: "accuracy",
          stroke: SERIES_COLOURS[1],
          width: 1.75,
          value: (plot, value) => (value === null ? "–" : percent(value, 1)),
          points: { show: true, size: 6 },
        },
      ],
      scales: { x: { time: false } },
      axes: [stepAxis(), axis({ size: 64, values: (plot, ticks) => ticks.map((tick) => percent(tick, 1)) })],
    },
    [validated.map((point) => point.step), validated.map((point) => point.accuracy)],
  );
}

// The memory of the ranks that hold most, one line each; dashed where it is predicted and measured
// lines are there to compare with.
function drawMemory(root, help, data, view) {
  const ranks = new Map();
  for (const { tracks } of data.timelines) {
    for (const track of tracks.filter((track) => track.memory_at.length > 0)) {
      ranks.set(track.rank, Math.max(ranks.get(track.rank) ?? 0, track.peak_bytes));
    }
  }
  const chosen = [...ranks.keys()].sort((a, b) => ranks.get(b) - ranks.get(a) || a - b).slice(0, MOST_RANKS);
  chosen.sort((a, b) => a - b);

  const lines = [];
  for (const timeline of data.timelines) {
    for (const track of timeline.tracks) {
      const position = chosen.indexOf(track.rank);
      if (position >= 0 && track.memory_at.length > 0) lines.push({ timeline, track, position });
    }
  }
  const times = new Set([0, view.span]);
  for (const { track } of lines) {
    for (const time of track.memory_at) times.add(time);
  }
  const moments = [...times].sort((a, b) => a - b);
  const columns = [moments, ...lines.map(({ track }) => heldAt(moments, track))];
  const several = data.timelines.length > 1;
  const series = [
    { label: "time", value: (plot, value) => (value === null ? "–" : formatTime(value, view.span)) },
  ];
  for (const { timeline, track, position } of lines) {
    series.push({
      label: several ? `${rankName(track)} ${timeline.source}` : rankName(track),
      stroke: SERIES_COLOURS[position],
      width: 1.75,
      points: { show: false },
      dash: several && timeline.source === "predicted" ? [5, 4] : undefined,
      paths: uPlot.paths.stepped({ align: 1 }),
      value: (plot, value) => (value === null ? "–" : formatBytes(value)),
    });
  }
  const most = Math.max(1, ...ranks.values());
  const isFar = (bytes) => bytes > FAR * most;
  const far = data.device_memory.filter(isFar);
  const near = data.device_memory.filter((bytes) => !isFar(bytes));
  for (const bytes of near) {
    columns.push(moments.map(() => bytes));
    series.push({
      label: "memory of the device",
      stroke: () => themeColour("--warning"),
      width: 2,
      dash: [2, 3],
      points: { show: false },
      value: () => formatBytes(bytes),
    });
  }
  const plot = responsivePlot(
    root,
    {
      series,
      scales: {
        x: { time: false, min: 0, max: view.span },
        // What is told of at the top has room there.
        y: { range: (plot, low, high) => [0, high > 0 ? high * (far.length > 0 ? 1.18 : 1.06) : 1] },
      },
      axes: [
        axis({
          space: 90,
          values: (plot, ticks) =>
            ticks.map((time) => (time === 0 ? "0" : formatTime(time, view.to, ticks[1] - ticks[0]))),
        }),
        axis({
          size: 76,
          splits: (plot, index, low, high) => byteTicks(high),
          values: (plot, ticks) => ticks.map(formatBytes),
        }),
      ],
      hooks: {
        draw: [(plot) => writeAbove(plot, far, most)],
        setScale: [
          (plot, key) => {
            if (key === "x" && plot.scales.x.min !== null) view.show(plot.scales.x.min, plot.scales.x.max);
          },
        ],
      },
    },
    columns,
  );
  view.onChange(() => {
    const { min, max } = plot.scales.x;
    if (min !== view.from || max !== view.to) plot.setScale("x", { min: view.from, max: view.to });
  });
  const parts = ["Drag over a stretch to zoom; the timeline follows."];
  if (ranks.size > chosen.length)
    parts.push(`Drawn: the ${chosen.length} of ${ranks.size} ranks with the highest peaks.`);
  if (several) parts.push("Dashed lines are predicted.");
  if (near.length > 0) parts.push("The dotted line is the memory of the device.");
  help.textContent = parts.join(" ");
}

// Says at the top edge of a plot which memory devices have that is far above it.
function writeAbove(plot, far, most) {
  if (far.length === 0) return;
  const sizes = far.map((bytes) => `${formatBytes(bytes)}, ${Math.round(bytes / most)} times the highest peak`);
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${12 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "right";
  ctx.textBaseline = "top";
  ctx.fillStyle = themeColour("--warning");
  const room = bbox.width - 16 * ratio;
  ctx.fillText(`↑ memory of the device: ${sizes.join("; ")}`, bbox.left + bbox.width - 8 * ratio, bbox.top + 6 * ratio, room);
  ctx.restore();
}

// The bytes held at every moment: the last change at or before it.
function heldAt(moments, track) {
  let next = 0;
  let held = null;
  return moments.map((moment) => {
    while (next < track.memory_at.length && track.memory_at[next] <= moment) {
      held = track.memory_bytes[next];
      next += 1;
    }
    return held;
  });
}

// Up to about five marks at round binary sizes.
function byteTicks(high) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(high, 1)) / Math.log(1024)));
  const step = Math.max(1, roundStep(high / unit / 5) * unit);
  const ticks = [];
  for (let n = 0; n * step <= high; n += 1) ticks.push(n * step);
  return ticks;
}
