// How a run is shown: one transaction or all, speed, size of rows and type, colours; and the help.

import { html } from "lab/html.js";
import { button } from "lab/button.js";
import { SPEEDS } from "lab/player.js";

export function Settings({ run, player, look, filter, setFilter, setHelp, extras }) {
  return html`
    <div class="settings">
      ${
        run.transactions.length > 0 &&
        html`
        <label>show <select data-testid="filter" value=${filter} onChange=${(event) => setFilter(event.target.value)}>
          <option value="">all</option>
          ${run.transactions.map((id) => html`<option key=${id} value=${id}>txn ${id}</option>`)}
        </select></label>`
      }
      <label>speed <select data-testid="speed" value=${player.speed} onChange=${(event) => player.setSpeed(Number(event.target.value))}>
        ${SPEEDS.map((speed) => html`<option key=${speed} value=${speed}>${speed}/s</option>`)}
      </select></label>
      <label>zoom <select data-testid="zoom" value=${look.zoom} onChange=${(event) => look.setZoom(Number(event.target.value))}>
        ${look.zooms.map((zoom) => html`<option key=${zoom} value=${zoom}>${Math.round(zoom * 100)} %</option>`)}
      </select></label>
      <button data-testid="large-type" aria-pressed=${look.large} title="Large type, for a lecture hall (L)" onClick=${look.toggleLarge}>A<span class="bigger">A</span><span class="sr-only"> large type</span></button>
      ${button({ id: "theme", label: `Colours: ${look.theme} (T)`, onClick: look.nextTheme, picture: "theme" })}
      ${button({ id: "help", label: "Keys and signs (?)", onClick: () => setHelp(true), picture: "help" })}
      ${extras?.(player)}
    </div>`;
}
