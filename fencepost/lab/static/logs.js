// A strip per partition: each record at its offset, in the colour of its producer and the pattern of its transaction's
// state, with the last stable offset and the high watermark as pointers that move; and the transaction log in words.
//
// Rule: each record and marker has a cell, a batch of many records one for all; a pointer stands where its offset is.
// What does not fit is the oldest, and is counted.

import { html } from "lab/html.js";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { lettersOf, shortened } from "lab/letters.js";
import { crowded, Panel } from "lab/panel.js";
import { breachesOf, logAt, records, STATES, stateOf, strip } from "lab/batches.js";
import { useName } from "lab/side_name.js";
import { breakable, producerName, producerStyle, shortName, spaced } from "lab/words.js";
import { placeAt } from "lab/run.js";

const [CELL, CELL_MAX, LETTER] = [3.4, 9, 0.72]; // rem: a record's width, at least and at most, and a letter's
const NAMES = 5.4; // rem: the names before the strips
const RULE = 5; // letters of a broken rule that fit above its record
const WORDS = 5; // states of a transaction that are shown
const ROOMY = 2; // more strips than this are lower, and say their bounds beside their names

export function Logs({ run, version, step, state }) {
  const strips = useRef(null);
  const wide = useMemo(() => cellWidth(run), [run, version]);
  const cells = useCells(strips, wide);
  const keys = [...run.partitions.map((name) => `log/${name}`), ...run.transactions.map((id) => `txn/${id}`)];
  const latest = run.latest(keys, step);
  return html`
    <${Panel} id="panel-logs" title="Logs" kind="logs">
      <div ref=${strips} class=${`strips ${run.partitions.length > ROOMY ? "many" : ""}`} style=${{ "--cell": wide }} ...${crowded(keys.length, useName("All logs"))}>
        ${run.partitions.length === 0 && html`<p class="more">No log has a record yet.</p>`}
        ${run.partitions.map((partition) => html`<${Strip} key=${partition} run=${run} step=${step} partition=${partition} state=${state} cells=${cells} isLatest=${latest === `log/${partition}`} />`)}
        ${run.transactions.map((id) => html`<${TransactionLog} key=${id} run=${run} step=${step} id=${id} isLatest=${latest === `txn/${id}`} />`)}
      </div>
    <//>`;
}

function Strip({ run, step, partition, state, cells: limit, isLatest }) {
  const log = state[`log/${partition}`] ?? { end: 0, lso: 0, hw: 0 };
  const { cells, cellOf } = strip(logAt(run, partition, step, limit), limit);
  const before = cells.length ? cells[0].offset : 0;
  const held = Math.max(cellOf(log.lso), 0);
  const count = Math.max(cellOf(log.hw), 0) - held;
  const isBreached = (run.document.broken ?? []).some(({ batch }) => run.batches[batch]?.partition === partition);
  const name = `Log of ${partition}: last stable offset ${log.lso}, high watermark ${log.hw}`;
  return html`
    <div class="strip" data-latest=${isLatest || null}>
      <h3>
        ${breakable(shortName(partition))}<small class="bounds">LSO ${log.lso} HW ${log.hw}</small>
        <small>${before > 0 ? `${before} before` : ""}</small>
      </h3>
      <ol class=${`cells ${isBreached ? "breached" : ""}`} role="list" aria-label=${name}>
        ${count > 0 && html`<li class="held" aria-hidden="true" style=${{ "--at": held, "--count": count }}></li>`}
        ${cells.map((cell, at) => cellElement(run, step, cell, at))}
        ${pointer("lso", "LSO", cellOf(log.lso), log.lso)}
        ${pointer("hw", "HW", cellOf(log.hw), log.hw)}
        ${readersOf(run, state, partition).map(({ name, offset }) => pointer("reader", name, cellOf(offset), offset))}
      </ol>
    </div>`;
}

