// What readers of either isolation level see at the selected step, side by side, and where each stands.

import { html } from "lab/html.js";
import { crowded, Panel } from "lab/panel.js";
import { useName } from "lab/side_name.js";
import { producerStyle } from "lab/words.js";
import { breachesOf, logAt, visible } from "lab/batches.js";

const SHOWN = 12;
const BATCHES = 60; // the newest of a log; a reader's older records are beyond what is shown
const LEVELS = {
  read_committed: "up to the last stable offset, without aborted data",
  read_uncommitted: "up to the high watermark, whatever became of it",
};

export function Readers({ run, step, state }) {
  const partitions = run.partitions.filter((name) => !name.startsWith("__"));
  const shown = { run, step, state };
  const latest = run.latest(partitions.map((name) => `log/${name}`), step);
  return html`
    <${Panel} id="panel-readers" title="What readers see" kind="readers">
      <div class="columns" ...${crowded(partitions.length, useName("All partitions"))}>
        ${Object.entries(LEVELS).map(
          ([isolation, words]) => html`
          <div class=${`reader ${isolation}`} key=${isolation}>
            <h3 title=${words}>${isolation}</h3>
            ${partitions.length === 0 && html`<p class="more">nothing yet</p>`}
            ${partitions.map((partition) => html`<${Sight} key=${partition} ...${shown} partition=${partition} isolation=${isolation} isLatest=${latest === `log/${partition}`} />`)}
            ${consumersOf(run, state, isolation).map(({ name, where }) => html`<p class="consumer"><b>${name}</b> next reads ${where}</p>`)}
          </div>`,
        )}
      </div>
    <//>`;
}

function Sight({ run, step, state, partition, isolation, isLatest }) {
  const log = state[`log/${partition}`] ?? { lso: 0, hw: 0 };
  const seen = visible(logAt(run, partition, step, BATCHES), step, log, isolation);
  const committed = isolation === "read_committed";
  const next = committed ? log.lso : log.hw;
  const waiting =
    committed && log.hw > log.lso ? `waits at ${next}: a transaction is open there` : `next offset ${next}`;
  return html`
    <div class="sight" data-latest=${isLatest || null}>
      <span class="name">${partition}</span>
      <ul aria-label=${`${isolation} readers see of ${partition}`}>
        ${seen.length > SHOWN && html`<li class="more">… earlier</li>`}
        ${seen.slice(-SHOWN).map((record) => chip(run, step, record))}
        ${seen.length === 0 && html`<li class="more">nothing</li>`}
      </ul>
      <span class="position">${waiting}</span>
    </div>`;
}

function chip(run, step, { batch, value, offset }) {
  const isWrong = breachesOf(run, batch, step).length > 0;
  return html`
    <li key=${offset} class=${isWrong ? "wrong" : ""} style=${producerStyle(run, batch.producer)}>
      ${value}${isWrong ? html`<span class="sr-only"> breaks a rule</span>` : null}</li>`;
}

function consumersOf(run, state, isolation) {
  const wanted = (run.document.participants ?? []).filter(
    (participant) => participant.isolation === isolation,
  );
  return wanted
    .map(({ name }) => {
      const found = Object.entries(state).filter(([key]) => key.startsWith(`reader/${name}/`));
      return {
        name,
        where: found.map(([key, offset]) => `${key.slice(name.length + 8)} at ${offset}`).join(", "),
      };
    })
    .filter(({ where }) => where);
}
