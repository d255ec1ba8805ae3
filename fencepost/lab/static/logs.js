// A strip per partition: each record at its offset, in the colour of its producer and the pattern of its transaction's
// state, with the last stable offset and the high watermark as pointers that move; and the transaction log in words.
//
// Rule: offsets have one width, so a pointer's place is its offset; what does not fit is the oldest, and is counted.

import { html } from "lab/html.js";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Panel } from "lab/panel.js";
import { breachesOf, logAt, records, STATES, stateOf } from "lab/batches.js";
import { producerName, producerStyle, shortened, shortName, spaced } from "lab/words.js";
import { placeAt } from "lab/run.js";

const [CELL, CELL_MAX, LETTER] = [3.4, 8, 0.66]; // rem: a record's width, at least and at most, and a letter's
const NAMES = 5.4; // rem: the names before the strips
const RULE = 5; // letters of a broken rule that fit above its record
const WORDS = 5; // states of a transaction that are shown
const ROOMY = 2; // more strips than this are lower, and say their bounds beside their names

export function Logs({ run, version, step, state }) {
  const strips = useRef(null);
  const wide = useMemo(() => cellWidth(run), [run, version]);
  const cells = useCells(strips, wide);
  return html`
    <${Panel} id="panel-logs" title="Logs" kind="logs">
      <div ref=${strips} class=${`strips ${run.partitions.length > ROOMY ? "many" : ""}`} style=${{ "--cell": wide }}>
        ${run.partitions.map((partition) => html`<${Strip} key=${partition} run=${run} step=${step} partition=${partition} state=${state} cells=${cells} />`)}
        ${run.transactions.map((id) => html`<${TransactionLog} key=${id} run=${run} step=${step} id=${id} />`)}
      </div>
    <//>`;
}

function Strip({ run, step, partition, state, cells }) {
  const log = state[`log/${partition}`] ?? { start: 0, end: 0, lso: 0, hw: 0 };
  const batches = logAt(run, partition, step, cells + 1);
  const origin = Math.max(log.start ?? 0, log.end - cells, 0);
  const shown = batches.filter((batch) => batch.last >= origin);
  const readers = readersOf(run, state, partition);
  const held = { at: Math.max(log.lso - origin, 0), count: log.hw - Math.max(log.lso, origin) };
  const name = `Log of ${partition}: last stable offset ${log.lso}, high watermark ${log.hw}`;
  return html`
    <div class="strip">
      <h3>
        ${shortName(partition)}<small class="bounds">LSO ${log.lso} HW ${log.hw}</small>
        <small>${origin > 0 ? `${origin} before` : ""}</small>
      </h3>
      <ol class="cells" role="list" aria-label=${name}>
        ${held.count > 0 && html`<li class="held" aria-hidden="true" style=${{ "--at": held.at, "--count": held.count }}></li>`}
        ${shown.flatMap((batch) => cellsOf(batch, step, origin, run))}
        ${pointer("lso", "LSO", log.lso - origin, log.lso)}
        ${pointer("hw", "HW", log.hw - origin, log.hw)}
        ${readers.map(({ name, offset }) => pointer("reader", name, offset - origin, offset))}
      </ol>
    </div>`;
}

function cellsOf(batch, step, origin, run) {
  const state = stateOf(batch, step);
  const isNew = batch.appended === step;
  const breaches = breachesOf(run, batch, step);
  const { word, sign } = STATES[state];
  const inside = batch.kind === "data" ? records(batch) : [{ value: sign, offset: batch.first }];
  const isOwned = batch.producer != null && batch.producer >= 0;
  const by = isOwned ? `, ${producerName(run, batch.producer)} epoch ${batch.epoch}` : "";
  const kind = `cell ${state} ${isNew ? "new" : ""} ${breaches.length ? "wrong" : ""}`;
  const said =
    batch.kind === "data"
      ? html`${isOwned ? `${batch.producer}/${batch.epoch}` : ""} ${sign}<span class="sr-only">${word}</span>`
      : batch.kind;
  return inside
    .filter(({ offset }) => offset >= origin)
    .map(
      ({ value, offset }) => html`
    <li key=${`${batch.index}-${offset}`} class=${kind}
      style=${{ "--at": offset - origin, "--count": 1, ...producerStyle(run, batch.producer) }}
      title=${`offset ${offset}: ${value}, ${word}${by}`}>
      ${breaches.length > 0 && html`<em class="breach-sign">✗ ${shortened(breaches[0].split(" ")[0], RULE)}</em>`}
      <span class="offset" aria-hidden="true">${offset}</span>
      <b data-sign=${batch.kind === "data" ? sign : ""}>${value}</b>
      <small>${said}</small>
    </li>`,
    );
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

function TransactionLog({ run, step, id }) {
  const all = run.changed.get(`txn/${id}`) ?? [];
  const place = placeAt(all, step);
  const shown = all.slice(Math.max(0, place + 1 - WORDS), place + 1).filter(({ value }) => value);
  return html`
    <div class="strip words">
      <h3>__transaction_state <small>${id}</small></h3>
      <ol class="said" aria-label=${`What the transaction log says of ${id}`}>
        ${place + 1 > WORDS && html`<li class="more">…</li>`}
        ${shown.map(
          ({ step: at, value }, nth) => html`
          <li key=${at} class=${nth === shown.length - 1 ? "newest" : ""}>
            <b>${spaced(value.state)}</b> ${value.producer}/${value.epoch}${partitionsOf(value)}</li>`,
        )}
        ${shown.length === 0 && html`<li class="more">nothing yet</li>`}
      </ol>
    </div>`;
}

function partitionsOf({ partitions }) {
  return partitions?.length ? ` {${partitions.join(", ")}}` : "";
}

// As wide as the longest record needs, within reason.
function cellWidth(run) {
  const longest = run.batches.flatMap(records).reduce((most, { value }) => Math.max(most, value.length), 0);
  return Math.min(CELL_MAX, Math.max(CELL, longest * LETTER + 1.1));
}

// How many offsets fit beside each other; the size of type may have changed with any redraw.
function useCells(element, cell) {
  const [cells, setCells] = useState(12);
  const measure = () => {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    setCells(Math.max(3, Math.floor((element.current.clientWidth / rem - NAMES - 3.4) / cell)));
  };
  useLayoutEffect(measure);
  useLayoutEffect(() => {
    const observer = new ResizeObserver(measure);
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [cell]);
  return cells;
}
