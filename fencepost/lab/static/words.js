// Numbers and names in words. Rule: the words alone tell the story; colour and shape repeat it.

import { html } from "lab/html.js";
import { partsOf } from "lab/letters.js";

export const PRODUCER_COLOURS = 6;

export function milliseconds(at) {
  return `${Math.floor(at / 1e6)}.${String(Math.floor(at / 1e3) % 1000).padStart(3, "0")}`;
}

// "app (id 7)", or "id 7" of a producer without transactions.
export function producerName(run, id) {
  const known = (run.document.producers ?? []).find((producer) => producer.id === id);
  return known?.transactional_id ? `${known.transactional_id} (id ${id})` : `id ${id}`;
}

// A partition without what every internal topic's name begins with.
export function shortName(partition) {
  return partition.replace(/^__consumer_/, "");
}

// A name whose lines end after its signs.
export function breakable(name) {
  return partsOf(name).flatMap((part, place) => (place ? [html`<wbr />`, part] : part));
}

export function spaced(state) {
  return state.replace(/([a-z])([A-Z])/g, "$1 $2");
}

export const FLAGS = {
  violation: "broken rule",
  late: "late",
  fault: "fault",
  refusal: "refusal",
  lost: "lost",
  again: "repeated",
  marker: "marker",
};

// The flag of a step that says most about it.
export function mainFlag(step) {
  return Object.keys(FLAGS).find((flag) => step.flags.includes(flag)) ?? null;
}

// A step in a few words beside the name of its flag, which they do not repeat; a fault names the message it struck.
export function brief(run, step) {
  const message = run.messages.get(step.message);
  if (!message) return step.kind === "struck" ? struckBrief(step) : step.note || step.text;
  if (step.kind === "struck") return `${step.note.replace(/ \(\d+\)$/, "")}: ${message.label}`;
  if (step.kind === "lost") return `${message.label}: ${message.because}`;
  return message.late && step.kind === "arrived" ? `${message.label}, ${message.late}` : message.label;
}

// "crash node 1": whom a fault strikes, if its words do not say that.
function struckBrief({ note, lane }) {
  return lane && !note.includes(lane) ? `${note} ${lane}` : note;
}

// The style that gives an element the colour of a producer. There are six; names tell apart those that share one.
export function producerStyle(run, id) {
  return { "--producer": `var(--producer-${producerColour(run, id)})` };
}

export function producerColour(run, id) {
  const place = run.producerPlace(id);
  return place < 0 ? "none" : place % PRODUCER_COLOURS;
}
