// The key moments of a run as a row of buttons: what went wrong and what came of it, at a glance.
//
// Rule: taken from the flags of the steps, the weightiest first, and shown in the order of time.

import { html } from "lab/html.js";
import { useMemo } from "preact/hooks";
import { icon } from "lab/icons.js";
import { useName } from "lab/side_name.js";
import { brief, FLAGS, mainFlag, milliseconds } from "lab/words.js";

const MOST = 6;
const WEIGHTS = ["violation", "late", "fault", "refusal", "again", "lost"];

export function Moments({ run, version, step, onStep }) {
  const name = useName("Key moments");
  const moments = useMemo(() => momentsOf(run), [run, version]);
  if (!moments.length) return null;
  return html`
    <nav class="moments" aria-label=${name} data-testid="moments">
      ${moments.map(
        ({ number, flag, text }) => html`
        <button key=${number} class=${`moment ${flag}`} aria-current=${number === step ? "step" : null} onClick=${() => onStep(number)}>
          <span class="what">${icon(flag)} ${FLAGS[flag].word}</span> <span class="when">${milliseconds(run.steps[number].at)} ms</span>
          <span class="note">${text}</span>
        </button>`,
      )}
    </nav>`;
}

function momentsOf(run) {
  const found = new Map();
  for (const flag of WEIGHTS) {
    for (const number of run.weighty(flag)) {
      if (found.size >= MOST) break;
      if (!found.has(number))
        found.set(number, { number, flag: mainFlag(run.steps[number]), text: noteOf(run, number) });
    }
  }
  return [...found.values()].sort((a, b) => a.number - b.number);
}

function noteOf(run, number) {
  const broken = (run.document.broken ?? []).find((rule) => rule.step === number);
  const step = run.steps[number];
  return broken ? `${broken.rule}: ${broken.text}` : brief(run, step);
}
