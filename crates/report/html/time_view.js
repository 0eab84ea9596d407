// The stretch of time that is in sight, shared by everything drawn over time. Picoseconds.

class TimeView {
  constructor(span) {
    this.span = span;
    this.from = 0;
    this.to = span;
    this.listeners = [];
  }

  onChange(listener) {
    this.listeners.push(listener);
  }

  // Shows [from, to], kept inside the whole and no narrower than a millionth of it.
  show(from, to) {
    const width = Math.min(this.span, Math.max(to - from, this.span / 1e6));
    const start = Math.min(Math.max(from, 0), this.span - width);
    if (start === this.from && start + width === this.to) return;
    this.from = start;
    this.to = start + width;
    for (const listener of this.listeners) listener();
  }

  showAll() {
    this.show(0, this.span);
  }

  // Shrinks the view by `factor` around the moment `at`.
  zoom(factor, at = (this.from + this.to) / 2) {
    this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
  }

  // Moves the view by a share of its width.
  pan(share) {
    const distance = (this.to - this.from) * share;
    this.show(this.from + distance, this.to + distance);
  }
}

const TIME_UNITS = [
  [1e12, "s"],
  [1e9, "ms"],
  [1e6, "µs"],
  [1e3, "ns"],
  [1, "ps"],
];

// A time in the unit that suits `scale`, with the digits that tell steps of `step` apart.
function formatTime(picos, scale = Math.abs(picos), step = scale / 1000) {
  const [size, name] = TIME_UNITS.find(([size]) => scale >= size) ?? TIME_UNITS.at(-1);
  const decimals = step > 0 ? Math.min(6, Math.max(0, Math.ceil(-Math.log10(step / size) - 1e-9))) : 0;
  return `${(picos / size).toFixed(decimals)} ${name}`;
}

function formatBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let power = 0;
  while (Math.abs(bytes) >= 1024 && power + 1 < units.length) {
    bytes /= 1024;
    power += 1;
  }
  return `${power === 0 ? bytes : Number(bytes.toPrecision(3))} ${units[power]}`;
}

// The smallest of 1, 2, 5 times a power of ten that is at least `least`.
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * (1 - 1e-9));
}

function rankName(track) {
  return track.multiplicity === 1 ? `rank ${track.rank}` : `rank ${track.rank} ×${track.multiplicity}`;
}

// A colour of the style sheet, so that canvases follow light and dark.
function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
