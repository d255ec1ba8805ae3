// What a partition leader remembers of its producers: epoch, last sequence, open transaction, verification guard.

import { html } from "lab/html.js";
import { crowded, Panel } from "lab/panel.js";
import { useName } from "lab/side_name.js";
import { producerName, producerStyle } from "lab/words.js";

const COLUMNS = ["partition", "producer", "epoch", "last sequence", "transaction", "guard"];

export function Leader({ run, step, state }) {
  const latest = run.latest(run.partitions.map((name) => `log/${name}`), step);
  const label = useName("Producers of each partition");
  return html`
    <${Panel} id="panel-leader" title="What partition leaders know" kind="leader">
      <div class="table" tabindex="0" role="group" aria-label=${label} ...${crowded(run.partitions.length, label)}>
        <table>
          <thead><tr>${COLUMNS.map((name) => html`<th scope="col" key=${name}>${name}</th>`)}</tr></thead>
          ${run.partitions.length === 0 && html`<tbody><tr><td colspan=${COLUMNS.length} class="more">nothing yet</td></tr></tbody>`}
          ${run.partitions.map((partition) => partitionRows(run, state, partition, latest === `log/${partition}`))}
        </table>
      </div>
    <//>`;
}

function partitionRows(run, state, partition, isLatest) {
  const log = state[`log/${partition}`];
  const producers = producersOf(state, partition);
  const led = log?.leader ? html` <small>${log.leader}, epoch ${log.leader_epoch}</small>` : null;
  const head = html`<th scope="rowgroup" rowspan=${Math.max(producers.length, 1)}>${partition}${led}</th>`;
  return html`
    <tbody key=${partition} data-latest=${isLatest || null}>
      ${producers.map(({ id, value }, place) => html`<tr key=${id}>${place === 0 && head}${producerCells(run, id, value)}</tr>`)}
      ${producers.length === 0 && html`<tr>${head}<td colspan=${COLUMNS.length - 1} class="more">no producer</td></tr>`}
    </tbody>`;
}

function producerCells(run, id, value) {
  return html`
    <th scope="row"><i class="swatch" style=${producerStyle(run, id)}></i>${producerName(run, id)}</th>
    <td>${known(value.epoch)}</td>
    <td>${known(value.last_sequence)}</td>
    <td>${value.open_since == null ? "none" : html`<b>open from ${value.open_since}</b>`}</td>
    <td>${value.guard ?? "none"}</td>`;
}

// An entry that only holds a guard has no epoch and no sequence yet.
function known(number) {
  return number == null || number < 0 ? "none" : number;
}

function producersOf(state, partition) {
  const prefix = `producer/${partition}/`;
  const found = Object.entries(state).filter(([key]) => key.startsWith(prefix));
  return found
    .map(([key, value]) => ({ id: Number(key.slice(prefix.length)), value }))
    .sort((a, b) => a.id - b.id);
}
