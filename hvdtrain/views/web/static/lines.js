// The log or the stacks of one rank, one click away from its row.

import {changed, parameters} from "./address.js";
import {byId, hasSelection, setAttribute, setText} from "./dom.js";
import {ask, Missing} from "./server.js";

const KINDS = {log: "Log", stacks: "Stacks"};

export class Lines {
  constructor() {
    this.open = "";
  }

  // Shows what the address asks for, of a run.
  async update(name) {
    const wanted = parameters(), kind = Object.keys(KINDS).find((one) => wanted.has(one));
    byId("lines-section").hidden = !kind;
    if (!kind) return this.close();
    const rank = wanted.get(kind), key = `${name} ${kind} ${rank}`;
    setText(byId("lines-title"), `${KINDS[kind]} of rank ${rank}`);
    setAttribute(byId("lines-close"), "href", changed({log: null, stacks: null}));
    const lines = await read(kind, name, rank);
    if (key !== this.open) {
      this.open = key;
      setText(byId("lines"), lines);
      byId("lines").scrollTop = byId("lines").scrollHeight;
      byId("lines-title").focus();
    } else if (!hasSelection(byId("lines"))) {
      append(byId("lines"), lines);
    }
  }

  close() {
    if (this.open) byId("ranks-title").scrollIntoView({block: "nearest"});
    this.open = "";
  }
}

async function read(kind, name, rank) {
  try {
    return (await ask(kind, {run: name, rank})).values.lines.join("\n") || "It is empty.";
  } catch (error) {
    if (error instanceof Missing) return `There is none: ${error.message}.`;
    throw error;
  }
}

// New lines at the end leave what is there as it is; who reads the end, sees them.
function append(node, text) {
  const before = node.textContent;
  if (text === before) return;
  const isAtEnd = node.scrollTop + node.clientHeight >= node.scrollHeight - 4;
  if (text.startsWith(before)) node.append(text.slice(before.length));
  else setText(node, text);
  if (isAtEnd) node.scrollTop = node.scrollHeight;
}
