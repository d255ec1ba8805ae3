// What a batch is at a step, and what two kinds of readers may see of a log there.
//
// Rule: a batch is undecided until the step of its decision, whatever it became later. read_uncommitted reads
// data below the high watermark; read_committed below the last stable offset, and nothing that was aborted.

import { placeAt } from "lab/run.js";

const APART_MAX = 8; // records of one batch that are shown one by one

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

// The records of a batch with their offsets. Of a batch with many records, or whose values are not known one by one,
// there is one entry for all of them.
export function records(batch) {
  const { values, first, last } = batch;
  const count = last - first + 1;
  if (values.length === count && count <= APART_MAX) {
    return values.map((value, place) => ({ batch, value, offset: first + place, last: first + place }));
  }
  const value = values.length === count ? `${values[0]} … ${values.at(-1)}` : values.join(" ") || batch.text;
  return [{ batch, value, offset: first, last }];
}

// The newest records and markers that fit into a strip of `limit` cells, and the cell at which an offset stands:
// half a cell on if it is within a batch that is one cell, -1 if it is before all of them.
export function strip(batches, limit) {
  const cells = [];
  for (const batch of batches.toReversed()) {
    const inside = batch.kind === "data" ? records(batch) : [markerOf(batch)];
    if (cells.length + inside.length > limit) break;
    cells.unshift(...inside);
  }
  const cellOf = (offset) => {
    if (cells.length && offset < cells[0].offset) return -1;
    const place = cells.findIndex(({ last }) => offset <= last);
    if (place < 0) return cells.length;
    return offset <= cells[place].offset ? place : place + 0.5;
  };
  return { cells, cellOf };
}

function markerOf(batch) {
  return { batch, value: STATES[batch.kind].sign, offset: batch.first, last: batch.last };
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
