// Draws the lines of a report, a file of its own that holds this script, from the JSON in it.

import {Chart, swatch} from "./chart.js";
import {byId, isolated, make} from "./dom.js";

for (const {title, charts} of JSON.parse(byId("lines").textContent)) {
  const slots = new Map(charts.flatMap(({lines}) => lines.map(({name, slot}) => [name, slot])));
  const legend = [...slots].map(([name, slot]) => make("li", {}, swatch(slot), isolated(name)));
  const grid = make("div", {class: "charts"});
  byId("charts-section").append(make("h3", {}, title), make("ul", {class: "legend"}, ...legend), grid);
  for (const {title: name, lines, ...options} of charts) {
    const chart = new Chart(name);
    grid.append(chart.node);
    chart.show(lines, options);
  }
}
