// The slider over all steps, with a mark wherever something struck, broke, was refused or came late.
//
// Rule: the slider is the browser's own, so that keys and screen readers work; the marks below it only show where
// to go, each kind in a row of its own, and many that share a place are one.

import { html } from "lab/html.js";
import { memo } from "lab/memo.js";
import { milliseconds } from "lab/words.js";

const KINDS = ["violation", "late", "fault", "refusal", "marker"];
const PLACES = 400; // more marks beside each other cannot be told apart

export function Scrub({ timeline, version, place, go }) {
  const [step] = timeline.at(place);
  const at = timeline.runs[0].steps[step]?.at ?? 0;
  return html`
    <div class="scrub">
      <input type="range" data-testid="scrub" aria-label="Step" min="0" max=${timeline.last} step="1" value=${place}
        aria-valuetext=${`step ${step} of ${timeline.runs[0].last}, ${milliseconds(at)} ms`}
        onInput=${(event) => go(Number(event.target.value))} />
      <${Ticks} timeline=${timeline} version=${version} />
    </div>`;
}

const Ticks = memo(({ timeline }) => {
  const seen = new Set();
  const marks = timeline.flags(KINDS).filter(({ place, flag }) => {
    const spot = `${flag} ${Math.round((place / Math.max(timeline.last, 1)) * PLACES)}`;
    return !seen.has(spot) && seen.add(spot);
  });
  const parting = timeline.parting;
  const left = (place) => ({ left: `${(100 * place) / Math.max(timeline.last, 1)}%` });
  return html`
    <div class="ticks" aria-hidden="true">
      ${marks.map(({ place, flag }) => html`<i class=${`tick ${flag}`} style=${left(place)}></i>`)}
      ${parting !== null && html`<i class="tick parting" style=${left(parting)}></i>`}
    </div>`;
});
