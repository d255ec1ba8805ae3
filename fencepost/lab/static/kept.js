// What outlives a page: the look of all pages of this browser (localStorage), and the editor's text while its tab is open
// (sessionStorage).

import { useState } from "preact/hooks";

export function useKept(name, otherwise, storage = "localStorage") {
  const [value, setValue] = useState(() => {
    const found = kept(name, storage);
    return typeof found === typeof otherwise ? found : otherwise;
  });
  const keep = (next) => {
    setValue(next);
    store(storage)?.setItem(`fencepost.${name}`, JSON.stringify(next));
  };
  return [value, keep];
}

// Another program of this origin, or a person, may have written anything there.
function kept(name, storage) {
  try {
    return JSON.parse(store(storage)?.getItem(`fencepost.${name}`) ?? "null");
  } catch {
    return null;
  }
}

// A browser that forbids storage throws at the mere mention of it; then nothing is kept.
function store(storage) {
  try {
    return window[storage];
  } catch {
    return null;
  }
}
