// The marks of some rows of the space-time picture, from the ground up: bands of faults and late arrivals, lifelines,
// bounds of the logs, bars of transactions, messages, and one sign with a label per row.
//
// Rule: a row has one step and one label, so labels never meet; a meaning never rests on colour alone: each kind of
// line has its own dash or weight, each kind of step its own sign.

import { html } from "lab/html.js";
import { kindOf } from "lab/geometry.js";
import { lettersOf, shortened } from "lab/letters.js";
import { breachesOf, STATES, stateOf } from "lab/batches.js";
import { mainFlag, milliseconds, producerColour, spaced } from "lab/words.js";

export function Marks({ geometry, first, last, side, onStep, onMessage }) {
  const shown = geometry.rows.slice(first, last + 1);
  return html`
    ${shown.map((number) => band(geometry, number))}
    ${[...geometry.lanes].map(([lane, x]) => lifeline(geometry, lane, x, first, last))}
    ${[...geometry.logs.keys()].map((partition) => ground(geometry, partition, first, last))}
    ${[...geometry.bars].map(([id, x]) => bar(geometry, id, x, first, last))}
    ${geometry.ways(first, last).map((way) => messageLine(geometry, way, { side, onStep, onMessage }))}
    ${shown.map((number) => row(geometry, number, { first, last }))}`;
}

// The times of these rows, and the crosses of broken rules before them.
export function Times({ geometry, first, last }) {
  return geometry.rows.slice(first, last + 1).map((number, place) => {
    const line = first + place;
    const isBroken = geometry.run.steps[number].flags.includes("violation");
    return html`
      ${band(geometry, number)}
      ${isBroken && html`<path class="cross" d=${crossAt(geometry.unit * 0.45, (line + 0.5) * geometry.unit, geometry.unit * 0.26)} />`}
      ${timeLabel(geometry, line)}`;
  });
}

function timeLabel(geometry, line) {
  const [time, before] = [line, line - 1].map((at) => milliseconds(geometry.run.steps[geometry.rows[at]]?.at ?? -1));
  return time !== before && html`<text class="time" x=${geometry.time - 8} y=${baseline(geometry, line)}>${time}</text>`;
}

// --- ground -------------------------------------------------------------------------------------------------------

const [HEAD, HEAD_LATE] = [0.45, 0.62]; // rows: the length of an arrow's head
const ID_LETTERS = 8; // of an id before the state of its transaction
const LABEL_MIN = 5; // letters: where fewer fit, an offset says more than the beginning of a word
const BANDS = new Set(["violation", "late", "fault", "refusal"]);

function band(geometry, number) {
  const flag = mainFlag(geometry.run.steps[number]);
  if (!BANDS.has(flag)) return null;
  const top = geometry.rowOf(number) * geometry.unit;
  return html`<rect class=${`band ${flag}`} x="0" y=${top} width=${geometry.width} height=${geometry.unit} />`;
}

function lifeline(geometry, lane, x, first, last) {
  const { unit } = geometry;
  const stretches = geometry.stretches(`participant/${lane}`, first, last + 1);
  const whole = stretches.length ? stretches : [{ value: "up", from: first, to: last + 1 }];
  const top = whole[0].from > first ? [{ value: "up", from: first, to: whole[0].from }] : [];
  return [...top, ...whole].map(({ value, from, to }) => {
    const [y1, y2] = [(from + 0.5) * unit, (to + 0.5) * unit];
    if (value === "up" || value === null)
      return html`<line class="lifeline" x1=${x} x2=${x} y1=${y1} y2=${y2} />`;
    const silent = html`<line class="silent" x1=${x} x2=${x} y1=${y1} y2=${y2} />`;
    if (value === "ended") return silent;
    return html`
      <rect class="silence" x=${x - unit * 0.4} y=${y1} width=${unit * 0.8} height=${Math.max(0, y2 - y1)} />
      ${silent}`;
  });
}

function bounds(geometry, partition, first, last) {
  return geometry.stretches(`log/${partition}`, first, last + 1).filter(({ value }) => value);
}

