// The places one can step through: each is a step of one run, or a step of each of two runs side by side.
//
// Rule: two runs go in step until they diverge; after that each next place is the earlier one by virtual time, so
// both sides always show the same moment.

import { placeAt } from "lab/run.js";

export class Timeline {
  constructor(runs, { divergence = null, transaction = "" } = {}) {
    this.runs = runs;
    this.divergence = divergence;
    this.rows = runs.map((run) => run.rows(transaction));
    this.places = runs.length === 1 ? this.rows[0].map((step) => [step]) : merge(runs, this.rows, divergence);
  }

  get last() {
    return Math.max(this.places.length - 1, 0);
  }

  // The steps at a place, one per run.
  at(place) {
    return this.places[Math.min(place, this.last)] ?? this.runs.map(() => -1);
  }

  // The first place at which the run of this side has come to `step`.
  placeOf(step, side = 0) {
    return Math.min(placeAt(this.places, step - 1, (steps) => steps[side]) + 1, this.last);
  }

  // The first place at which every run has come to its step.
  placeOfAll(steps) {
    return Math.max(...steps.slice(0, this.runs.length).map((step, side) => this.placeOf(step, side)));
  }

  // The place at which the runs differ for the first time; null if there is none.
  get parting() {
    if (!this.divergence) return null;
    return Math.max(0, Math.min(this.placeOf(this.divergence[0], 0), this.placeOf(this.divergence[1], 1)));
  }

  // The nearest place with a step of this flag, in either run; null if there is none.
  next(flag, place, direction = 1) {
    const here = this.at(place);
    const found = this.runs
      .map((run, side) => {
        let step = here[side];
        do step = run.next(flag, step, direction);
        while (step !== null && this.at(this.placeOf(step, side))[side] !== step);
        return step === null ? null : this.placeOf(step, side);
      })
      .filter((other) => other !== null && other !== place);
    if (!found.length) return null;
    return direction > 0 ? Math.min(...found) : Math.max(...found);
  }

  // Every flagged place, for the marks of the scrubber: [{place, flag}].
  flags(names) {
    return names.flatMap((flag) =>
      this.runs.flatMap((run, side) =>
        (run.flagged.get(flag) ?? []).map((step) => ({ place: this.placeOf(step, side), flag })),
      ),
    );
  }
}

function merge([left, right], [rowsLeft, rowsRight], divergence) {
  const [endLeft, endRight] = divergence ?? [Infinity, Infinity];
  const places = rowsLeft.filter((step) => step < endLeft && step <= right.last).map((step) => [step, step]);
  const [l, r] = [rowsLeft.filter((step) => step >= endLeft), rowsRight.filter((step) => step >= endRight)];
  let [stepLeft, stepRight] = places.at(-1) ?? [-1, -1];
  let [i, j] = [0, 0];
  while (i < l.length || j < r.length) {
    const [atLeft, atRight] = [left.steps[l[i]]?.at ?? Infinity, right.steps[r[j]]?.at ?? Infinity];
    if (atLeft <= atRight) stepLeft = l[i++];
    if (atRight <= atLeft) stepRight = r[j++];
    places.push([stepLeft, stepRight]);
  }
  return places;
}
