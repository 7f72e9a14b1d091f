// A chart of lines in SVG, drawn in the pixels that it has. A line: {name, slot, x, y}, with x ascending; and `raw`, the
// values of which y are the averages, if they are.

import {make, makeSvg, setAttribute, setText} from "./dom.js";
import {short} from "./format.js";

const COLOURS = 8, DASHES = ["", "7 3", "2 3"];
export const MAX_LINES = COLOURS * DASHES.length;
const LEFT = 46, RIGHT = 8, TOP = 6, BOTTOM = 20;
const MAX_VALUES = 12;

// Lines are told apart by colour and by dashes.
export function lineStyle(slot) {
  return {class: `line c${slot % COLOURS}`, "stroke-dasharray": DASHES[Math.floor(slot / COLOURS) % DASHES.length] || null};
}

export function swatch(slot) {
  const line = makeSvg("line", {x1: 0, y1: 5, x2: 22, y2: 5, ...lineStyle(slot)});
  return makeSvg("svg", {class: "swatch", width: 22, height: 10, viewBox: "0 0 22 10", "aria-hidden": "true"}, line);
}

export class Chart {
  constructor(title) {
    this.title = title;
    this.lines = [];
    this.marks = [];
    this.isLogarithmic = false;
    this.svg = makeSvg("svg", {role: "img", tabindex: 0, class: "chart"});
    this.tip = make("div", {class: "tip", hidden: true});
    this.caption = make("figcaption", {}, title);
    this.node = make("figure", {class: "chart-box"}, this.caption, make("div", {class: "plot"}, this.svg, this.tip));
    this.marker = null;
    this.svg.addEventListener("pointermove", (event) => this.point(event.clientX - this.svg.getBoundingClientRect().left));
    this.svg.addEventListener("pointerleave", () => this.unpoint());
    this.svg.addEventListener("blur", () => this.unpoint());
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  // lines: see above; unit: of x, as text; least: of the span of the vertical axis.
  // marks: {x, kind, text}, places that are marked.
  show(lines, {unit = "epoch", isLogarithmic = false, least = 0, marks = []} = {}) {
    Object.assign(this, {lines, unit, isLogarithmic, least, marks});
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth, height = this.svg.clientHeight;
    if (!width || !height) return;
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    const usable = this.isLogarithmic ? (value) => Number.isFinite(value) && value > 0 : Number.isFinite;
    const xs = extent(this.lines.map((line) => line.x), Number.isFinite);
    const ys = extent(this.lines.map((line) => line.raw ?? line.y), usable);
    const names = this.lines.map((line) => line.name).slice(0, 5).join(", ");
    setAttribute(this.svg, "aria-label", `${this.title} over ${this.unit}: ${names || "no values"}`);
    if (!xs || !ys) return this.svg.replaceChildren(makeSvg("text", {x: LEFT, y: height / 2, class: "tick"}, "no values yet"));
    const onX = scale(...xs, LEFT, width - RIGHT, false);
    const onY = scale(...(this.isLogarithmic ? ys : padded(ys, this.least)), height - BOTTOM, TOP, this.isLogarithmic);
    this.places = {onX, onY, width, height, usable};
    this.svg.replaceChildren(...this.axes(), ...this.marked(xs), ...this.curves());
    if (this.marker !== null) this.point(this.marker);
  }

  axes() {
    const {onX, onY, width, height} = this.places, made = [];
    for (const value of onY.ticks(Math.max(2, Math.floor(height / 28)))) {
      const y = onY(value);
      made.push(makeSvg("line", {x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: "grid"}));
      made.push(makeSvg("text", {x: LEFT - 5, y: y + 4, class: "tick", "text-anchor": "end"}, tick(value)));
    }
    const ticks = onX.ticks(Math.max(2, Math.floor(width / 80)));
    for (const value of ticks) {
      const x = onX(value), anchor = x > width - 24 ? "end" : "middle";
      if (x < 12 + 7 * this.unit.length) continue;  // the unit is there
      made.push(makeSvg("text", {x: Math.min(x, width), y: height - 5, class: "tick", "text-anchor": anchor}, tick(value)));
    }
    made.push(makeSvg("text", {x: 4, y: height - 5, class: "tick"}, this.unit));
    return made;
  }

  marked([low, high]) {
    const {onX, height} = this.places;
    return this.marks.filter(({x}) => Number.isFinite(x) && x >= low && x <= high).map(({x, kind, text}) => makeSvg("line",
      {class: `change ${kind}`, x1: onX(x), x2: onX(x), y1: TOP, y2: height - BOTTOM}, makeSvg("title", {}, text)));
  }

  curves() {
    const shown = this.lines.filter((line) => line.x.length);
    const raw = shown.filter((line) => line.raw).map((line) => this.path({...line, y: line.raw}, "raw"));
    return [...raw, ...shown.map((line) => this.path(line))];
  }

  path(line, kind = "") {
    const node = makeSvg("path", {...lineStyle(line.slot), d: this.outline(line)});
    if (kind) node.classList.add(kind);
    node.dataset.name = line.name;
    return node;
  }

  outline({x, y}) {
    const {onX, onY, usable} = this.places, parts = [];
    let isOpen = false, number = 0;
    for (let at = 0; at < x.length; at++) {
      if (!usable(y[at]) || !Number.isFinite(x[at])) {
        isOpen = false;
        continue;
      }
      number++;
      parts.push(isOpen ? "L" : "M", onX(x[at]).toFixed(1), " ", onY(y[at]).toFixed(1));
      isOpen = true;
    }
    if (number === 1) parts.push("h2");  // a single point is a short line
    return parts.join("");
  }

  // Shows the values of all lines at a place, in pixels from the left.
  point(at) {
    if (!this.places || !this.lines.some((line) => line.x.length)) return;
    const {onX, width, height} = this.places;
    this.marker = Math.min(Math.max(at, LEFT), width - RIGHT);
    const wanted = onX.back(this.marker);
    const found = this.lines.filter((line) => line.x.length).map((line) => [line, nearest(line.x, wanted)]);
    const values = found.map(([line, index]) => ({line, x: line.x[index], y: line.y[index], raw: line.raw?.[index]}))
      .sort((one, other) => other.y - one.y);
    const middle = values.reduce((best, one) => Math.abs(one.x - wanted) < Math.abs(best.x - wanted) ? one : best).x;
    let rule = this.svg.querySelector(".rule");
    if (!rule) this.svg.append(rule = makeSvg("line", {class: "rule", y1: TOP, y2: height - BOTTOM}));
    rule.setAttribute("x1", onX(middle));
    rule.setAttribute("x2", onX(middle));
    const rows = values.slice(0, MAX_VALUES).map(({line, y, raw}) => make("div", {}, swatch(line.slot), make("b", {}, short(y)),
      ...(raw === undefined ? [] : [make("span", {class: "quiet"}, short(raw))]), make("bdi", {}, line.name)));
    const rest = values.length > MAX_VALUES ? [make("div", {}, `and ${values.length - MAX_VALUES} more`)] : [];
    this.tip.replaceChildren(make("div", {class: "quiet"}, `${this.unit} ${short(middle)}`), ...rows, ...rest);
    this.tip.hidden = false;
    this.tip.classList.toggle("left", onX(middle) > width / 2);
  }

  unpoint() {
    this.marker = null;
    this.tip.hidden = true;
    this.svg.querySelector(".rule")?.remove();
  }

  key(event) {
    const moves = {ArrowLeft: -12, ArrowRight: 12, Home: -1e6, End: 1e6};
    if (event.key === "Escape") this.unpoint();
    if (!(event.key in moves) || !this.places) return;
    this.point((this.marker ?? this.places.width) + moves[event.key]);
    event.preventDefault();
  }

  emphasize(name) {
    for (const path of this.svg.querySelectorAll("path.line")) {
      path.classList.toggle("faint", name !== null && path.dataset.name !== name);
    }
  }

  rename(title) {
    this.title = title;
    setText(this.caption, title);
  }
}

function extent(lists, usable) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (!usable(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high && Number.isFinite(high - low) ? [low, high] : null;
}

function padded([low, high], least) {
  if (high - low < least && low >= 0 && high <= 1) {  // of an accuracy
    const bottom = Math.min(Math.max((low + high - least) / 2, 0), 1 - least);
    return [bottom - least * 0.04, bottom + least * 1.04];
  }
  const space = high > low ? (high - low) * 0.04 : Math.abs(high) * 0.1 || 1;
  return [low - space, high + space];
}

// A function from values to pixels, with `back` and `ticks`.
function scale(low, high, from, to, isLogarithmic) {
  const into = isLogarithmic ? Math.log10 : (value) => value;
  const first = into(low), size = into(high) - first || 1;
  const place = (value) => from + ((into(value) - first) / size) * (to - from);
  place.back = (pixel) => first + ((pixel - from) / (to - from)) * size;
  place.ticks = isLogarithmic ? () => decades(low, high) : (number) => rounded(low, high, number);
  return place;
}

function rounded(low, high, number) {
  const rough = (high - low) / number, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((factor) => factor * power >= rough) ?? 10), found = [];
  if (!(step > 0) || low + step === low) return [low];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9 && found.length < 50; value += step) {
    found.push(Math.abs(value) < step * 1e-9 ? 0 : value);
  }
  return found;
}

function decades(low, high) {
  const found = [], factors = high / low < 200 ? [1, 2, 5] : [1], first = Math.floor(Math.log10(low));
  const every = Math.ceil((Math.log10(high) - first) / 8) || 1;
  for (let power = first; 10 ** power <= high; power += every) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found.length > 1 ? found : [low, high];
}

function tick(value) {
  const size = Math.abs(value);
  if (size >= 1e4 && size < 1e6) return `${Number((value / 1e3).toPrecision(4))}k`;
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(0);
  return String(Number(value.toPrecision(4)));
}

function nearest(list, wanted) {
  let low = 0, high = list.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (list[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - list[low - 1] < list[low] - wanted ? low - 1 : low;
}
