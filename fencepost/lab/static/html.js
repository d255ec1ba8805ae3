// One way to write elements: html`<p class=${name}>${text}</p>`. Rule: text stays text; nothing here reads markup from a run.

import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
