// What a partition leader remembers of its producers: epoch, last sequence, open transaction, verification guard.

import { html } from "lab/html.js";
import { Panel } from "lab/panel.js";
import { producerName } from "lab/words.js";

export function Leader({ run, state }) {
  const tables = run.partitions.map((partition) => ({ partition, log: state[`log/${partition}`], producers: producersOf(state, partition) }));
  return html`
    <${Panel} id="panel-leader" title="Partition leaders" kind="leader">
      ${tables.map(({ partition, log, producers }) => html`
        <table key=${partition}>
          <caption>${partition}${log?.leader ? html` <small>led by ${log.leader}, leader epoch ${log.leader_epoch}</small>` : null}</caption>
          <thead><tr><th scope="col">producer</th><th scope="col">epoch</th><th scope="col">last sequence</th><th scope="col">transaction</th><th scope="col">guard</th></tr></thead>
          <tbody>
            ${producers.map(({ id, value }) => producer(run, id, value))}
            ${producers.length === 0 && html`<tr><td colspan="5" class="more">no producer known</td></tr>`}
          </tbody>
        </table>`)}
    <//>`;
}

function producer(run, id, value) {
  const place = run.producerPlace(id);
  return html`
    <tr key=${id}>
      <th scope="row"><i class="swatch" style=${{ "--producer": `var(--producer-${place < 0 ? "none" : place % 6})` }}></i>${producerName(run, id)}</th>
      <td>${value.epoch}</td>
      <td>${value.last_sequence ?? "–"}</td>
      <td>${value.open_since == null ? "none" : html`<b>open from ${value.open_since}</b>`}</td>
      <td>${value.guard ?? "–"}</td>
    </tr>`;
}

function producersOf(state, partition) {
  const prefix = `producer/${partition}/`;
  const found = Object.entries(state).filter(([key]) => key.startsWith(prefix));
  return found.map(([key, value]) => ({ id: Number(key.slice(prefix.length)), value })).sort((a, b) => a.id - b.id);
}
