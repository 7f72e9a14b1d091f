// Elements that are made once and then only changed where something changed, so that focus, selection and scroll
// position stay. Strings become text, never HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

// make("td", {class: "text", role: "cell"}, "text", node, ...)
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// Gives `parent` these children in this order; those that are at their place already are not touched.
export function arrange(parent, nodes) {
  const focused = document.activeElement;
  const wanted = new Set(nodes);
  for (const child of [...parent.childNodes]) if (!wanted.has(child)) child.remove();
  let next = parent.firstChild;
  for (const node of nodes) {
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  if (focused && focused !== document.activeElement && parent.contains(focused)) focused.focus({preventScroll: true});
}

// Changes the page, and scrolls by as much as that moved what is at the top of the window. (Browsers' own scroll
// anchoring does not follow rows of a table.)
export function keepPlace(change) {
  const top = window.scrollY > 0 ? document.elementFromPoint(window.innerWidth / 2, 80) : null;
  const held = top?.closest("tbody tr, figure, li, section");
  const before = held?.getBoundingClientRect().top;
  change();
  if (held?.isConnected && held.checkVisibility()) window.scrollBy(0, held.getBoundingClientRect().top - before);
}

// Lets a table that is wider than its place scroll in it. While it is not, it does not: its headings stick to the window.
export function scrollIfWide(table) {
  const box = table.parentElement;
  const observer = new ResizeObserver(() => box.classList.toggle("scrolls", table.offsetWidth > box.clientWidth));
  for (const node of [box, table]) observer.observe(node);
}

// Whether the user has selected text in it, which new text would deselect.
export function hasSelection(node) {
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.containsNode(node, true));
}

// A name from outside: its direction of writing does not reach its surroundings.
export const isolated = (text) => make("bdi", {}, text);
