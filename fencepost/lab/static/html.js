// One way to write elements: html`<p class=${name}>${text}</p>`. Rule: text stays text; nothing here reads markup from a run,
// and no sign of a text is obeyed instead of shown.

import { h } from "preact";
import htm from "htm";
import { escaped } from "lab/escaped.js";

const SAID = ["title", "aria-label", "aria-valuetext"]; // attributes that people read or hear

export const html = htm.bind((type, props, ...children) => h(type, sayable(props), ...children.map(escaped)));

function sayable(props) {
  const said = SAID.filter((name) => props?.[name]);
  return said.length ? { ...props, ...Object.fromEntries(said.map((name) => [name, escaped(props[name])])) } : props;
}
