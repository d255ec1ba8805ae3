// A titled box of the page. Rule: each panel is a region with a name, so that a screen reader can list and reach it.
// More rows than CROWD scroll in a box of their own, in which the one that changed last stays in sight where it would be
// out of it; the others stay where they are.

import { html } from "lab/html.js";
import { useName } from "lab/side_name.js";

const CROWD = 10;

// The properties of the box of so many rows.
export function crowded(count, label) {
  return count > CROWD ? { "data-crowded": true, tabindex: 0, role: "group", "aria-label": label } : {};
}

export function Panel({ id, title, note, children, kind = "" }) {
  return html`
    <section class=${`panel ${kind}`} data-testid=${id} aria-label=${useName(title)}>
      <h2>${title}${note ? html` <small>${note}</small>` : null}</h2>
      ${children}
    </section>`;
}
