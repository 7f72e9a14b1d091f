// The page of one run: its state, its ranks, its curves, its messages and its options.

import {parameters} from "./address.js";
import {Curves} from "./curves.js";
import {arrange, byId, hasSelection, isolated, keepPlace, make, setText} from "./dom.js";
import {capitalized, duration, fixed, moment, rankCount, short, steps, whole} from "./format.js";
import {Lines} from "./lines.js";
import {RankTable} from "./ranks.js";
import {ask} from "./server.js";
import {badge, isOver, STATES} from "./states.js";

export class RunPage {
  constructor() {
    this.curves = new Curves(byId("one-curves"), byId("one-controls"));
    Object.assign(this, {ranks: new RankTable(), lines: new Lines(), name: null, step: null});
    this.isDrawn = false;
  }

  // Whether the run that is shown may still change by itself.
  get isLive() {
    return this.isDrawn && !isOver(this.state);
  }

  async update(name) {
    if (name !== this.name) this.begin(name);
    const {values, isNew} = await ask("run", {run: name});
    if (name !== parameters().get("run")) return;  // the user has left
    if (isNew || !this.isDrawn) keepPlace(() => this.show(values));
    const mark = `${values.run.state} ${values.run.step} ${values.run.test_loss} ${JSON.stringify(values.run.metrics)}`;
    this.curves.choose([{name, slot: 0, unit: values.run.unit}]);
    await Promise.all([
      this.curves.update(() => mark !== this.mark || this.isLive, (_, read) => showChanges(read.changes)),
      this.lines.update(name),
      this.showOptions(values.run),
    ]);
    this.mark = mark;
  }

  begin(name) {
    Object.assign(this, {name, mark: null, isDrawn: false, optionsOf: null, state: ""});
    this.ranks.reset();
    byId("one-title").replaceChildren(isolated(name));
    for (const id of ["one-facts", "one-state", "options", "messages", "changes"]) byId(id).replaceChildren();
    for (const id of ["one-progress", "ranks-section", "messages-section", "changes-section"]) byId(id).hidden = true;
    window.scrollTo(0, 0);
  }

  show({run, ranks, messages, logs, stacks, end}) {
    this.isDrawn = true;
    this.state = run.state;
    document.title = `${STATES[run.state] ?? ""} ${run.state}: ${run.name} · hvdtrain`;
    showState(run);
    showProgress(run);
    showFacts(run, end);
    this.ranks.show(ranks, logs, stacks, run.rank, isOver(run.state), run.unit);
    showMessages(messages);
  }

  // Options do not change while a run goes on; the accuracies of classes are there at its end.
  async showOptions(run) {
    const key = `${run.name} ${run.id} ${run.started} ${run.framework} ${run.state}`;
    if (key === this.optionsOf) return;
    const {values} = await ask("options", {run: run.name});
    const parts = Object.entries(values).filter(([, pairs]) => pairs.length).map(([title, pairs]) =>
      make("details", title === "options" || title.endsWith("classes") ? {open: true} : {}, make("summary", {}, title), makePairs(pairs, "options")));
    byId("options").replaceChildren(...(parts.length ? parts : ["None are recorded yet."]));
    this.optionsOf = key;
  }
}

function showState(run) {
  const node = byId("one-state");
  if (node.dataset.state !== run.state || !node.firstChild) {
    node.dataset.state = run.state;
    node.replaceChildren(badge(run.state), make("span", {class: "reason"}));
  }
  setText(node.lastChild, run.reason);
}

function showProgress(run) {
  byId("one-progress").hidden = !run.last_step;
  if (!run.last_step) return;
  const [bar, text] = byId("one-progress").children;
  bar.value = Math.min(run.step / run.last_step, 1);
  const left = run.left_s === null ? "" : `, ${duration(run.left_s)} left`;
  const epoch = run.epoch === null ? "" : `, epoch ${fixed(run.epoch, 2)}`;
  setText(text, `step ${steps(run.step, run.last_step).replace("/", "of")}${epoch}${left}`);
}

function showFacts(run, end) {
  const place = end && end.rank !== null ? `, rank ${end.rank}${end.host ? ` on ${end.host}` : ""}` : "";
  const ended = end ? `${moment(end.time)}, ${end.status}, exit status ${end.exit_status}${place}` : "";
  const pairs = [
    ["Framework", run.framework], ["Strategy", run.strategy], ["Ranks", rankCount(run)], ["Model", run.model],
    ["Data", run.data], ["Train loss", short(run.loss)], ["Validation loss", short(run.validation_loss)], ["Test loss", short(run.test_loss)],
    ...Object.entries(run.metrics).map(([name, value]) => [capitalized(name), fixed(value, 4)]),
    [`${capitalized(run.unit)}/s`, whole(run.images_per_s)], ["Learning rate", short(run.lr)],
    ["Started", run.started], ["Ended", ended], ["Folder", run.folder], ["Best checkpoint", run.best_checkpoint],
    ["Id", run.id],
  ].filter(([, text]) => text);
  const facts = byId("one-facts");
  const before = new Map([...facts.children].map((node) => [node.dataset.name, node]));
  arrange(facts, pairs.map(([name, text]) => {
    const node = before.get(name) ?? makePair(name, "");
    setText(node.lastChild.firstChild, text);
    return node;
  }));
}

function makePair(name, text) {
  const node = make("div", {}, make("dt", {}, name), make("dd", {}, isolated(text)));
  node.dataset.name = name;
  return node;
}

const makePairs = (pairs, kind) => make("dl", {class: `facts ${kind}`}, ...pairs.map(([name, text]) => makePair(name, text)));

// The newest first. changes: {summary, last}, see the server.
function showChanges({summary, last}) {
  byId("changes-section").hidden = !summary && !last.length;
  setText(byId("changes-note"), summary);
  showList("changes", last, ({kind, time, text}) => make("li", {class: `change ${kind}`},
    make("span", {class: "quiet"}, time ? moment(time) : ""), make("span", {class: "text"}, isolated(text))));
}

function showMessages(messages) {
  byId("messages-section").hidden = !messages.length;
  showList("messages", messages, ({time, ranks, level, text}) => make("li", {class: level},
    make("span", {class: "quiet"}, time.slice(11)), make("span", {class: "quiet"}, `rank${/[-,]/.test(ranks) ? "s" : ""} ${ranks}`),
    make("span", {class: "level"}, level === "INFO" ? "" : level), make("span", {class: "text"}, isolated(text))));
}

const drawn = new Map();

// The newest first; what is the same, or what the user selects text in, stays.
function showList(id, items, makeItem) {
  const key = JSON.stringify(items), node = byId(id);
  if ((key === drawn.get(id) && node.firstChild) || hasSelection(node)) return;
  drawn.set(id, key);
  node.replaceChildren(...items.map(makeItem).reverse());
}
