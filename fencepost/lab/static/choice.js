// A choice of one among some values: [value, words] each.

import { html } from "lab/html.js";

export function choice({ id, label, value, options, choose }) {
  return html`
    <select data-testid=${id} aria-label=${label} value=${value} onChange=${(event) => choose(options[event.target.selectedIndex][0])}>
      ${options.map(([each, words]) => html`<option key=${each} value=${each}>${words}</option>`)}
    </select>`;
}

// The variants of a scenario, as options.
export function variantOptions(variants) {
  return variants.map(({ number, title }) => [number, title || "as it is"]);
}
