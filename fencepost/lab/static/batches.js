// What a batch is at a step, and what two kinds of readers may see of a log there.
//
// Rule: a batch is undecided until the step of its decision, whatever it became later. read_uncommitted reads
// data below the high watermark; read_committed below the last stable offset, and nothing that was aborted.

import { placeAt } from "lab/run.js";

export const STATES = {
  open: { word: "undecided", sign: "?" },
  committed: { word: "committed", sign: "✓" },
  aborted: { word: "aborted", sign: "✕" },
  plain: { word: "no transaction", sign: "" },
  commit: { word: "commit marker", sign: "C" },
  abort: { word: "abort marker", sign: "A" },
};

// "open", "committed", "aborted" or "plain" for data; "commit" or "abort" for a marker.
export function stateOf(batch, step) {
  if (batch.kind !== "data") return batch.kind;
  if (batch.result === "plain") return "plain";
  return batch.decided == null || batch.decided > step ? "open" : batch.result;
}

// The newest batches that are in a partition's log after `step`, oldest first, `limit` at most.
export function logAt(run, partition, step, limit) {
  const all = run.batchesOf.get(partition) ?? [];
  const found = [];
  for (
    let place = placeAt(all, step, (batch) => batch.appended);
    place >= 0 && found.length < limit;
    place--
  ) {
    const batch = all[place];
    if (batch.gone == null || batch.gone > step) found.push(batch);
  }
  return found.reverse();
}

// The data that a reader of this isolation may see, oldest first: [{batch, value, offset}].
export function visible(batches, step, log, isolation) {
  const committed = isolation === "read_committed";
  const bound = committed ? log.lso : log.hw;
  const seen = batches.filter((batch) => {
    const state = stateOf(batch, step);
    return (
      batch.kind === "data" && batch.last < bound && !(committed && (state === "aborted" || state === "open"))
    );
  });
  return seen.flatMap(records);
}

// The records of a batch with their offsets; a batch without known values has its text at its first offset.
export function records(batch) {
  if (!batch.values.length) return [{ batch, value: batch.text, offset: batch.first }];
  const dense = batch.values.length === batch.last - batch.first + 1;
  return batch.values.map((value, place) => ({
    batch,
    value,
    offset: dense ? batch.first + place : batch.first,
  }));
}

// The rules that a record of a batch breaks at a step: it does so from its decision on, or from its append if it
// never was decided.
export function breachesOf(run, batch, step) {
  if ((batch.decided ?? batch.appended) > step) return [];
  return [
    ...new Set(
      (run.document.broken ?? []).filter((rule) => rule.batch === batch.index).map(({ rule }) => rule),
    ),
  ];
}
