// A titled box of the page. Rule: each panel is a region with a name, so that a screen reader can list and reach it.

import { html } from "lab/html.js";
import { useName } from "lab/side_name.js";

export function Panel({ id, title, note, children, kind = "" }) {
  return html`
    <section class=${`panel ${kind}`} data-testid=${id} aria-label=${useName(title)}>
      <h2>${title}${note ? html` <small>${note}</small>` : null}</h2>
      ${children}
    </section>`;
}