function ground(geometry, partition, first, last) {
  const { unit } = geometry;
  const steps = bounds(geometry, partition, first, last);
  const { at } = geometry.scale(partition, steps);
  const left = geometry.logs.get(partition);
  const held = steps.filter(({ value }) => value.hw > value.lso);
  return html`
    <line class="rule" x1=${left} x2=${left} y1=${first * unit} y2=${(last + 1) * unit} />
    ${held.map(
      ({ value, from, to }) => html`
      <rect class="held-back" x=${at(value.lso)} y=${(from + 0.5) * unit} width=${at(value.hw) - at(value.lso)}
        height=${(to - from) * unit} />`,
    )}
    <path class="hw" d=${stairs(steps, unit, ({ hw }) => at(hw))} />
    <path class="lso" d=${stairs(steps, unit, ({ lso }) => at(lso))} />`;
}

function stairs(steps, unit, x) {
  return steps
    .map(
      ({ value, from, to }, place) =>
        `${place ? "H" : "M"}${x(value)}${place ? "" : ` ${(from + 0.5) * unit}`}V${(to + 0.5) * unit}`,
    )
    .join("");
}

function bar(geometry, id, x, first, last) {
  const { unit } = geometry;
  const wide = unit * 0.45;
  return geometry
    .stretches(`txn/${id}`, first, last + 1)
    .filter(({ value }) => value)
    .map(
      ({ value, from, to, begins }) => html`
    <rect class=${`txn-bar ${value.state}`} x=${x} y=${(from + 0.5) * unit} width=${wide} height=${Math.max((to - from) * unit, 0)} />
    ${begins < from && label(geometry, x + wide + 4, from, stateWords(geometry, value), "loud")}`,
    );
}

function stateWords(geometry, value) {
  if (geometry.isNarrow) return value.state[0];
  const words = `${spaced(value.state)} ${value.producer}/${value.epoch}`;
  const fits = lettersOf(words) <= (geometry.bar - geometry.unit * 0.45 - 8) / geometry.letter;
  return fits ? words : spaced(value.state);
}

// --- messages -----------------------------------------------------------------------------------------------------

function messageLine(geometry, way, { side, onStep, onMessage }) {
  const { message, kind } = way;
  const choose = (event) => {
    event.stopPropagation();
    onStep(message.sent);
    onMessage?.({
      number: message.number,
      step: message.sent,
      side,
      anchor: { left: event.clientX, top: event.clientY },
    });
  };
  const because = message.because && `, lost: ${message.because}`;
  const d =
    message.source === message.target ? loop(geometry, way) : `M${way.x1} ${way.y1}L${way.x2} ${way.y2}`;
  return html`
    <g class=${`message ${kind}`} data-message=${message.number} onClick=${choose}>
      <title>${message.number} ${message.label}: ${message.source} to ${message.target}${because}</title>
      <path class="reach" d=${d} /><path class="line" d=${d} />
      ${message.arrived != null && head(geometry, way)}
      ${message.lost != null && html`<path class="cross" d=${crossAt(way.x2, way.y2, geometry.unit * 0.26)} />`}
    </g>`;
}

function loop({ unit }, { x1, y1, y2 }) {
  const out = x1 + unit * 1.6;
  return `M${x1} ${y1}C${out} ${y1} ${out} ${y2} ${x1} ${y2}`;
}

function head({ unit }, { message, x1, y1, x2, y2, kind }) {
  const own = message.source === message.target;
  const angle = own ? Math.PI * 0.97 : Math.atan2(y2 - y1, x2 - x1);
  const long = unit * (kind === "late" ? HEAD_LATE : HEAD);
  const point = (turn) => `${x2 - long * Math.cos(angle + turn)} ${y2 - long * Math.sin(angle + turn)}`;
  return html`<path class="arrow" d=${`M${x2} ${y2}L${point(0.42)}L${point(-0.42)}Z`} />`;
}

function crossAt(x, y, r) {
  return `M${x - r} ${y - r}L${x + r} ${y + r}M${x - r} ${y + r}L${x + r} ${y - r}`;
}

// --- rows ---------------------------------------------------------------------------------------------------------

