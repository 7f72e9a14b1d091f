// States of runs: a mark, a word and a colour for each.

import {make} from "./dom.js";

export const STATES = {
  training: "●", starting: "○", waiting: "‖", restarting: "↻", failed: "✕", hung: "!", stopped: "■", pruned: "✂",
  finished: "✓",
};

export function badge(state) {
  const mark = make("span", {class: "mark", "aria-hidden": "true"}, STATES[state] ?? "");
  return make("span", {class: `state ${state in STATES ? state : ""}`}, mark, state);
}

// Whether it makes no further step by itself.
export const isOver = (state) => ["finished", "stopped", "pruned", "failed", "hung"].includes(state);
