// The table of runs: sorted, filtered, and changed in place.

import {addressOfRun, parameters, replace} from "./address.js";
import {swatch} from "./chart.js";
import {arrange, byId, isolated, make, scrollIfWide, setAttribute, setText} from "./dom.js";
import {capitalized, duration, fixed, rankCount, short, steps, whole} from "./format.js";
import {badge, STATES} from "./states.js";

const ROWS = 200;
const MAX_METRICS = 6;  // those that most runs have
// [key, heading, text of the cell, whether it is a number]
const OF_TRAINING = [
  ["name", "Name", (run) => run.name, false],
  ["state", "State", (run) => run.state, false],
  ["framework", "Framework", (run) => run.framework, false],
  ["strategy", "Strategy", (run) => run.strategy, false],
  ["ranks", "Ranks", rankCount, true],
];
const OF_PROGRESS = [
  ["step", "Step", (run) => steps(run.step, run.last_step), true],
  ["loss", "Train loss", (run) => short(run.loss), true],
  ["test_loss", "Test loss", (run) => short(run.test_loss), true],
];
const LAST_COLUMNS = [
  ["left_s", "Left", (run) => duration(run.left_s), true],
  ["started", "Started", (run) => run.started.slice(0, 16), false],
];
const SEARCHED = ["name", "state", "reason", "framework", "strategy", "model", "data", "started"];
const DEFAULT_SORT = "-started";

export class RunTable {
  // onChoose: called with a name and whether its curves shall be shown.
  constructor(onChoose) {
    Object.assign(this, {onChoose, rows: new Map(), most: ROWS, runs: new Map(), slots: new Map(), chips: new Map()});
    this.body = byId("runs").tBodies[0];
    scrollIfWide(byId("runs"));
    this.columns = [];
    this.makeHead(columnsOf([], []));
    byId("filter").value = parameters().get("filter") ?? "";
    byId("filter").addEventListener("input", (event) => this.set({filter: event.target.value}));
    byId("sort").addEventListener("change", (event) => this.set({sort: event.target.value}));
    byId("more").addEventListener("click", () => {
      this.most += ROWS;
      this.draw();
    });
  }

  set(changes) {
    replace(changes);
    this.draw();
  }

  // The head for these columns, unless it has them already; rows are made anew then.
  makeHead(columns) {
    const named = (list) => list.map(([key, heading]) => `${key} ${heading}`).join("\n");
    if (named(columns) === named(this.columns)) return;
    this.columns = columns;
    this.rows.clear();
    const head = make("tr", {role: "row"}, make("th", {role: "columnheader", scope: "col", class: "choose"}, "Curves"));
    this.headings = columns.map(([key, heading, , isNumber]) => {
      const button = make("button", {type: "button"}, heading);
      button.addEventListener("click", () => this.set({sort: this.sortedBy() === `-${key}` ? key : `-${key}`}));
      const node = make("th", {role: "columnheader", scope: "col", class: isNumber ? "number" : "text"}, button);
      head.append(node);
      return node;
    });
    byId("runs").tHead.replaceChildren(head);
    const choices = columns.flatMap(([key, heading]) => [[`-${key}`, `${heading} ↓`], [key, `${heading} ↑`]]);
    byId("sort").replaceChildren(...choices.map(([value, text]) => make("option", {value}, text)));
  }

  sortedBy() {
    const wanted = parameters().get("sort") ?? DEFAULT_SORT;
    return this.columns.some(([key]) => key === wanted.replace(/^-/, "")) ? wanted : DEFAULT_SORT;
  }

  // runs: by name; slots: of the chosen runs by name; options: names of those that have a column.
  show(runs, slots, options) {
    Object.assign(this, {runs, slots});
    this.makeHead(columnsOf([...runs.values()], options));
    this.draw();
  }

  draw() {
    const chosen = parameters(), sort = this.sortedBy(), state = chosen.get("state") ?? "";
    const words = (chosen.get("filter") ?? "").toLowerCase().split(/\s+/).filter(Boolean);
    if (document.activeElement !== byId("filter")) byId("filter").value = chosen.get("filter") ?? "";
    byId("sort").value = sort;
    this.columns.forEach(([key], at) => {
      const direction = sort === key ? "ascending" : sort === `-${key}` ? "descending" : "none";
      setAttribute(this.headings[at], "aria-sort", direction);
    });
    const matching = [...this.runs.values()].filter((run) => matches(run, words));
    this.drawStates(matching, state);
    const found = matching.filter((run) => !state || run.state === state).sort(order(sort));
    const shown = found.slice(0, this.most);
    arrange(this.body, shown.flatMap((run) => this.row(run)));
    for (const name of [...this.rows.keys()]) if (!this.runs.has(name)) this.rows.delete(name);
    byId("more").hidden = found.length <= shown.length;
    setText(byId("more"), `Show ${whole(Math.min(ROWS, found.length - shown.length))} more of ${whole(found.length)}`);
    setText(byId("runs-note"), found.length ? "" : this.runs.size ? "No run matches." : "No run there yet.");
  }