function row(geometry, number, sight) {
  const step = geometry.run.steps[number];
  const line = geometry.rowOf(number);
  const draw = ROWS[step.kind] ?? called;
  return html`<g class="row">
    ${draw(geometry, step, line, sight)}
    ${step.flags.includes("violation") && breach(geometry, number, line)}
  </g>`;
}

// Beside the node that appends, since its batch has words at the right; else at the right edge, after the row's words.
function breach(geometry, number, line) {
  const step = geometry.run.steps[number];
  const rules = (geometry.run.document.broken ?? []).filter((each) => each.step === number).map(({ rule }) => rule);
  const text = `breaks ${[...new Set(rules)].join(", ")}`;
  const x = geometry.lanes.get(step.lane);
  if (step.kind === "appended" && x !== undefined)
    return beside(geometry, x, line, { text, side: -1, kind: "loud late-text", gap: 14 });
  const from = { called: callEnd(geometry, step), arrived: geometry.lanesEnd }[step.kind] ?? geometry.time;
  const fits = Math.floor((geometry.width - from - 16) / geometry.letter);
  return label(geometry, geometry.width - 8, line, shortened(text, fits), "loud late-text", "end");
}

const BOLT = "M.12-.42-.28.08H0L-.12.42.28-.08H0Z"; // on a ground as high as a row

const ROWS = {
  sent: departure,
  arrived: arrival,
  lost: loss,
  appended: append,
  truncated: append,
  bounded: moved,
  coordinated,
  called,
  struck,
};

function baseline(geometry, line) {
  return (line + 0.5) * geometry.unit + geometry.type * 0.35;
}

function label(geometry, x, line, text, kind = "", anchor = "start") {
  return html`<text class=${`halo ${kind}`} x=${x} y=${baseline(geometry, line)} text-anchor=${anchor}>${text}</text>`;
}

// A label beside a lane: on the wished side, on the other, or across the columns at the right up to `end`; cut if it fits
// nowhere. On the other side it stands `back` from the lane.
function beside(geometry, x, line, { text, side = 1, kind = "", gap = 8, back = gap, end = geometry.lanesEnd }) {
  const at = (turned, edge) => {
    const from = turned === side ? gap : back;
    return { turned, from, room: (turned > 0 ? edge - x : x - geometry.time) - from - 4 };
  };
  const places = [at(side, geometry.lanesEnd), at(-side, geometry.lanesEnd), at(1, end)];
  const wide = lettersOf(text) * geometry.letter;
  const { turned, from, room } =
    places.find((place) => wide <= place.room) ?? places.reduce((most, each) => (each.room > most.room ? each : most));
  const cut = shortened(text, room / geometry.letter);
  return label(geometry, x + from * turned, line, cut, kind, turned > 0 ? "start" : "end");
}

// How far words may reach that matter more than the columns at the right, where a broken rule is named.
function edgeOf(geometry, step) {
  return step.flags.includes("violation") ? geometry.lanesEnd : geometry.edge;
}

function departure(geometry, step, line) {
  const message = geometry.run.messages.get(step.message);
  const x = geometry.lanes.get(message.source) ?? geometry.time;
  const side = (geometry.lanes.get(message.target) ?? x) >= x ? 1 : -1;
  const loud = message.struck || message.repeats != null || kindOf(message) === "late";
  const lifted = line - 0.24;
  return html`
    <circle class="dot" cx=${x} cy=${(line + 0.5) * geometry.unit} r=${geometry.unit * 0.15} />
    ${beside(geometry, x, lifted, { text: step.note, side, kind: `${loud ? "loud" : ""} ${message.error ? "error" : ""}`, end: message.error ? edgeOf(geometry, step) : geometry.lanesEnd })}`;
}

function arrival(geometry, step, line) {
  const message = geometry.run.messages.get(step.message);
  const x = geometry.lanes.get(message.target) ?? geometry.time;
  const side = (geometry.lanes.get(message.source) ?? x) < x ? 1 : -1;
  if (kindOf(message) !== "late") {
    if (step.flags.includes("violation")) return null; // the rule is named there
    const far = geometry.rowOf(message.arrived) - geometry.rowOf(message.sent) > 6;
    return beside(geometry, x, line, {
      text: far ? `${message.number} ${message.label}` : `${message.number}`,
      side,
      kind: "small",
      back: geometry.unit * HEAD + 6,
    });
  }
  const text = `${message.number} ${message.label}, ${message.late}`;
  return html`
    ${badge(geometry, x, line, side, "LATE")}
    ${beside(geometry, x, line, { text, side, kind: "loud late-text", gap: 14 + 5.4 * geometry.letter, back: geometry.unit * HEAD_LATE + 6, end: edgeOf(geometry, step) })}`;
}

