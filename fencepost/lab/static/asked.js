// What is asked for: a scenario, a variant, and the changes to it. The page's history of changes is a list of these.
//
// Rule: a value is never changed, and one that was refused is not kept: the page shows what is asked for. `broken`, `without_fixes` and the others are null where the scenario decides.

import { useRef, useState } from "preact/hooks";

const CHANGES = { faults: [], broken: null, without_fixes: null, transaction_version: null, partition_verification: null };

// The scenario without any change.
export function plain({ scenario = null, text = null, variant = 1 }) {
  return { scenario, text, variant: variant ?? 1, ...CHANGES };
}

export function altered(asked, changes) {
  return { ...asked, ...changes };
}

// As the address has it (address.js): what is not as in plain(), as JSON where it is no text.
export function inWords(asked) {
  const words = (value) => (typeof value === "string" ? value : JSON.stringify(value));
  const usual = plain({});
  return Object.fromEntries(Object.entries(asked).map(([key, value]) => [key, words(value) === words(usual[key]) ? null : words(value)]));
}

// Whether an address says what is played.
export function isNamed(given) {
  return given.has("scenario") || given.has("text");
}

export function fromWords(given) {
  const value = (key, usual) => (!given.has(key) ? usual : ["scenario", "text"].includes(key) ? given.get(key) : parsed(key, given.get(key)));
  return Object.fromEntries(Object.entries(plain({})).map(([key, usual]) => [key, value(key, usual)]));
}

function parsed(key, words) {
  try {
    return JSON.parse(words);
  } catch {
    throw new Error(`${key} is ${words}, which is not JSON`);
  }
}

// Whether another run than this is asked for, and not only a change of it.
export function isOther(asked, before) {
  return ["scenario", "text", "variant"].some((key) => asked[key] !== before[key]);
}

// How many things were changed.
export function changed(asked) {
  const switched = ["broken", "without_fixes", "transaction_version", "partition_verification"];
  return asked.faults.length + switched.filter((key) => asked[key] !== null).length;
}

export function useAsked(opening) {
  const [asking, set] = useState({ values: [opening], at: 0 });
  const shown = useRef(asking); // the last that was played
  const { values, at } = asking;
  const to = (place) => () => set({ values, at: place });
  return {
    asked: values[at],
    accept: () => (shown.current = asking),
    refuse: () => set(shown.current),
    begin: (asked) => set({ values: [asked], at: 0 }),
    change: (asked) => set({ values: [...values.slice(0, at + 1), asked], at: at + 1 }),
    undo: at > 0 ? to(at - 1) : null,
    redo: at < values.length - 1 ? to(at + 1) : null,
    reset: changed(values[at]) ? () => set({ values: [...values.slice(0, at + 1), plain(values[at])], at: at + 1 }) : null,
  };
}
