// Where everything of the space-time picture stands: time downwards, one row per step; from left to right the
// time, a lifeline per participant, a bar per transactional id, and the logs with their offsets to the right.
// Columns are as wide as usual; with room to spare they are wider, without they shrink to their least width, and a
// picture that is wider still scrolls sideways.
//
// Rule: rows have one height and each step has one row, so the part in sight follows from the scroll position
// alone: whatever crosses it is found through CHUNKs of rows, never by walking the whole run.

import { LETTER, lettersOf, partsOf } from "lab/letters.js";
import { placeAt } from "lab/run.js";
import { milliseconds, shortName } from "lab/words.js";

const CHUNK = 64;
// px at a row of 22 px: the least and the usual width of a lane, and of a transaction or a log.
const LANE = [50, 84];
const NARROW = [28, 42];
const WIDE_MOST = 150; // what a word of a name above a lane may ask for
const WORDS = 34; // letters: the room for words that all lanes together have at least, if their usual width gives it
const NARROW_MOST = 90; // what a name above one may ask for
const WORDED = 17.4; // letters: a transaction with less room than its longest state needs has its words elsewhere
const CELLS = 28; // a log with more offsets than this shows those in sight, CELLS_MIN at least
const CELLS_MIN = 10;
const TYPE = 0.58; // the size of letters, in rows
const NAME_LINES = 2; // of a name above a column of usual width
const PADDING = 0.5; // letters, of a name
const WORD_PADDING = 0.7; // of a word, for which a column that is a little narrower than usual still has room

export class Geometry {
  constructor(run, rows, { width, unit }) {
    this.run = run;
    this.rows = rows;
    this.unit = unit;
    this.type = unit * TYPE;
    this.letter = this.type * LETTER;
    this.#columns(width);
    this.chunks = new Map();
    for (const message of run.messages.values()) this.#place(message);
  }

  #columns(width) {
    const { run, unit, letter } = this;
    const { time, lanes, bars, logs } = columnsOf(run, unit);
    const [least, usual] = ["least", "usual"].map((size) => total([lanes, bars, logs], size));
    const room = width - time;
    const part = Math.max(0, Math.min((room - least) / Math.max(usual - least, 1), 1));
    const spare = Math.max(0, room - usual);
    const sized = (kind, share, most) => {
      const own = kind.least + (kind.usual - kind.least) * part;
      return kind.count ? Math.min(own + (share * spare) / kind.count, Math.max(own, most)) : 0;
    };
    const bar = sized(bars, 0.2, 22 * letter);
    this.time = time;
    this.isNarrow = bar < WORDED * letter;
    this.bar = this.isNarrow ? Math.min(bar, Math.max(bars.usual, 9 * letter)) : bar;
    this.log = sized(logs, 0.3, (230 * unit) / 22);
    this.lane = Math.max(lanes.least, (room - this.bar * bars.count - this.log * logs.count) / lanes.count);
    this.lanesEnd = time + this.lane * lanes.count;
    const logsFrom = this.lanesEnd + this.bar * bars.count;
    this.width = logsFrom + this.log * logs.count;
    this.edge = Math.max(this.lanesEnd, Math.min(width, this.width)); // what is beyond comes into sight by scrolling
    const across = (names, from, wide) => new Map(names.map((name, place) => [name, from + wide * place]));
    this.lanes = new Map(
      (run.document.participants ?? []).map(({ name }, place) => [name, time + this.lane * spread(place, lanes.count)]),
    );
    this.bars = across(run.transactions, this.lanesEnd, this.bar);
    this.logs = across(run.partitions, logsFrom, this.log);
  }

  // How many letters a line of a name has above a column.
  lettersIn(width) {
    return Math.max(1, Math.floor(width / this.letter - PADDING));
  }

  // The row of a step: its own, or that of the next step that has one.
  rowOf(step) {
    if (step == null) return this.rows.length;
    return placeAt(this.rows, step - 1, (number) => number) + 1;
  }

  isShown(step) {
    return this.rows[this.rowOf(step)] === step;
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

// How wide the picture of a run is if no column shrinks.
export function usualWidth(run, unit) {
  const { time, lanes, bars, logs } = columnsOf(run, unit);
  return time + total([lanes, bars, logs], "usual");
}

function total(kinds, size) {
  return kinds.reduce((sum, kind) => sum + kind.count * kind[size], 0);
}

function columnsOf(run, unit) {
  const letter = unit * TYPE * LETTER;
  const scaled = (px) => (px * unit) / 22;
  const longest = (names) => Math.max(0, ...names.map(lettersOf));
  const word = (names) => (longest(names.flatMap(partsOf)) + WORD_PADDING) * letter;
  const named = (names) => Math.max((longest(names) / NAME_LINES + PADDING) * letter, word(names));
  const narrow = (names) => ({
    count: names.length,
    least: scaled(NARROW[0]),
    usual: Math.max(scaled(NARROW[1]), Math.min(named(names), scaled(NARROW_MOST))),
  });
  const end = milliseconds(run.steps.at(-1)?.at ?? 0);
  const count = run.document.participants?.length || 1;
  const least = scaled(LANE[0]);
  const usual = Math.max(scaled(LANE[1]), Math.min(word((run.document.participants ?? []).map(({ name }) => name)), scaled(WIDE_MOST)));
  return {
    time: (Math.max(end.length, 6) * 0.88 + 3.8) * letter, // the cross of a broken rule stands before it
    lanes: { count, least: Math.min(usual, Math.max(least, (WORDS * letter) / count)), usual },
    bars: narrow(run.transactions),
    logs: narrow(run.partitions.map(shortName)),
  };
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
