// The curves of some runs over each other: one chart for each figure, with one legend and one row of controls.

import {changed, parameters, replace} from "./address.js";
import {Chart, swatch} from "./chart.js";
import {arrange, isolated, keepPlace, make, setText} from "./dom.js";
import {ask, Missing} from "./server.js";

const FIGURES = ["train loss", "validation loss", "test loss", "images/s", "learning rate"];  // metrics come after the losses
const LOSSES = ["train loss", "validation loss", "test loss"];
const MARKED = ["lost", "joined", "audit"];  // changes of ranks that are marked in the curves of one run
const MAX_TOGETHER = 8;  // figures that are shown together
const LEAST_SPANS = {accuracy: 0.1};  // of the vertical axis, so that small changes look small
const MAX_SMOOTH = 0.99;
const DRAW_EVERY_MS = 300;  // while curves arrive
const NARROW = matchMedia("(max-width: 40rem)");  // where several runs are first compared by one figure

// The exponential moving average of values, in which a value's weight falls by the factor `weight` with each later one.
// It is divided by the sum of the weights, so that it does not begin near 0 (Kingma and Ba, Adam, 2015, section 3).
export function smoothed(values, weight) {
  let sum = 0, weights = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

export class Curves {
  // box, controls: elements that it fills. onRemove: called with a name that the user removes; null for one run.
  constructor(box, controls, onRemove = null) {
    this.charts = new Map();
    this.legend = make("ul", {class: "legend", "aria-label": "Curves"});
    this.grid = make("div", {class: "charts"});
    this.hint = make("p", {class: "quiet"});
    box.append(this.hint, this.legend, this.grid);
    Object.assign(this, {onRemove, runs: [], read: new Map(), entries: new Map(), timer: 0, dragged: null});
    this.makeControls(controls);
  }

  makeControls(box) {
    const options = (names) => names.map(([value, text]) => make("option", {value}, text));
    this.figure = make("select", {"aria-label": "Figure"});
    this.by = make("select", {"aria-label": "Horizontal axis"}, ...options([["", "over epochs"], ["step", "over steps"]]));
    this.log = make("input", {type: "checkbox"});
    this.smooth = make("input", {type: "range", min: 0, max: MAX_SMOOTH, step: 0.01, "aria-label": "Smoothing"});
    this.weight = make("output", {});
    box.append(this.figure, this.by, make("label", {}, this.log, " logarithmic loss"),
      make("label", {class: "smooth"}, "smoothing ", this.smooth, this.weight));
    this.figure.addEventListener("change", () => this.set({figure: this.figure.value}));
    this.by.addEventListener("change", () => this.set({by: this.by.value}));
    this.log.addEventListener("change", () => this.set({scale: this.log.checked ? "log" : null}));
    // The address changes at the end only: browsers limit how often it may.
    this.smooth.addEventListener("input", () => {
      this.dragged = this.smooth.value;
      this.draw();
    });
    this.smooth.addEventListener("change", () => {
      this.dragged = null;
      this.set({smooth: Number(this.smooth.value) ? this.smooth.value : null});
    });
  }

  set(changes) {
    replace(changes);
    this.draw();
  }

  // Shows these runs: {name, slot, unit}.
  choose(runs) {
    const isSame = runs.map((run) => run.name).join("\n") === this.runs.map((run) => run.name).join("\n");
    this.runs = runs;
    for (const name of [...this.read.keys()]) if (!runs.some((run) => run.name === name)) this.read.delete(name);
    if (!isSame) this.draw();
  }

  // Reads the curves of the runs of which `changes(name)` says that they may have changed, and of new ones.
  async update(changes, onRead = () => {}) {
    const wanted = this.runs.filter((run) => !this.read.has(run.name) || changes(run.name));
    await Promise.all(wanted.map(async ({name}) => {
      try {
        const {values, isNew} = await ask("curves", {run: name});
        const before = this.read.get(name);
        this.read.set(name, values);
        if (isNew || before !== values) this.drawSoon();
        onRead(name, values);
      } catch (error) {
        if (!(error instanceof Missing)) throw error;
        this.read.delete(name);
      }
    }));
    if (this.timer) this.draw();
  }

  drawSoon() {
    this.timer ||= setTimeout(() => this.draw(), DRAW_EVERY_MS);
  }

  // The figures that any of the runs has values of: losses, metrics, speed, learning rate.
  figures() {
    const found = new Set(this.runs.flatMap((run) => Object.keys(this.read.get(run.name)?.curves ?? {})));
    const metrics = [...found].filter((name) => !FIGURES.includes(name));
    return [...LOSSES, ...metrics, ...FIGURES.slice(LOSSES.length)].filter((name) => found.has(name));
  }

  // The options of the list of figures, and the charts of those that were not there before.
  offer(figures) {
    const offered = ["all", ...figures], shown = [...this.figure.options].map((node) => node.value);
    if (offered.join("\n") !== shown.join("\n")) {
      this.figure.replaceChildren(...offered.map((name) => make("option", {value: name}, name === "all" ? "all figures" : name)));
    }
    for (const name of figures) {
      if (!this.charts.has(name)) this.charts.set(name, new Chart(name));
    }
    arrange(this.grid, figures.map((name) => this.charts.get(name).node));
  }

  // What is below the curves stays where its reader sees it, however many charts there are now.
  draw() {
    clearTimeout(this.timer);
    this.timer = 0;
    keepPlace(() => this.drawAll());
  }

  drawAll() {
    const figures = this.figures();
    this.offer(figures);
    const chosen = parameters(), axis = chosen.get("by") === "step" ? "steps" : "epochs";
    const wanted = chosen.get("figure") ?? (this.onRemove && NARROW.matches ? figures[0] : "all");
    const one = figures.includes(wanted) ? wanted : "";
    this.figure.value = one || "all";
    this.by.value = axis === "steps" ? "step" : "";
    this.log.checked = chosen.get("scale") === "log";
    const weight = Math.min(Math.max(Number(this.dragged ?? chosen.get("smooth")) || 0, 0), MAX_SMOOTH);
    this.smooth.value = weight;
    setText(this.weight, weight.toFixed(2));
    const together = figures.filter((name) => name !== "learning rate").slice(0, MAX_TOGETHER);
    const shown = one ? [one] : together.length ? together : figures;
    this.grid.classList.toggle("single", Boolean(one));
    for (const [name, chart] of this.charts) {
      chart.node.hidden = !shown.includes(name);
      if (chart.node.hidden) continue;
      const lines = this.runs.map((run) => {
        const curve = this.read.get(run.name)?.curves[name];
        const values = curve ? curve.values : [];
        const shown = weight ? {y: smoothed(values, weight), raw: values} : {y: values};
        return {name: run.name, slot: run.slot, x: curve ? curve[axis] : [], ...shown};
      });
      const alone = this.runs.length === 1 ? this.read.get(this.runs[0].name) : null;
      const marks = (alone?.changes.last ?? []).filter(({kind}) => MARKED.includes(kind))
        .map((change) => ({...change, x: axis === "steps" ? change.step : change.epoch}));
      const isLogarithmic = this.log.checked && LOSSES.includes(name);
      chart.rename(name === "images/s" && this.runs.some((run) => run.unit === "rows") ? "rows/s" : name);
      const unit = axis === "steps" ? "step" : "epoch";
      chart.show(lines, {unit, isLogarithmic, marks, least: LEAST_SPANS[name] ?? 0});
    }
    this.hint.hidden = figures.length > 0;
    setText(this.hint, this.runs.length ? "No values yet." : "Choose runs in the table to see their curves over each other.");
    this.drawLegend();
  }

  drawLegend() {
    this.legend.hidden = !this.onRemove || !this.runs.length;
    if (this.legend.hidden) return;
    const made = this.runs.map((run) => {
      const key = `${run.slot} ${run.name}`;
      if (!this.entries.has(key)) this.entries.set(key, this.entry(run));
      return this.entries.get(key);
    });
    arrange(this.legend, made);
  }

  entry(run) {
    const remove = make("button", {type: "button", class: "remove", "aria-label": `Remove ${run.name}`}, "×");
    remove.addEventListener("click", () => this.onRemove(run.name));
    const link = make("a", {href: changed({run: run.name}, new URLSearchParams())}, isolated(run.name));
    const node = make("li", {}, swatch(run.slot), link, remove);
    const emphasize = (name) => this.charts.forEach((chart) => chart.emphasize(name));
    for (const type of ["pointerenter", "focusin"]) node.addEventListener(type, () => emphasize(run.name));
    for (const type of ["pointerleave", "focusout"]) node.addEventListener(type, () => emphasize(null));
    return node;
  }
}
