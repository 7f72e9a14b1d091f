// Asks the server. An answer that has not changed is not sent again.

const MAX_KEPT = 100;
const kept = new Map();

export class Missing extends Error {}  // there is no such run
export class Lost extends Error {}  // the server does not answer, or refuses to

async function request(address, headers) {
  try {
    return await fetch(address, {headers, cache: "no-store", signal: AbortSignal.timeout(60000)});
  } catch (error) {
    throw new Lost(error.message);
  }
}

async function readJson(answer) {
  const values = await answer.json().catch(() => ({error: `status ${answer.status}, without JSON`}));
  if (answer.ok && !values.error) return values;
  throw answer.status === 404 ? new Missing(values.error) : new Lost(values.error);
}

// {values, isNew}: the JSON at api/<path>, and whether it is another than last time.
export async function ask(path, query = {}) {
  const address = `api/${path}?${new URLSearchParams(query)}`;
  const before = kept.get(address);
  const headers = before ? {"If-None-Match": before.tag} : {};
  const answer = await request(address, headers);
  if (answer.status === 304 && before) return {values: before.values, isNew: false};
  const values = await readJson(answer);
  kept.delete(address);
  kept.set(address, {tag: answer.headers.get("ETag") || "", values});
  if (kept.size > MAX_KEPT) kept.delete(kept.keys().next().value);
  return {values, isNew: true};
}
