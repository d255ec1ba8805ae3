// How wide texts are, in letters of the page's monospaced type. Rule: the browser measures, in bold and in the fonts that
// it has: a Chinese character or an emoji is wider than a letter, and a text is cut between the signs that people see. It is
// measured and cut as it is shown.

import { escaped } from "lab/escaped.js";

const SIZE = 100; // px, of the measuring
const PLAIN = /^[ -~]*$/; // each of these is as wide as the next
const END = 3; // signs of a name
const SIGNS = new Intl.Segmenter();

const pen = document.createElement("canvas").getContext("2d");
pen.font = `bold ${SIZE}px ${getComputedStyle(document.documentElement).getPropertyValue("--mono")}`;
pen.textRendering = "geometricPrecision"; // as the style sheet has it: else a letter's width depends on its size

// The width of a letter, in its size.
export const LETTER = pen.measureText("0").width / SIZE;

export function lettersOf(text) {
  return PLAIN.test(text) ? text.length : pen.measureText(escaped(text)).width / SIZE / LETTER;
}

// A name cut in its middle, since often only the ends of names differ.
export function briefName(given, letters) {
  const name = escaped(given);
  return lettersOf(name) <= letters ? name : shortened(name, letters - END) + [...name].slice(-END).join("");
}

// The parts of a name, between which a line of it may end.
export function partsOf(name) {
  return escaped(name).split(/(?<=[-._:/@ ])/);
}

// How many lines a name needs in a column of so many letters; a part that is longer than the column is broken.
export function lineCount(name, letters) {
  let [lines, used] = [0, Infinity];
  for (const part of partsOf(name)) {
    const wide = lettersOf(part.trimEnd());
    const own = Math.ceil(wide / letters);
    [lines, used] = used + wide <= letters ? [lines, used + lettersOf(part)] : [lines + own, lettersOf(part) - (own - 1) * letters];
  }
  return lines;
}

// A name cut in its middle, until it needs no more than so many lines.
export function nameInLines(name, letters, lines) {
  let room = letters * lines;
  while (room > letters && lineCount(briefName(name, room), letters) > lines) room -= 1;
  return briefName(name, room);
}

// As much of a text as fits into so many letters, with an ellipsis for the rest.
export function shortened(given, letters) {
  const text = escaped(given);
  if (lettersOf(text) <= letters) return text;
  let used = 1;
  for (const { segment, index } of SIGNS.segment(text)) {
    used += lettersOf(segment);
    if (used > letters) return `${text.slice(0, index)}…`;
  }
  return text;
}
