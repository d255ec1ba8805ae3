// The key moments of a run as a row of buttons: what went wrong and what came of it, at a glance.
//
// Rule: taken from the flags of the steps, the weightiest first, and shown in the order of time. Of a run that goes on,
// the newest are taken.

import { html } from "lab/html.js";
import { useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { icon } from "lab/icons.js";
import { useName } from "lab/side_name.js";
import { bringIntoSight } from "lab/sight.js";
import { brief, FLAGS, mainFlag, milliseconds } from "lab/words.js";

const MOST = 6;
const EACH = 2; // of one kind, before all kinds had their turn
const WEIGHTS = [
  { flag: "violation" },
  { flag: "late" },
  { flag: "fault", test: /^(crash|restart|kill|pause|resume|power|cut|down|up|isolat|move)/ }, // what silences a lane
  { flag: "refusal" },
  { flag: "fault" },
  { flag: "again" },
  { flag: "lost" },
];

export function Moments({ run, version, step, isNewest, onStep }) {
  const name = useName("Key moments");
  const moments = useMemo(() => momentsOf(run, isNewest), [run, version, isNewest]);
  const row = useRef(null);
  useLayoutEffect(() => {
    const current = row.current?.querySelector("[aria-current]");
    if (current) bringIntoSight(row.current, current);
  }, [moments, step]);
  if (!moments.length) return null;
  return html`
    <nav class="moments" ref=${row} aria-label=${name} data-testid="moments">
      ${moments.map(
        ({ number, flag, text }) => html`
        <button key=${number} class=${`moment ${flag}`} aria-current=${number === step ? "step" : null} onClick=${() => onStep(number)}>
          <span class="what">${icon(flag)} ${FLAGS[flag]}</span> <span class="when">${milliseconds(run.steps[number].at)}<span class="unit"> ms</span></span>
          <span class="note">${text}</span>
        </button>`,
      )}
    </nav>`;
}

function momentsOf(run, isNewest) {
  const found = new Map();
  for (const most of [EACH, MOST]) {
    for (const kind of WEIGHTS) {
      const all = run.weighty(kind.flag).filter((number) => kind.test?.test(run.steps[number].note) ?? true);
      const chosen = isNewest ? all.slice(-most) : all.slice(0, most);
      for (const number of chosen) if (found.size < MOST) found.set(number, momentOf(run, number));
    }
  }
  return [...found.values()].sort((a, b) => a.number - b.number);
}

function momentOf(run, number) {
  return { number, flag: mainFlag(run.steps[number]), text: noteOf(run, number) };
}

function noteOf(run, number) {
  const broken = (run.document.broken ?? []).find((rule) => rule.step === number);
  const step = run.steps[number];
  return broken ? `${broken.rule}: ${broken.text}` : brief(run, step);
}