  drawStates(runs, chosen) {
    const counts = new Map(Object.keys(STATES).map((state) => [state, 0]));
    for (const run of runs) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
    const shown = [...counts].filter(([state, count]) => count || state === chosen);
    arrange(byId("states"), shown.map(([state, count]) => this.chip(state, count, state === chosen)));
  }

  chip(state, count, isChosen) {
    if (!this.chips.has(state)) {
      const node = make("button", {type: "button"}, make("span", {}), badge(state));
      node.addEventListener("click", () => this.set({state: parameters().get("state") === state ? null : state}));
      this.chips.set(state, node);
    }
    const node = this.chips.get(state);
    setText(node.firstChild, whole(count));
    setAttribute(node, "aria-pressed", String(isChosen));
    return node;
  }

  row(run) {
    if (!this.rows.has(run.name)) this.rows.set(run.name, this.makeRow(run));
    const row = this.rows.get(run.name);
    this.fillRow(row, run);
    return run.reason ? [row.node, row.reason] : [row.node];
  }

  makeRow(run) {
    const box = make("input", {type: "checkbox", "aria-label": `Curves of ${run.name}`});
    box.addEventListener("change", () => this.onChoose(run.name, box.checked));
    const line = make("span", {class: "slot"});
    const choose = make("td", {role: "cell", class: "choose"}, make("label", {}, box, line));
    const link = make("a", {href: addressOfRun(run.name)}, isolated(run.name));
    const cells = this.columns.slice(1).map(([key, heading, , isNumber]) =>
      make("td", {role: "cell", class: `${isNumber ? "number" : "text"} ${key}`, "data-heading": heading}));
    const name = make("th", {role: "rowheader", scope: "row", class: "text name"}, link);
    const node = make("tr", {role: "row"}, choose, name, ...cells);
    const why = make("td", {role: "cell", class: "reason", colspan: this.columns.length});
    const reason = make("tr", {role: "row", class: "reasons"}, make("td", {role: "cell"}), why);
    return {node, reason, box, line, cells, shown: null, slot: null};
  }

  fillRow(row, run) {
    const slot = this.slots.get(run.name) ?? null;
    if (row.slot !== slot || row.box.checked !== (slot !== null)) {
      row.slot = slot;
      row.box.checked = slot !== null;
      row.line.replaceChildren(...(slot === null ? [] : [swatch(slot)]));
    }
    if (row.shown === run) return;  // the same object: nothing of it changed
    row.cells.forEach((cell, at) => {
      if (at > 0) setText(cell, this.columns[at + 1][2](run));
      else if (row.shown?.state !== run.state) cell.replaceChildren(badge(run.state));
    });
    row.node.classList.toggle("explained", Boolean(run.reason));
    setText(row.reason.lastChild, run.reason);
    row.shown = run;
  }
}

// The columns of the table, with one for each metric, and for each option in which runs differ.
function columnsOf(runs, options) {
  const counts = new Map(), isRows = runs.some((run) => run.unit === "rows");
  for (const run of runs) for (const name of Object.keys(run.metrics)) counts.set(name, (counts.get(name) ?? 0) + 1);
  const names = [...counts].sort((one, other) => other[1] - one[1]).slice(0, MAX_METRICS).map(([name]) => name);
  const metrics = names.map((name) => [name, capitalized(name), (run) => fixed(run.metrics[name], 4), true]);
  const speed = ["images_per_s", isRows ? "Rows/s" : "Images/s", (run) => whole(run.images_per_s), true];
  const ofOptions = options.map((name) => [name, name, (run) => String(run.options[name] ?? ""), true]);
  return [...OF_TRAINING, ...ofOptions, ...OF_PROGRESS, ...metrics, speed, ...LAST_COLUMNS];
}

const valueOf = (run, key) => run.options[key] ?? (key in run ? run[key] : run.metrics[key]);

function matches(run, words) {
  if (!words.length) return true;
  const text = SEARCHED.map((key) => run[key]).join(" ").toLowerCase();
  const options = Object.entries(run.options).map(([name, value]) => `${name}=${value}`.toLowerCase());
  return words.every((word) => text.includes(word) || options.includes(word));
}

// Runs without the value come last in both directions; equal ones by name.
function order(sort) {
  const key = sort.replace(/^-/, ""), sign = sort.startsWith("-") ? -1 : 1;
  const isKnown = (value) => value !== null && value !== undefined && value !== "";
  const compare = (one, other) => (typeof one !== typeof other ? compare(typeof one, typeof other)
    : typeof one === "number" ? one - other : one < other ? -1 : one > other ? 1 : 0);
  return (one, other) => {
    const [a, b] = [valueOf(one, key), valueOf(other, key)];
    if (isKnown(a) !== isKnown(b)) return isKnown(a) ? -1 : 1;
    return (isKnown(a) && sign * compare(a, b)) || compare(one.name, other.name);
  };
}
