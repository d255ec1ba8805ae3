// The transaction coordinator: its state diagram with the state of the chosen transaction highlighted, and what it knows.
//
// Rule: states and arrows come from the run's document, which has them from the tables that ran. Only their places
// on the sheet are chosen here; a state without a place stands in the last row.

import { choice } from "lab/choice.js";
import { html } from "lab/html.js";
import { useState } from "preact/hooks";
import { Panel } from "lab/panel.js";
import { placeAt } from "lab/run.js";
import { spaced } from "lab/words.js";

const PLACES = {
  Ongoing: [0, 0],
  PrepareCommit: [1, 0],
  CompleteCommit: [2, 0],
  Empty: [0, 1],
  PrepareAbort: [1, 1],
  CompleteAbort: [2, 1],
};
const [COLUMN, ROW, WIDE, HIGH] = [216, 78, 192, 36];

export function Coordinator({ run, step, state }) {
  const [chosen, choose] = useState(""); // none: the latest
  const keys = run.transactions.map((id) => `txn/${id}`);
  const latest = run.latest(keys, step)?.slice("txn/".length) ?? null;
  if (latest === null)
    return html`<${Panel} id="panel-coordinator" title="Transaction coordinator"><p class="more">This run has no transactions${run.document.source === "broker" ? " yet" : ""}.</p><//>`;
  const isKnown = run.transactions.includes(chosen); // another run may not have it
  const current = isKnown ? chosen : latest;
  const known = state[`txn/${current}`];
  return html`
    <${Panel} id="panel-coordinator" title="Transaction coordinator" note=${known?.node ? `on ${known.node}` : ""} kind="coordinator">
      ${
        run.transactions.length > 1 &&
        html`
        <label class="choice">transaction ${choice({ value: isKnown ? chosen : "", choose, options: [["", `the latest (${latest})`], ...run.transactions.map((id) => [id, id])] })}</label>`
      }
      <div class="known"><${Diagram} machine=${run.document.machine ?? { states: [], arrows: [] }} ...${moves(run, current, step)} />
      <${Facts} id=${current} known=${known} /></div>
    <//>`;
}

function Facts({ id, known }) {
  if (!known) return html`<p class="more">The coordinator does not know <b>${id}</b>.</p>`;
  const list = (names) => (names?.length ? names.join(", ") : "none");
  return html`
    <dl class="facts">
      <div><dt>transaction</dt><dd>${id}</dd></div>
      <div><dt>producer</dt><dd>id ${known.producer}, epoch ${known.epoch}</dd></div>
      <div><dt>partitions</dt><dd>${list(known.partitions)}</dd></div>
      <div class=${known.pending?.length ? "pending" : ""}><dt>markers missing</dt><dd>${list(known.pending)}</dd></div>
    </dl>`;
}

function Diagram({ machine, now, before }) {
  const places = placed(machine.states);
  const arrows = pairs(machine.arrows.filter(({ from, to }) => from !== to));
  const [columns, rows] = [0, 1].map((axis) =>
    Math.max(1, ...[...places.values()].map((place) => place[axis])),
  );
  const box = `-4 -22 ${columns * COLUMN + WIDE + 8} ${rows * ROW + HIGH + 44}`;
  return html`
    <svg class="diagram" viewBox=${box} role="img" aria-label=${`State diagram of the transaction; current state: ${now ? spaced(now) : "none"}`}>
      ${arrows.map((arrow) => arrowLine(arrow, places, before === arrow.from && now === arrow.to))}
      ${[...places].map(([name, place]) => stateBox(name, place, now))}
    </svg>`;
}

function stateBox(name, [column, row], now) {
  const [x, y] = [column * COLUMN, row * ROW];
  return html`
    <g class=${`state ${name === now ? "now" : ""}`}>
      <rect x=${x} y=${y} width=${WIDE} height=${HIGH} rx="6" />
      <text x=${x + WIDE / 2} y=${y + HIGH / 2 + 5} text-anchor="middle">${name === now ? "▸ " : ""}${spaced(name)}</text>
    </g>`;
}

function arrowLine({ from, to, inputs }, places, isTaken) {
  if (!places.has(from) || !places.has(to)) return null;
  const [a, b] = [centre(places.get(from)), centre(places.get(to))];
  const start = edge(a, b);
  const end = edge(b, a);
  const bend = bow(start, end, places.get(from), places.get(to));
  const angle = Math.atan2(end[1] - bend[1], end[0] - bend[0]);
  const point = (turn) => `${end[0] - 8 * Math.cos(angle + turn)} ${end[1] - 8 * Math.sin(angle + turn)}`;
  return html`
    <g class=${`arrow ${isTaken ? "taken" : ""}`}>
      <title>${spaced(from)} to ${spaced(to)}: ${inputs.join(", ")}</title>
      <path class="way" d=${`M${start}Q${bend} ${end}`} />
      <path class="tip" d=${`M${end}L${point(0.4)}L${point(-0.4)}Z`} />
    </g>`;
}

// A way between two states of a diagram that also goes back, or that passes over others, is bent.
function bow(start, end, [c1, r1], [c2, r2]) {
  const middle = [(start[0] + end[0]) / 2, (start[1] + end[1]) / 2];
  const far = Math.abs(c1 - c2) > 1;
  const outward = r1 + r2 < 1 ? -1 : 1;
  if (far) return [middle[0], middle[1] + outward * 46];
  return [middle[0] - (end[1] - start[1]) * 0.14, middle[1] + (end[0] - start[0]) * 0.14];
}

function centre([column, row]) {
  return [column * COLUMN + WIDE / 2, row * ROW + HIGH / 2];
}

// Where the way from the middle of one box to another leaves the box.
function edge([x1, y1], [x2, y2]) {
  const [dx, dy] = [x2 - x1, y2 - y1];
  const part = Math.min(WIDE / 2 / Math.abs(dx || 1e-9), HIGH / 2 / Math.abs(dy || 1e-9));
  return [x1 + dx * part, y1 + dy * part];
}

function placed(states) {
  const others = states.filter((name) => !PLACES[name]);
  return new Map(states.map((name) => [name, PLACES[name] ?? [others.indexOf(name), 1.8]]));
}

function pairs(arrows) {
  const found = Map.groupBy(arrows, ({ from, to }) => `${from} ${to}`);
  return [...found.values()].map((same) => ({
    ...same[0],
    inputs: [...new Set(same.map(({ input }) => input))],
  }));
}

// The current state and the one before it.
function moves(run, id, step) {
  const all = run.changed.get(`txn/${id}`) ?? [];
  const place = placeAt(all, step);
  const now = all[place]?.value?.state ?? null;
  const before = all.slice(0, Math.max(place, 0)).findLast(({ value }) => value && value.state !== now);
  return { now, before: before?.value.state ?? null };
}
