// A button with a picture; its label is its name for screen readers, and its tooltip.

import { html } from "lab/html.js";
import { icon } from "lab/icons.js";

export function button({ id, label, onClick, picture, kind = "", disabled = false }) {
  return html`<button class=${kind} data-testid=${id} aria-label=${label} title=${label} disabled=${disabled} onClick=${onClick}>${icon(picture)}</button>`;
}
