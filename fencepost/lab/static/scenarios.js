// The bundled scenarios: their names, what each teaches, and their variants.

import { html } from "lab/html.js";

export function ScenarioList({ scenarios, asked, ask }) {
  return html`
    <ol class="scenarios" data-testid="scenario-list">
      ${scenarios.map((each) => html`<li key=${each.name}>
        <button class="scenario" aria-current=${each.name === asked.scenario ? "true" : "false"} onClick=${() => ask({ scenario: each.name, variant: 1 })}>
          ${each.title}</button></li>`)}
    </ol>`;
}
