// How a run is shown: one transaction or all, speed, size of rows and type, colours; and the help.

import { choice } from "lab/choice.js";
import { html } from "lab/html.js";
import { button } from "lab/button.js";
import { SPEEDS } from "lab/player.js";

export function Settings({ run, player, look, filter, setFilter, setHelp, extras }) {
  return html`
    <div class="settings">
      ${
        run.transactions.length > 0 &&
        html`
        <label>show ${choice({ id: "filter", value: filter, choose: setFilter, options: [["", "all"], ...run.transactions.map((id) => [id, `txn ${id}`])] })}</label>`
      }
      <label>speed ${choice({ id: "speed", value: player.speed, choose: player.setSpeed, options: SPEEDS.map((speed) => [speed, `${speed}/s`]) })}</label>
      <label>zoom ${choice({ id: "zoom", value: look.zoom, choose: look.setZoom, options: look.zooms.map((zoom) => [zoom, `${Math.round(zoom * 100)} %`]) })}</label>
      <button data-testid="large-type" aria-pressed=${look.large} title="Large type, for a lecture hall (L)" onClick=${look.toggleLarge}>A<span class="bigger">A</span><span class="sr-only"> large type</span></button>
      ${button({ id: "theme", label: `Colours: ${look.theme} (T)`, onClick: look.nextTheme, picture: "theme" })}
      ${button({ id: "help", label: "Keys and signs (?)", onClick: () => setHelp(true), picture: "help" })}
      ${extras?.(player)}
    </div>`;
}
