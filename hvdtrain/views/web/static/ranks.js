// The ranks of one run: a row for each.

import {changed} from "./address.js";
import {arrange, byId, isolated, make, makeSvg, setAttribute, setText} from "./dom.js";
import {bytes, capitalized, duration, percent, whole} from "./format.js";

const MOST = 64;  // of more ranks, the first ones are shown, and all with a remark
const PARTS = ["compute", "communicate", "data"];
const HEADINGS = [["Rank", 1], ["Host", 0], ["Remark", 0], ["Step", 1], ["Images/s", 1], ["Share of the time, %", 0],
  ["Memory", 1], ["Heartbeat", 1], ["Files", 0]];

export class RankTable {
  constructor() {
    Object.assign(this, {rows: new Map(), all: false, found: null});
    this.body = byId("ranks").tBodies[0];
    const heads = HEADINGS.map(([text, isNumber]) =>
      make("th", {role: "columnheader", scope: "col", class: isNumber ? "number" : "text"}, text));
    this.speedHead = heads[HEADINGS.findIndex(([text]) => text === "Images/s")];
    byId("ranks").tHead.append(make("tr", {role: "row"}, ...heads));
    byId("all-ranks").addEventListener("click", () => {
      this.all = true;
      this.show(...this.found);
    });
  }

  reset() {
    this.rows.clear();
    this.all = false;
  }

  // ranks: as the server has them; logs, stacks: ranks that have such a file; culprit: the rank that others wait for;
  // isOver: whether the run has ended, so that heartbeats are not expected.
  // unit: what a row is.
  show(ranks, logs, stacks, culprit, isOver, unit) {
    this.found = [ranks, logs, stacks, culprit, isOver, unit];
    this.speed = `${capitalized(unit)}/s`;
    setText(this.speedHead, this.speed);
    this.isOver = isOver;
    const known = new Set(ranks.map((rank) => rank.rank));
    const others = [...new Set([...logs, ...stacks])].filter((rank) => !known.has(rank)).sort((a, b) => a - b);
    const all = [...ranks, ...others.map((rank) => ({rank, remark: ""}))];
    const shown = this.all ? all : all.filter((rank, at) => at < MOST || rank.remark || rank.rank === culprit);
    byId("ranks-section").hidden = !all.length;
    const isLive = ranks.length > 0;
    byId("ranks").classList.toggle("files-only", !isLive);
    byId("parts").hidden = !isLive;
    const files = {log: new Set(logs), stacks: new Set(stacks)};
    arrange(this.body, shown.map((rank) => this.row(rank, files, culprit)));
    byId("all-ranks").hidden = shown.length === all.length;
    setText(byId("all-ranks"), `Show all ${whole(all.length)} ranks`);
  }

  row(rank, files, culprit) {
    if (!this.rows.has(rank.rank)) this.rows.set(rank.rank, makeRow(rank.rank));
    const {node, cells, bar, numbers, links} = this.rows.get(rank.rank);
    const isLive = rank.step !== undefined, isGone = isLive && !rank.is_member && !this.isOver;
    const isSilent = isLive && rank.is_silent && !isGone && !this.isOver;
    node.classList.toggle("marked", !isGone && (Boolean(rank.remark) || rank.rank === culprit));
    node.classList.toggle("gone", isGone);
    if (cells.host.textContent !== (rank.host ?? "")) cells.host.replaceChildren(isolated(rank.host ?? ""));
    const place = isLive && rank.doing && rank.doing !== "step" ? `at ${rank.doing}` : "";
    setText(cells.remark, [rank.remark, place].filter(Boolean).join("; "));
    setText(cells.step, isLive ? whole(rank.step) : "");
    setText(cells.speed, whole(rank.images_per_s));
    setAttribute(cells.speed, "data-heading", this.speed);
    setText(cells.memory, bytes(rank.memory));
    setText(cells.beat, !isLive || this.isOver ? "" : rank.is_silent ? `${duration(rank.age_s)} ago` : "live");
    setAttribute(cells.beat, "class", `number beat ${isSilent ? "silent" : ""}`);
    drawBar(bar, numbers, PARTS.map((part) => rank[part] ?? null));
    for (const [kind, link] of Object.entries(links)) {
      link.hidden = !files[kind].has(rank.rank);
      setAttribute(link, "href", changed({log: null, stacks: null, [kind]: String(rank.rank)}));
    }
    return node;
  }
}

function makeRow(rank) {
  const cell = (name, heading) => make("td", {role: "cell", class: name, "data-heading": heading});
  const cells = {
    host: cell("text host", "Host"), remark: cell("text remark", ""), step: cell("number step", "Step"),
    speed: cell("number speed", "Images/s"), shares: cell("text shares", ""), memory: cell("number memory", "Memory"),
    beat: cell("number beat", "Heartbeat"), files: cell("text files", ""),
  };
  const bar = PARTS.map((part) => makeSvg("rect", {class: part, y: 0, height: 10}));
  const numbers = make("span", {class: "numbers"});
  cells.shares.append(makeSvg("svg", {class: "share", viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true"}, ...bar), numbers);
  const links = Object.fromEntries(["log", "stacks"].map((kind) =>
    [kind, make("a", {href: "#", "aria-label": `${kind} of rank ${rank}`}, kind)]));
  cells.files.append(links.log, " ", links.stacks);
  const name = make("th", {role: "rowheader", scope: "row", class: "number rank", "data-heading": "Rank"}, String(rank));
  return {node: make("tr", {role: "row"}, name, ...Object.values(cells)), cells, bar, numbers, links};
}

function drawBar(bar, numbers, shares) {
  let start = 0;
  shares.forEach((share, at) => {
    const width = (share ?? 0) * 100;
    setAttribute(bar[at], "x", start.toFixed(2));
    setAttribute(bar[at], "width", width.toFixed(2));
    start += width;
  });
  const isKnown = shares.some((share) => share !== null);
  setText(numbers, isKnown ? shares.map(percent).join(" / ") : "");
  bar[0].ownerSVGElement.classList.toggle("empty", !isKnown);
}
