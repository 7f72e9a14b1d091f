// Numbers as people read them; what is not known is empty.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export const whole = (value) => (isNumber(value) ? Math.round(value).toLocaleString("en") : "");

export function short(value) {
  if (!isNumber(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return size >= 1000 ? whole(value) : String(Number(value.toPrecision(4)));
}

// With so many decimals, where they say something.
export function fixed(value, digits) {
  const size = Math.abs(value);
  return isNumber(value) && (size === 0 || size >= 10 ** (1 - digits)) && size < 1e6 ? value.toFixed(digits) : short(value);
}

export const capitalized = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

export const percent = (value) => (isNumber(value) ? `${Math.round(value * 100)}` : "–");

export function bytes(value) {
  if (!isNumber(value)) return "";
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`;
}

export function duration(seconds) {
  if (!isNumber(seconds) || seconds < 0) return "";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
  if (minutes < 60) return `${minutes} min`;
  if (hours < 24) return `${hours} h ${minutes % 60} min`;
  return days > 9999 ? "" : `${days} d ${hours % 24} h`;
}

export const steps = (step, last) => (last ? `${whole(step)} / ${whole(last)}` : whole(step));

// The ranks that train now, if those are not as many as at the start, and of a run at its start.
export function rankCount({ranks, ranks_now: now}) {
  return isNumber(now) ? `${whole(now)} / ${whole(ranks)}` : whole(ranks || null);
}

// Date and time of a number of seconds since the epoch, by this machine's clock.
export function moment(seconds) {
  const date = new Date(seconds * 1000);
  if (!seconds || Number.isNaN(date.getTime())) return "";
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}
