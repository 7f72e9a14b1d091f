// What is shown is part of the page's address, so that it can be kept and sent on:
//   #run=NAME&log=3                     one run, with the log of rank 3; stacks=3: its stacks
//   #compare=A&compare=B&sort=-loss     all runs, with the curves of these

export const parameters = () => new URLSearchParams(location.hash.slice(1));

// The address of the same page with other values; null removes one.
export function changed(changes, from = parameters()) {
  for (const [name, value] of Object.entries(changes)) {
    from.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (one !== null && one !== "") from.append(name, one);
  }
  return `#${from}`;
}

// Changes the address without a new entry in the browser's history.
export function replace(changes) {
  history.replaceState(null, "", changed(changes));
}

export const addressOfRun = (name) => `#${new URLSearchParams({run: name})}`;

// The token has become a cookie: it leaves the address, and so the browser's history.
export function removeToken() {
  if (location.search) history.replaceState(null, "", location.pathname + location.hash);
}
