// Decides what is shown, and asks the server for what changed, about once a second.

import {parameters, removeToken, replace} from "./address.js";
import {MAX_LINES} from "./chart.js";
import {Curves} from "./curves.js";
import {byId, keepPlace, setText} from "./dom.js";
import {moment, whole} from "./format.js";
import {RunPage} from "./run.js";
import {RunTable} from "./runs.js";
import {ask, Lost, Missing} from "./server.js";

const POLL_MS = 1000, LIVE_MS = 500, RETRY_MS = 3000;
const FIRST_CHOICE = 5;  // the newest runs, until the user chooses

removeToken();
const runs = new Map();  // by name, as the server has them
const slots = new Map();  // which line style a chosen run has
const stale = new Set();  // chosen runs whose curves may have changed
let options = [];  // names of those in which runs differ
const table = new RunTable(choose);
const curves = new Curves(byId("overview-curves"), byId("overview-controls"), (name) => choose(name, false));
const page = new RunPage();
let heldAt = 0;  // how far the overview was scrolled
let timer = 0, isBusy = false;
let missing = null;  // the run that is asked for, but is not there

function chosenNames() {
  const named = parameters().getAll("compare");
  if (named.length) return named.map(fullName).filter((name) => runs.has(name)).slice(0, MAX_LINES);
  if (parameters().has("none")) return [];
  const newest = [...runs.values()].sort((a, b) => (a.started < b.started ? 1 : a.started > b.started ? -1 : 0));
  return newest.slice(0, FIRST_CHOICE).map((run) => run.name);
}

// A run may be called by the name of its folder alone where no other run has that name.
function fullName(name) {
  const found = runs.has(name) ? [name] : [...runs.keys()].filter((one) => one.endsWith(`/${name}`));
  return found.length === 1 ? found[0] : name;
}

function choose(name, isChosen) {
  const before = chosenNames().filter((one) => one !== name);
  const wanted = isChosen ? [...before, name].slice(-MAX_LINES) : before;
  replace({compare: wanted, none: wanted.length ? null : "1"});
  showOverview();
  poll();
}

function giveSlots(names) {
  for (const name of [...slots.keys()]) if (!names.includes(name)) slots.delete(name);
  for (const name of names) {
    if (slots.has(name)) continue;
    const taken = new Set(slots.values());
    slots.set(name, [...Array(MAX_LINES).keys()].find((slot) => !taken.has(slot)));
  }
}

function showOverview() {
  const names = chosenNames();
  giveSlots(names);
  table.show(runs, slots, options);
  byId("curves-section").hidden = !runs.size;
  curves.choose(names.map((name) => ({name, slot: slots.get(name), unit: runs.get(name).unit})));
}

async function readRuns() {
  const {values, isNew} = await ask("runs");
  if (!isNew) return values;
  ({options} = values);
  const names = new Set(values.runs.map((run) => run.name));
  for (const name of [...runs.keys()]) if (!names.has(name)) runs.delete(name);
  for (const run of values.runs) {
    if (JSON.stringify(run) === JSON.stringify(runs.get(run.name))) continue;
    runs.set(run.name, run);
    stale.add(run.name);
  }
  return values;
}

async function updateOverview() {
  const {folders, left_out: leftOut} = await readRuns();
  document.title = "Runs · hvdtrain";
  const without = leftOut.length ? `; ${leftOut.length} not shown, as a link in them leads out of it` : "";
  setText(byId("where"), `${folders.join(", ")}: ${whole(runs.size)} run${runs.size === 1 ? "" : "s"}${without}`);
  keepPlace(showOverview);
  const read = new Set(stale);
  stale.clear();
  await curves.update((name) => read.has(name));
}

async function update() {
  const name = parameters().get("run");
  if (name && name === missing) {  // asking for it again would be an error in the browser's console each time
    await readRuns();
    if (!runs.has(fullName(name))) return;
  }
  missing = null;
  switchTo(name ? "one" : "overview");
  try {
    if (name) await page.update(name);
    else await updateOverview();
    byId("missing").hidden = true;
  } catch (error) {
    if (!(error instanceof Missing)) throw error;
    missing = name;
    switchTo("missing");
    setText(byId("missing"), `There is no run ${name} here: ${error.message}.`);
  }
}

function switchTo(id) {
  if (!byId("overview").hidden && id !== "overview") heldAt = window.scrollY;
  const isReturn = byId("overview").hidden && id === "overview";
  for (const one of ["overview", "one", "missing"]) byId(one).hidden = one !== id;
  if (id === "one") byId("where").textContent = "";
  if (isReturn && heldAt) requestAnimationFrame(() => window.scrollTo(0, heldAt));
}

async function poll() {
  if (isBusy) return;
  isBusy = true;
  clearTimeout(timer);
  const began = parameters().get("run");
  let wait = POLL_MS;
  try {
    await update();
    say("live", "");
    if (page.isLive && began) wait = LIVE_MS;
  } catch (error) {
    if (!(error instanceof Lost)) console.error(error);
    say(`no answer since ${moment(answered / 1000).slice(11)}`, "lost", error.message);
    wait = RETRY_MS;
  }
  isBusy = false;
  if (parameters().get("run") !== began) wait = 0;
  if (!document.hidden) timer = setTimeout(poll, wait);
}

let answered = Date.now();

function say(text, kind, reason = "") {
  const node = byId("connection");
  if (!kind) answered = Date.now();
  setText(node, text);
  node.title = reason;
  node.className = `connection ${kind}`;
}

addEventListener("hashchange", poll);
document.addEventListener("visibilitychange", () => document.hidden || poll());
poll();
