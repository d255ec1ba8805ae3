// What the address says after its #: the step, and in the lab what is played, so that a page can be reloaded, kept and
// shared. Rule: only this module writes it, and each part of the page only its own values; null takes one out.

export function inAddress(address = window.location.href) {
  return new URLSearchParams(new URL(address).hash.slice(1));
}

export function addressWith(values) {
  const all = inAddress();
  for (const [name, value] of Object.entries(values)) {
    if (value === null) all.delete(name);
    else all.set(name, value);
  }
  return `#${all}`.replaceAll("%2C", ",");
}

// With `isNew`, the browser's back button leads to the address of before.
export function setAddress(values, isNew = false) {
  const address = addressWith(values);
  if (address === (window.location.hash || "#")) return;
  if (isNew) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}