function cellElement(run, step, { batch, value, offset, last }, at) {
  const state = stateOf(batch, step);
  const breaches = breachesOf(run, batch, step);
  const { word, sign } = STATES[state];
  const isData = batch.kind === "data";
  const isOwned = batch.producer != null && batch.producer >= 0;
  const by = isOwned ? `, ${producerName(run, batch.producer)} epoch ${batch.epoch}` : "";
  const kind = `cell ${state} ${batch.appended === step ? "new" : ""} ${breaches.length ? "wrong" : ""}`;
  const offsets = offset === last ? `${offset}` : `${offset}-${last}`;
  const owner = isOwned ? `${batch.producer}/${batch.epoch}` : "";
  const said = isData ? html`${owner} ${sign}<span class="sr-only">${word}</span>` : batch.kind;
  return html`
    <li key=${`${batch.index}-${offset}`} class=${kind}
      style=${{ "--at": at, "--count": 1, ...producerStyle(run, batch.producer) }}
      title=${`offset ${offsets}: ${value}, ${word}${by}`}>
      ${breaches.length > 0 && html`<em class="breach-sign">✗ ${shortened(breaches[0].split(" ")[0], RULE)}</em>`}
      <span class="offset" aria-hidden="true">${offsets}</span>
      <b data-sign=${isData ? sign : ""}>${value}</b>
      <small>${said}</small>
    </li>`;
}

function pointer(kind, word, at, offset) {
  return html`
    <li key=${`${kind}-${word}`} class=${`pointer ${kind}`} style=${{ "--at": Math.max(at, 0) }}>
      <span>${at < 0 ? "◂" : ""}${word} ${offset}</span></li>`;
}

function readersOf(run, state, partition) {
  const found = Object.entries(state).filter(
    ([key]) => key.startsWith("reader/") && key.endsWith(`/${partition}`),
  );
  return found.map(([key, offset]) => ({ name: key.slice(7, -partition.length - 1), offset }));
}

function TransactionLog({ run, step, id, isLatest }) {
  const known = run.changed.get(`txn/${id}`) ?? [];
  const states = known.slice(0, placeAt(known, step) + 1).filter(({ value }) => value);
  const all = states.map(({ value }) => ({ state: spaced(value.state), rest: `${value.producer}/${value.epoch}${partitionsOf(value)}` }));
  // What the coordinator only remembers, such as which markers are missing, is no record.
  const written = all.filter(({ state, rest }, place) => state !== all[place - 1]?.state || rest !== all[place - 1].rest);
  const shown = written.slice(-WORDS);
  return html`
    <div class="strip words" data-latest=${isLatest || null}>
      <h3>__transaction_state <small>${id}</small></h3>
      <ol class="said" aria-label=${`What the transaction log says of ${id}`}>
        ${written.length > WORDS && html`<li class="more">…</li>`}
        ${shown.map(({ state, rest }, nth) => html`<li key=${nth} class=${nth === shown.length - 1 ? "newest" : ""}><b>${state}</b> ${rest}</li>`)}
        ${shown.length === 0 && html`<li class="more">nothing yet</li>`}
      </ol>
    </div>`;
}

function partitionsOf({ partitions }) {
  return partitions?.length ? ` {${partitions.join(", ")}}` : "";
}

// As wide as the longest record needs, within reason.
function cellWidth(run) {
  const longest = run.batches.flatMap(records).reduce((most, { value }) => Math.max(most, lettersOf(value)), 0);
  return Math.min(CELL_MAX, Math.max(CELL, longest * LETTER + 1.1));
}

// How many offsets fit beside each other; the size of type may have changed with any redraw.
function useCells(element, cell) {
  const [cells, setCells] = useState(12);
  const measure = () => {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    setCells(Math.max(1, Math.floor((element.current.clientWidth / rem - NAMES - 3.4) / cell)));
  };
  useLayoutEffect(measure);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [cell]);
  return cells;
}
