// What can be completed at a place of a scenario's text: headers, keys, phrases, names. No window, no DOM.
//
// Rule: the vocabulary comes from the classes and grammars that read a scenario (vocabulary.py); the names come from
// the text itself. A suggestion says what replaces the characters from `from` to the caret.

const SHOWN_MAX = 40;
const BLANK = /\b[A-Z][A-Z-]*\b/; // a place for a name, in a phrase as people see it
const GRAMMARS = { "a protocol point": "point", "an action of a fault": "action", "a line of a script": "line" };
const POINT_KEYS = new Set(["when", "until", "reaches"]);

export function completions(vocabulary, text, caret) {
  const place = placeOf(text, caret);
  const found = place.isHeader ? headers(vocabulary, place) : place.key === null ? keys(vocabulary, place) : values(vocabulary, text, place);
  const typed = place.typed.toLowerCase();
  return found.filter(({ label }) => label.toLowerCase() !== typed && label.toLowerCase().startsWith(typed)).slice(0, SHOWN_MAX).map((each) => ({ ...each, from: caret - place.typed.length }));
}

// Where the caret is: the header of its table, its key (null before the "="), and what was typed of a word.
export function placeOf(text, caret) {
  const before = text.slice(0, caret);
  const lines = before.split("\n");
  const line = lines.at(-1);
  const header = lines.slice(0, -1).findLast((each) => /^\s*\[{1,2}[\w.]+\]/.test(each))?.trim() ?? "";
  if (/^\s*\[[^=]*$/.test(line) && !openKey(lines)) return { header, isHeader: true, key: null, typed: line.trimStart() };
  const key = /^\s*([\w"-]+)\s*=/.exec(line)?.[1] ?? openKey(lines);
  if (key === null) return { header, isHeader: false, key, typed: line.trimStart() };
  const opened = /"((?:[^"\\]|\\.)*)$/.exec(afterStrings(line));
  if (opened) return { header, isHeader: false, key, inText: true, said: opened[1], typed: /[\w-]*$/.exec(opened[1])[0] };
  return { header, isHeader: false, key, inText: false, said: "", typed: /[\w-]*$/.exec(line)[0] };
}

// The key of a list that began on an earlier line and is not closed; null if there is none.
function openKey(lines) {
  let key = null;
  for (const line of lines.slice(0, -1)) {
    const plain = line.replace(/"(?:[^"\\]|\\.)*"/g, "").replace(/#.*$/, "");
    const begun = /^\s*([\w-]+)\s*=\s*\[/.exec(plain);
    if (begun && !plain.includes("]")) key = begun[1];
    else if (plain.includes("]")) key = null;
  }
  return key;
}

// The line without the strings that are closed in it.
function afterStrings(line) {
  return line.replace(/"(?:[^"\\]|\\.)*"/g, (text) => " ".repeat(text.length));
}

function headers(vocabulary, { typed }) {
  const known = Object.keys(vocabulary.tables).filter((each) => each !== "");
  return known.filter((each) => each.startsWith(typed)).map((header) => ({ label: header, insert: `${header}\n`, help: "a table" }));
}

function keys(vocabulary, { header }) {
  const table = vocabulary.tables[header] ?? vocabulary.tables[""];
  const found = table.map(({ key, kind, required }) => ({ label: key, insert: `${key} = `, help: `${kind}${required ? ", required" : ""}` }));
  return [...found, ...headers(vocabulary, { typed: "" })];
}

function values(vocabulary, text, { header, key, inText, said, typed }) {
  const known = (vocabulary.tables[header] ?? []).find((each) => each.key === key);
  const close = (word) => (inText ? word : `"${word}"`);
  const listed = ["holds", "violates"].includes(key) ? vocabulary.rules.map((each) => `"${each}"`) : (known?.values ?? []);
  if (listed.length > 0) return listed.map((each) => ({ label: each.replaceAll('"', ""), insert: inText ? each.replaceAll('"', "") : each, help: "" }));
  const kind = known?.kind.split(", or")[0];
  const grammar = POINT_KEYS.has(key) ? "point" : key === "do" ? "action" : GRAMMARS[kind];
  const names = namesIn(text).map((each) => ({ label: each, insert: close(each), help: "a name in this scenario" }));
  if (!grammar) return names;
  const phrases = vocabulary.phrases[grammar].map(({ shown, help }) => ({ label: shown, insert: close(withoutOptions(shown)), help }));
  if (said.trim() === "") return phrases;
  return nextIn(vocabulary, grammar, said, typed, namesIn(text));
}

// What may come next in a text, by every phrase that begins with the words before the caret.
function nextIn(vocabulary, grammar, said, typed, names) {
  const before = said.slice(0, said.length - typed.length).split(" ").filter(Boolean);
  const found = new Map();
  for (const { shown, help } of vocabulary.phrases[grammar]) {
    for (const rest of remainders(withoutOptions(shown).split(" "), before)) {
      const [next] = rest;
      if (next === undefined) continue;
      if (!BLANK.test(next)) found.set(rest.join(" "), { label: rest.join(" "), insert: rest.join(" "), help });
      else for (const word of fillings(vocabulary, next, names)) if (!found.has(word)) found.set(word, { label: word, insert: word, help: next });
    }
  }
  return [...found.values()];
}

// The words of a phrase that are left when these words are taken from its beginning, in every way that fits. A blank
// takes one word; as a name of a node it may take two or three ("node 1", "coordinator of app").
function remainders(phrase, words) {
  if (words.length === 0) return [phrase];
  const [first, ...rest] = phrase;
  if (first === undefined) return [];
  if (!BLANK.test(first)) return words[0] === first ? remainders(rest, words.slice(1)) : [];
  const length = { node: 2, coordinator: 3, leader: 3 }[words[0]] ?? 1;
  if (words.length < length) return [[LONGER[length][words.length], ...rest]];
  return remainders(rest, words.slice(length));
}

const LONGER = { 2: { 1: "N" }, 3: { 1: "of", 2: "ID" } };

function fillings(vocabulary, blank, names) {
  const words = vocabulary.blanks[blank]?.words ?? [];
  if (words.length > 0) return words;
  if (blank === "TIME") return ["50 ms", "300 ms", "3 s"];
  return /^(WHO|NODE|PROCESS|PARTITION|ID|TOPIC-N|GROUP|VALUE)$/.test(blank) ? names : [];
}

function withoutOptions(shown) {
  return shown.replace(/ ?\[[^\]]*\] ?/g, "").trim();
}

// Names of processes, transactional ids, nodes and partitions that the text speaks of.
function namesIn(text) {
  const named = [...text.matchAll(/^\s*(?:name|transactional_id|group)\s*=\s*"([^"\n]+)"/gm)].map((found) => found[1]).filter((name) => !name.includes(" "));
  const nodes = Number(/^\s*nodes\s*=\s*(\d+)/m.exec(text)?.[1] ?? 1);
  const topics = [...(/^\s*topics\s*=\s*\{([^}]*)\}/m.exec(text)?.[1] ?? "t = 2").matchAll(/"?([\w.-]+)"?\s*=\s*(\d+)/g)];
  const partitions = topics.flatMap(([, topic, count]) => Array.from({ length: Math.min(Number(count), 4) }, (_, number) => `${topic}-${number}`));
  return [...new Set([...named, ...Array.from({ length: Math.min(nodes, 9) }, (_, number) => `node ${number + 1}`), ...partitions])];
}

// The first blank of an inserted phrase, to type over: [start, end], or null.
export function firstBlank(inserted) {
  const found = BLANK.exec(inserted);
  return found ? [found.index, found.index + found[0].length] : null;
}
