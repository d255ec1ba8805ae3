// A run as the page reads it: the document, and the state of everything after each of its steps.
//
// Rule: nothing is simulated here. A state is the sum of the `changes` of all steps up to one; a copy of it is
// kept every KEYFRAME steps, so that any step is at most that many additions away. No window, no DOM.

const KEYFRAME = 256;
const NOTHING = Object.freeze([]);
const NO_CHANGES = Object.freeze({});
const WORDED = /^__(transaction_state|cluster_metadata)-/; // logs that the page shows in words
const STEP = { lane: "", note: "", transactions: NOTHING, flags: NOTHING, changes: NO_CHANGES };
const MESSAGE = { overtaken_by: NOTHING, transactions: NOTHING, label: "", because: "" };
const BATCH = { values: NOTHING, transactions: NOTHING, text: "" };

// Where a reader who opens a run should look first: the first flag of these that the run has.
const OPENING = ["late", "violation", "refusal", "again", "fault", "lost"];
// Refusals that say "not yet" or "first do this": every run has some.
const ROUTINE =
  /CONCURRENT_TRANSACTIONS|MEMBER_ID_REQUIRED|REBALANCE_IN_PROGRESS|NOT_COORDINATOR|COORDINATOR_LOAD_IN_PROGRESS|NOT_LEADER/;

export class Run {
  constructor(document) {
    this.document = document;
    this.version = 0;
    this.steps = [];
    this.messages = new Map(); // by number
    this.answers = new Map(); // number of a request -> number of its newest answer
    this.batches = [];
    this.keyframes = [];
    this.flagged = new Map(); // flag -> the steps that have it, rising
    this.changed = new Map(); // state key -> [{step, value}], rising
    this.known = { step: -1, state: {} };
    this.append(document);
  }

  // Adds steps; messages and batches replace those with the same number or index, because a later step decides
  // what became of them. Everything else of the document (participants, producers, end ...) is replaced.
  append({ steps = NOTHING, messages = NOTHING, batches = NOTHING, ...rest }) {
    this.document = { ...this.document, ...rest };
    for (const step of steps) this.#add({ ...STEP, ...step });
    for (const message of messages) {
      this.messages.set(message.number, { ...MESSAGE, ...message });
      if (message.answers != null) this.answers.set(message.answers, message.number);
    }
    batches.forEach((batch, place) => {
      const index = batch.index ?? place;
      this.batches[index] = { ...BATCH, ...batch, index };
    });
    this.batchesOf = Map.groupBy(this.batches, (batch) => batch.partition);
    this.partitions = [...this.batchesOf.keys()].filter((name) => !WORDED.test(name)).sort(dataFirst);
    this.transactions = this.#named("txn/").sort(byName);
    this.version += 1;
  }

  #add(step) {
    const number = this.steps.length;
    if (number % KEYFRAME === 0) this.keyframes.push({ ...this.at(number - 1) });
    this.steps.push(step);
    for (const flag of step.flags) listOf(this.flagged, flag).push(number);
    for (const [key, value] of Object.entries(step.changes))
      listOf(this.changed, key).push({ step: number, value });
  }

  #named(prefix) {
    return [...this.changed.keys()]
      .filter((key) => key.startsWith(prefix))
      .map((key) => key.slice(prefix.length));
  }

  get last() {
    return this.steps.length - 1;
  }

  // The state after step `number`; -1 is the state before the run. Do not change what it returns.
  at(number) {
    if (number < 0) return {};
    let { step, state } = this.known;
    const keyframe = Math.floor(number / KEYFRAME);
    if (step > number || step < keyframe * KEYFRAME - 1) {
      [step, state] = [keyframe * KEYFRAME - 1, this.keyframes[keyframe]];
    }
    state = { ...state };
    for (let next = step + 1; next <= number; next++) apply(state, this.steps[next].changes);
    this.known = { step: number, state };
    return state;
  }

  // The nearest step with this flag after (direction 1) or before (-1) `from`; null if there is none.
  next(flag, from, direction = 1) {
    const found = this.flagged.get(flag) ?? NOTHING;
    return (
      (direction > 0 ? found.find((step) => step > from) : found.findLast((step) => step < from)) ?? null
    );
  }

  // The steps that belong to a transaction, and whatever struck or broke meanwhile; "" is every step.
  rows(transaction = "") {
    const all = this.steps.map((_, number) => number);
    return transaction ? all.filter((number) => belongs(this.steps[number], transaction)) : all;
  }

  // The step at which to open the run.
  get opening() {
    const first = OPENING.map((flag) => this.weighty(flag)[0]).find((step) => step !== undefined);
    return first ?? this.last;
  }

  // The steps with this flag, without routine refusals.
  weighty(flag) {
    const all = this.flagged.get(flag) ?? NOTHING;
    return flag === "refusal" ? all.filter((step) => !ROUTINE.test(this.steps[step].note)) : all;
  }

  // Of these state keys, the one that changed last before or at a step; before the first change, the first there is.
  latest(keys, number) {
    let [found, newest] = [keys[0] ?? null, -1];
    for (const key of keys) {
      const all = this.changed.get(key) ?? NOTHING;
      const step = all[placeAt(all, number)]?.step ?? -1;
      if (step > newest) [found, newest] = [key, step];
    }
    return found;
  }

  answerOf(number) {
    return this.messages.get(this.answers.get(number)) ?? null;
  }

  producerPlace(id) {
    return (this.document.producers ?? NOTHING).findIndex((producer) => producer.id === id);
  }
}

// The last entry of a rising list of {step} that is not after `number`: its place, -1 if all are later.
export function placeAt(list, number, key = (entry) => entry.step) {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (key(list[middle]) <= number) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

function apply(state, changes) {
  for (const [key, value] of Object.entries(changes)) {
    if (value === null) delete state[key];
    else state[key] = value;
  }
}

function belongs(step, transaction) {
  return (
    step.transactions.includes(transaction) || step.kind === "struck" || step.flags.includes("violation")
  );
}

function listOf(map, key) {
  if (!map.has(key)) map.set(key, []);
  return map.get(key);
}

function dataFirst(a, b) {
  return a.startsWith("__") - b.startsWith("__") || byName(a, b);
}

function byName(a, b) {
  return a.localeCompare(b, "en", { numeric: true });
}