function badge(geometry, x, line, side, text) {
  const wide = (lettersOf(text) + 1) * geometry.letter;
  const left = side > 0 ? x + 8 : x - 8 - wide;
  return html`
    <rect class="badge" x=${left} y=${(line + 0.1) * geometry.unit} width=${wide} height=${geometry.unit * 0.8} rx="3" />
    <text class="badge-text" x=${left + wide / 2} y=${baseline(geometry, line)} text-anchor="middle">${text}</text>`;
}

function loss(geometry, step, line) {
  const message = geometry.run.messages.get(step.message);
  const from = geometry.lanes.get(message.source) ?? geometry.time;
  const to = geometry.lanes.get(message.target) ?? from;
  const x = from + (to - from) * 0.7;
  return beside(geometry, x, line, {
    text: step.note,
    side: to >= from ? 1 : -1,
    kind: "loud error",
    gap: 12,
    end: edgeOf(geometry, step),
  });
}

function append(geometry, step, line, { first, last }) {
  const batch = geometry.run.batches[step.batch];
  const from = geometry.lanes.get(step.lane);
  if (!batch || !geometry.logs.has(batch.partition))
    return from === undefined ? null : beside(geometry, from, line, { text: step.note });
  const { at, cell, low } = geometry.scale(batch.partition, bounds(geometry, batch.partition, first, last));
  const [x, end] = [at(batch.first), Math.max(at(batch.last + 1), at(batch.first) + 3)];
  if (batch.last < low) return null;
  return html`${guide(geometry, from, x, line)}${box(geometry, batch, line, x, end - x, cell)}
    ${batchLabel(geometry, batch, end, line)}${farWords(geometry, step, line, batch.partition)}`;
}

// What happens to a log whose column is out of sight until one scrolls stands beside the node, too.
function farWords(geometry, step, line, partition) {
  const x = geometry.lanes.get(step.lane);
  const isFar = geometry.logs.get(partition) + geometry.log > geometry.edge + 1;
  return isFar && x !== undefined && beside(geometry, x, line, { text: step.note, side: -1 });
}

// From the node that appends to the log.
function guide({ unit }, from, to, line) {
  if (from === undefined) return null;
  const [y, side] = [(line + 0.5) * unit, unit * 0.34];
  return html`
    <line class="guide" x1=${from} x2=${to} y1=${y} y2=${y} />
    <rect class="dot" x=${from - side / 2} y=${y - side / 2} width=${side} height=${side} />`;
}

// What fits of a batch's words between its end and the end of its column; a broken rule before all else.
function batchLabel(geometry, batch, end, line) {
  const isWrong = breachesOf(geometry.run, batch, Infinity).length > 0;
  const column = geometry.logs.get(batch.partition) + geometry.log;
  const fits = Math.floor((column - end - 8) / geometry.letter);
  const words = isWrong ? `${batchWords(batch)} ✗` : batchWords(batch);
  const least = isWrong ? "✗" : `${batch.first}`;
  const text = lettersOf(words) > fits && fits < LABEL_MIN ? least : shortened(words, fits);
  const kind = isWrong ? "loud late-text" : batch.kind === "data" ? "" : "loud";
  return fits > 0 && label(geometry, end + 5, line, text, kind);
}

function batchWords(batch) {
  const offsets = batch.first === batch.last ? `${batch.first}` : `${batch.first}-${batch.last}`;
  return `${offsets} ${batch.kind === "data" ? batch.values.join(" ") || batch.text : batch.kind.toUpperCase()}`;
}

