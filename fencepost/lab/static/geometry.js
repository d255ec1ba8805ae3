// Where everything of the space-time picture stands: time downwards, one row per step; from left to right the
// time, a lifeline per participant, a bar per transactional id, and the logs with their offsets to the right.
//
// Rule: rows have one height and each step has one row, so the part in sight follows from the scroll position
// alone: whatever crosses it is found through CHUNKs of rows, never by walking the whole run.

import { LETTER, lettersOf } from "lab/letters.js";
import { placeAt } from "lab/run.js";
import { milliseconds, shortName } from "lab/words.js";

const CHUNK = 64;
const LANE = 84; // the least width of a lane, of a log and of a transaction, at a row of 22 px
const LOG = 45;
const LOG_MOST = 90; // the most that a log's name may ask for
const TRANSACTION = 40;
const WORDED = 17.4; // letters: a transaction with less room than its longest state needs has its words elsewhere
const CELLS = 28; // a log with more offsets than this shows those in sight, CELLS_MIN at least
const CELLS_MIN = 10;

export class Geometry {
  constructor(run, rows, { width, unit }) {
    this.run = run;
    this.rows = rows;
    this.unit = unit;
    this.type = unit * 0.58;
    this.letter = this.type * LETTER;
    this.#columns(width, unit / 22);
    this.chunks = new Map();
    for (const message of run.messages.values()) this.#place(message);
  }

  #columns(width, scale) {
    const { run } = this;
    const participants = run.document.participants ?? [];
    const [lanes, logs, bars] = [participants.length || 1, run.partitions.length, run.transactions.length];
    const end = milliseconds(run.steps.at(-1)?.at ?? 0);
    this.time = (Math.max(end.length, 6) * 0.88 + 3.2) * this.letter; // the cross of a broken rule stands before it
    const room = width - this.time;
    const named =
      Math.max(0, ...run.partitions.map((name) => lettersOf(shortName(name)))) * this.letter * 1.2 + 8;
    const log = logs
      ? Math.max(
          LOG * scale,
          Math.min(named, LOG_MOST * scale, (0.36 * room) / logs),
          Math.min(230 * scale, (0.28 * room) / logs),
        )
      : 0;
    const worded = Math.min(22 * this.letter, (0.2 * room) / bars);
    this.isNarrow = worded < WORDED * this.letter;
    const bar = bars ? Math.max(TRANSACTION * scale, this.isNarrow ? Math.min(worded, 9 * this.letter) : worded) : 0;
    const lane = Math.max(LANE * scale, (room - log * logs - bar * bars) / lanes);
    const [barsFrom, logsFrom] = [this.time + lane * lanes, this.time + lane * lanes + bar * bars];
    this.lane = lane;
    this.bar = bar;
    this.log = log;
    this.lanesEnd = barsFrom;
    this.width = logsFrom + log * logs;
    this.edge = Math.max(barsFrom, Math.min(width, this.width)); // what is beyond comes into sight by scrolling
    const across = (names, from, wide) => new Map(names.map((name, place) => [name, from + wide * place]));
    this.lanes = new Map(
      participants.map(({ name }, place) => [name, this.time + lane * spread(place, lanes)]),
    );
    this.bars = across(run.transactions, barsFrom, bar);
    this.logs = across(run.partitions, logsFrom, log);
  }

  // The row of a step: its own, or that of the next step that has one.
  rowOf(step) {
    if (step == null) return this.rows.length;
    return placeAt(this.rows, step - 1, (number) => number) + 1;
  }

  isShown(step) {
    return this.rows[this.rowOf(step)] === step;
  }

  y(step) {
    return (this.rowOf(step) + 0.5) * this.unit;
  }

  get height() {
    return this.rows.length * this.unit;
  }

  #place(message) {
    if (!this.isShown(message.sent)) return;
    const ended = message.arrived ?? message.lost;
    const way = {
      message,
      from: this.rowOf(message.sent),
      to: Math.min(this.rowOf(ended), this.rows.length),
      x1: this.lanes.get(message.source) ?? this.time,
      x2: this.lanes.get(message.target) ?? this.time,
      kind: kindOf(message),
    };
    way.y1 = (way.from + 0.5) * this.unit;
    way.y2 = (way.to + 0.5) * this.unit;
    if (message.lost != null) way.x2 = way.x1 + (way.x2 - way.x1) * 0.7;
    for (let chunk = Math.floor(way.from / CHUNK); chunk <= Math.floor(way.to / CHUNK); chunk++) {
      if (!this.chunks.has(chunk)) this.chunks.set(chunk, new Set());
      this.chunks.get(chunk).add(way);
    }
  }

  // The ways of all messages that cross these rows; late ones last, so that they lie on top.
  ways(first, last) {
    const found = new Set();
    for (let chunk = Math.floor(first / CHUNK); chunk <= Math.floor(last / CHUNK); chunk++) {
      for (const way of this.chunks.get(chunk) ?? []) if (way.to >= first && way.from <= last) found.add(way);
    }
    return [...found].sort((a, b) => (a.kind === "late") - (b.kind === "late"));
  }

  // The values that a state key takes in these rows: [{value, from, to}] in rows, the one before them first.
  stretches(key, first, last) {
    const all = this.run.changed.get(key) ?? [];
    const found = [];
    const from = Math.max(placeAt(all, this.rows[first] ?? 0), 0);
    for (let place = from; place < all.length; place++) {
      const begins = this.rowOf(all[place].step);
      if (begins > last) break;
      const ends = place + 1 < all.length ? this.rowOf(all[place + 1].step) : this.rows.length;
      found.push({ ...all[place], begins, from: Math.max(begins, first), to: Math.min(ends, last) });
    }
    return found;
  }

  // A scale of offsets for a log's column in these rows.
  scale(partition, bounds) {
    const x = this.logs.get(partition);
    const ends = bounds.map(({ value }) => value?.end ?? 0);
    const end = Math.max(1, ...ends);
    const all = this.run.batchesOf.get(partition) ?? [];
    const whole = all.length ? all[all.length - 1].last + 1 : 1;
    const low =
      whole <= CELLS
        ? 0
        : Math.min(...bounds.map(({ value }) => Math.min(value?.lso ?? end, value?.hw ?? end)));
    const high = whole <= CELLS ? whole : Math.max(end, low + CELLS_MIN);
    const room = this.log - 8 - Math.min(11 * this.letter, this.log * 0.45);
    const cell = Math.min(room / Math.max(high - low, 1), this.unit * 0.8);
    const at = (offset) => x + 6 + Math.max(offset - low, 0) * cell;
    return { at, cell, low };
  }
}

// The middle of a lane, in lanes: the outer ones stand near the edges, so that there is room between for words.
function spread(place, lanes) {
  if (lanes === 1) return 0.5;
  const [first, last] = [0.3, lanes - 0.42];
  return first + ((last - first) * place) / (lanes - 1);
}

// What a message's line says; a grey one is under way at the end of the run: nothing went wrong with it.
export function kindOf(message) {
  if (message.arrived != null && message.overtaken_by.length) return "late";
  if (message.lost != null) return "lost";
  if (message.arrived == null) return "under-way";
  if (message.error) return "refused";
  if (message.repeats != null) return "again";
  return message.answers == null ? "message" : "reply";
}