// A batch as it ended: filled, hatched, pale, or with the letter of its marker; crossed out if a truncation took it.
function box(geometry, batch, line, x, wide, cell) {
  const { unit } = geometry;
  const final = stateOf(batch, Infinity);
  const producer = producerColour(geometry.run, batch.producer);
  const [y, high] = [(line + 0.16) * unit, unit * 0.68];
  const colour = `var(--producer-${producer})`;
  const fill = final === "aborted" ? `url(#hatch-${producer})` : colour;
  const sign = batch.kind !== "data" && cell >= geometry.letter ? STATES[final].sign : "";
  return html`
    <rect class="paper" x=${x} y=${y} width=${wide} height=${high} />
    <rect class=${`batch ${final}`} x=${x} y=${y} width=${wide} height=${high}
      style=${batch.kind === "data" ? { fill, stroke: colour } : {}} />
    <text class=${`letter ${final}`} x=${x + wide / 2} y=${baseline(geometry, line)} text-anchor="middle">${sign}</text>
    ${batch.gone != null && html`<path class="cross" d=${crossAt(x + wide / 2, y + high / 2, unit * 0.26)} />`}`;
}

// The bounds themselves are the mark.
function moved(geometry, step, line) {
  const partition = Object.keys(step.changes).find((key) => key.startsWith("log/"))?.slice(4);
  return geometry.logs.has(partition) && farWords(geometry, step, line, partition);
}

function coordinated(geometry, step, line) {
  const [key, value] = Object.entries(step.changes).find(([name]) => name.startsWith("txn/")) ?? [];
  const from = geometry.lanes.get(step.lane);
  const id = key?.slice(4);
  if (!value || !geometry.bars.has(id))
    return from === undefined ? null : beside(geometry, from, line, { text: step.note, kind: "loud" });
  const [x, y] = [geometry.bars.get(id), (line + 0.5) * geometry.unit];
  const r = geometry.unit * 0.26;
  return html`
    ${
      from !== undefined &&
      html`
      <line class="guide" x1=${from} x2=${x} y1=${y} y2=${y} />
      <path class="dot" d=${`M${from - r} ${y}L${from} ${y - r}L${from + r} ${y}L${from} ${y + r}Z`} />`
    }
    ${
      geometry.isNarrow && from !== undefined
        ? beside(geometry, from, line, { text: briefNote(step.note, id), side: -1, kind: "loud" })
        : label(geometry, x + geometry.unit * 0.45 + 4, line, stateWords(geometry, value), "loud")
    }`;
}

// The words beside a coordinator whose bar has no room for them, which a long id must not push out.
function briefNote(note, id) {
  return note.replace(id, () => shortened(id, ID_LETTERS));
}

function called(geometry, step, line) {
  const x = geometry.lanes.get(step.lane) ?? geometry.time;
  const kind = step.flags.includes("refusal") || step.flags.includes("violation") ? "loud error" : "call";
  return beside(geometry, x, line, { text: callWords(step), side: callSide(geometry, x), kind, end: edgeOf(geometry, step) });
}

function callWords(step) {
  return `» ${step.note || step.text}`;
}

function callSide(geometry, x) {
  return x > (geometry.time + geometry.lanesEnd) / 2 ? -1 : 1;
}

function callEnd(geometry, step) {
  const x = geometry.lanes.get(step.lane) ?? geometry.time;
  if (callSide(geometry, x) < 0) return x;
  return Math.min(x + 8 + lettersOf(callWords(step)) * geometry.letter, geometry.lanesEnd);
}

function struck(geometry, step, line) {
  const { unit } = geometry;
  const way =
    step.message == null
      ? null
      : geometry.ways(line, line).find(({ message }) => message.number === step.message);
  const part = way ? Math.min(1, (line - way.from) / Math.max(way.to - way.from, 1)) : 0;
  const x = geometry.lanes.get(step.lane) ?? (way ? way.x1 + (way.x2 - way.x1) * part : geometry.time + unit);
  const y = (line + 0.5) * unit;
  const text = step.note || step.text;
  return html`
    <path class="bolt" transform=${`translate(${x} ${y}) scale(${unit})`} d=${BOLT} />
    ${beside(geometry, x, line, { text, kind: "loud fault-text", gap: unit * 0.6, end: edgeOf(geometry, step) })}`;
}
